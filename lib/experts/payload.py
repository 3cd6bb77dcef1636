"""Bytes of a tensor in another layout, moved from where they are; nothing is computed.

What lies in the file as the target wants it is a list of stretches, which the writer copies inside
the kernel. Else the matrices of one expert are read and turned, in memory of two matrices and a
strip.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..checkpoint.folder import Readable
from ..checkpoint.writer import Entry
from ..conversion.open_files import OpenFiles
from ..errors import InputError
from .matrices import Matrix
from .target import Target

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

READ = 1 << 20
"""Bytes that are read at a time where not all of them are kept."""
STRIP = 1 << 20
"""Bytes of a turned strip, at least; it stays in the cache of a core."""
LINE = 64
"""Bytes of a line of the cache: a strip takes whole ones."""
TILE = 64
"""Rows that are turned at a time, from a copy without the gaps between them: rows that are a power
of two apart fall on the same lines of the cache. Measured: 5 to 18 times as fast as without."""


def entry(target: Target, files: OpenFiles) -> Entry:
    """The target as the writer takes it."""
    shared = (target.name, target.dtype, target.shape, target.nbytes)
    if is_moved(target):
        return Entry(*shared, copies=lambda: stretches(target, files))
    return Entry(*shared, bands=lambda: bands(target, files))


def is_moved(target: Target) -> bool:
    """Whether all its bytes lie in files in their order, so that copying stretches makes it."""
    first = next(target.blocks())
    if target.turned and len(first) > 1:
        return False
    return all(m.stretch(target.turned) is not None for m in first)


def stretches(target: Target, files: OpenFiles) -> Iterator[tuple[Readable, int, int]]:
    """(file, offset, bytes) in order; what is adjacent is one stretch."""
    file, start, end = "", 0, 0
    for block in target.blocks():
        for matrix in block:
            found = matrix.stretch(target.turned)
            assert found is not None
            offset, nbytes = found
            if matrix.tensor.file != file or offset != end:
                if end > start:
                    yield files(file), start, end - start
                file, start = matrix.tensor.file, offset
            end = offset + nbytes
    yield files(file), start, end - start


def bands(target: Target, files: OpenFiles) -> Iterator[memoryview]:
    """The payload, strip by strip.

    Raises:
        InputError: a source file ends early.
    """
    for block in target.blocks():
        if target.turned:
            yield from _side_by_side(block, files)
            continue
        for matrix in block:
            yield from _turned(matrix, files) if matrix.form.transposed else _rows(matrix, files)


def _rows(matrix: Matrix, files: OpenFiles) -> Iterator[memoryview]:
    """A matrix that is stored as [out, in], perhaps with those of another between its rows."""
    for piece in _pieces(matrix, files):
        yield _bytes(piece)


def _turned(matrix: Matrix, files: OpenFiles) -> Iterator[memoryview]:
    """A matrix that is stored as [in, out], as [out, in]."""
    form = matrix.form
    yield from _strips(matrix.rows, form.item, [(_load(matrix, files), True)])


def _side_by_side(block: tuple[Matrix, ...], files: OpenFiles) -> Iterator[memoryview]:
    """The matrices of an expert as [in, out], side by side."""
    form = block[0].form
    parts = [(_load(m, files), not m.form.transposed) for m in block]
    yield from _strips(form.inputs, form.item, parts)


def _strips(rows: int, item: int, parts: list[tuple[Array, bool]]) -> Iterator[memoryview]:
    """Matrices of `rows` rows side by side, some rows at a time; of each whether it is stored
    turned. A strip is valid until the next one is asked for."""
    import numpy as np

    columns = sum(len(m) if turned else m.shape[1] for m, turned in parts)
    step = min(max(STRIP // (columns * item), LINE // item, 1), rows)
    strip = np.empty((step, columns), _dtype(item))
    for first in range(0, rows, step):
        last, at = min(first + step, rows), 0
        out = strip[: last - first]
        for matrix, turned in parts:
            if not turned:
                out[:, at : at + matrix.shape[1]] = matrix[first:last]
                at += matrix.shape[1]
                continue
            for row in range(0, len(matrix), TILE):
                tile = matrix[row : row + TILE, first:last].copy()
                out[:, at : at + len(tile)] = tile.T
                at += len(tile)
        yield _bytes(out)


def _load(matrix: Matrix, files: OpenFiles) -> Array:
    """A matrix as it is stored, [inputs, rows] or [rows, inputs], without what is between."""
    import numpy as np

    form = matrix.form
    found = matrix.stretch(form.transposed)
    shape = (form.inputs, matrix.rows) if form.transposed else (matrix.rows, form.inputs)
    if found is not None:
        raw = _exactly(files(matrix.tensor.file), *found, matrix)
        return np.frombuffer(raw, _dtype(form.item)).reshape(shape)
    out = np.empty(shape, _dtype(form.item))
    at = 0
    for piece in _pieces(matrix, files):
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


def _pieces(matrix: Matrix, files: OpenFiles) -> Iterator[Array]:
    """A matrix as it is stored, some rows at a time, without what is between."""
    import numpy as np

    form, f = matrix.form, files(matrix.tensor.file)
    chosen = slice(matrix.start, matrix.start + matrix.rows * matrix.step, matrix.step)
    if form.transposed:
        first, last, width, pick = 0, form.inputs, form.outputs, (slice(None), chosen)
    elif matrix.step == 1:
        first, last, width, pick = chosen.start, chosen.stop, form.inputs, (slice(None),) * 2
    else:
        first, last, width = 0, form.outputs, form.inputs
        pick = (slice(matrix.start, None, matrix.step), slice(None))
    row = width * form.item
    step = max(READ // row, 1)
    step += -step % matrix.step  # so that all pieces begin alike
    for at in range(first, last, step):
        count = min(step, last - at)
        raw = _exactly(f, matrix.offset + at * row, count * row, matrix)
        yield np.frombuffer(raw, _dtype(form.item)).reshape(count, width)[pick]


def proof(target: Target, files: OpenFiles) -> Iterator[bytes]:
    """The payload once more by the formula: whole matrices, joined, turned. It is what `--verify`
    compares with, and shares no strips with `bands`."""
    import numpy as np

    for block in target.blocks():
        parts = []
        for m in block:
            form, f = m.form, files(m.tensor.file)
            raw = _exactly(f, m.offset, form.nbytes, m)
            sides = (form.inputs, form.outputs) if form.transposed else (form.outputs, form.inputs)
            stored = np.frombuffer(raw, _dtype(form.item)).reshape(sides)
            rows = stored.T if form.transposed else stored
            parts.append(rows[m.start :: m.step][: m.rows])
        whole = np.concatenate(parts)
        yield (whole.T if target.turned else whole).tobytes()


def _exactly(f: Readable, offset: int, nbytes: int, matrix: Matrix) -> bytes:
    raw = f.read(offset, nbytes)
    if len(raw) != nbytes:
        what = f"{matrix.tensor.file}: tensor '{matrix.tensor.name}': ends early, bytes"
        raise InputError(what, found=len(raw), expected=nbytes)
    return raw


def _dtype(item: int) -> np.dtype[Any]:
    """Something of that many bytes that NumPy moves fast, and never looks into."""
    import numpy as np

    return np.dtype(f"u{item}" if item in (1, 2, 4, 8) else f"V{item}")


def _bytes(array: Array) -> memoryview:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
