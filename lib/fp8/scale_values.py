"""The values of scales: none may be infinite or no number. Standard library only.

Scales are a few bytes for each 16,384 codes. Those of a file lie close together, so that few reads
fetch all of them.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, repeat
from operator import add, itemgetter, sub

from ..checkpoint.folder import Folder, Readable
from ..checkpoint.regular_file import OpenFile
from ..checkpoint.tensor import Problem, Tensor
from ..progress import tracked

GAP = 1 << 16
"""Bytes between two scales that are read along rather than skipped."""
PIECE = 1 << 22
"""Most bytes of one read, unless one scale is larger."""
_BATCH = 1024
"""Reads whose bytes are judged together."""
_DTYPE, _FILE, _OFFSET, _NBYTES = map(itemgetter, (1, 3, 4, 5))
_FLOATS = ("BF16", "F16", "F32")


@dataclass
class Values:
    """What was found in the scales that were read.

    Attributes:
        checked: number of scales.
        non_finite, negative, zero: numbers of scales that have such a value.
    """

    checked: int = 0
    non_finite: int = 0
    negative: int = 0
    zero: int = 0


def check(
    folder: Folder, scales: Iterable[Tensor], limit: int = 100
) -> tuple[Values, list[Problem]]:
    """Read all scales and look for values that no scale has.

    Args:
        limit: findings of a kind that are listed.
    Raises:
        NotReadable: a file cannot be opened.
    """
    values = Values()
    problems: list[Problem] = []
    by_file: dict[str, list[Tensor]] = {}
    for file, some in groupby(scales, _FILE):
        by_file.setdefault(file, []).extend(some)
    for file, group in tracked(by_file.items(), len(by_file), "reading scales", "file"):
        group.sort(key=_OFFSET)
        values.checked += len(group)
        with folder.open(file) as f:
            for part, places, raws in _read(f, group):
                if _all_alike(values, part, raws):
                    continue
                for t, (start, raw) in zip(part, places(), strict=True):
                    piece = raw[t.offset - start : t.offset - start + t.nbytes]
                    if not _sound(t.dtype, piece):
                        _note(values, problems, t, piece, limit)
    return values, problems


def _all_alike(values: Values, scales: list[Tensor], raws: list[bytes]) -> bool:
    """Whether one look at the bytes of many scales tells that all are sound, or all of them zero,
    which is counted.

    Args:
        raws: the bytes, with what was read along between two scales.
    """
    dtypes = set(map(_DTYPE, scales))
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    raw = b"".join(raws)
    if dtype in _FLOATS and raw == bytes(len(raw)):
        values.zero += len(scales)
        return True
    return len(raw) == sum(map(_NBYTES, scales)) and _sound(dtype, raw)


Places = Callable[[], Iterable[tuple[int, bytes]]]
"""Gives the read that each of some scales lies in: its first byte and what it brought."""


def _read(f: Readable, scales: list[Tensor]) -> Iterator[tuple[list[Tensor], Places, list[bytes]]]:
    """Scales in offset order, some at a time, with where they lie in what was read of them."""
    offsets, sizes = list(map(_OFFSET, scales)), list(map(_NBYTES, scales))
    # each beside its codes, as most writers lay it: a few bytes each, far apart
    apart = min(map(sub, offsets[1:], map(add, offsets, sizes)), default=0) > GAP
    if apart and max(sizes) * _BATCH <= PIECE and isinstance(f, OpenFile):
        for i in range(0, len(scales), _BATCH):
            starts = offsets[i : i + _BATCH]
            raws = f.read_many(starts, sizes[i : i + _BATCH])
            yield scales[i : i + _BATCH], partial(zip, starts, raws), raws
        return
    for run, start, end in _runs(scales):
        raw = f.read(start, end - start)
        yield run, partial(repeat, (start, raw), len(run)), [raw]


def _note(values: Values, problems: list[Problem], scale: Tensor, raw: bytes, limit: int) -> None:
    """Count what is odd about one scale, and tell of it."""
    if scale.dtype in _FLOATS and not raw.strip(b"\0"):
        values.zero += 1  # all of them: a hole in the file, or a matrix of zeros; counted alone
        return
    found = _found(scale.dtype, raw)
    if found is None:
        return
    what, severity, text = found
    count = getattr(values, what) + 1
    setattr(values, what, count)
    if count <= limit:
        no_value = what == "non_finite"  # a fault of the file; the others are odd
        problems.append(
            Problem("bad-scale", text, severity, scale.file, scale.name, malformed=no_value)
        )


def _runs(scales: list[Tensor]) -> Iterator[tuple[list[Tensor], int, int]]:
    """Scales in offset order, cut where the gap or the whole becomes too large to read at once;
    with the first byte of each run, and the one after its last."""
    run: list[Tensor] = []
    start = end = 0
    for t in scales:
        offset, nbytes = t[4], t[5]
        if run and (offset - end > GAP or offset + nbytes - start > PIECE):
            yield run, start, end
            run = []
        if not run:
            start = offset
        run.append(t)
        end = offset + nbytes
    if run:
        yield run, start, end


def _sound(dtype: str, raw: bytes) -> bool:
    """A quick look: certainly positive and finite. BF16 and F32 end in sign and exponent."""
    if dtype == "BF16":
        high = raw[1::2]
    elif dtype == "F32":
        high = raw[3::4]
    elif dtype in ("F8_E8M0", "U8"):
        return b"\xff" not in raw
    else:
        return False
    return high.isascii() and b"\x7f" not in high and b"\0" not in high


def numbers(dtype: str, raw: bytes) -> Iterable[float]:
    """The values of a scale tensor.

    Args:
        dtype: BF16, F16, F32, or F8_E8M0 or U8, whose bytes are exponents: 2^(byte - 127), 255 is
            no number.
    """
    if dtype == "F32":
        return struct.unpack(f"<{len(raw) // 4}f", raw)
    if dtype == "F16":
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    if dtype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        return struct.unpack(f"<{len(raw) // 2}f", wide)
    return [math.nan if b == 255 else 2.0 ** (b - 127) for b in raw]


def fault(dtype: str, raw: bytes) -> str | None:
    """What no scale may be, in words; None of values that are sound or only odd."""
    found = None if _sound(dtype, raw) else _found(dtype, raw)
    return found[2] if found and found[1] == "error" else None


def _found(dtype: str, raw: bytes) -> tuple[str, str, str] | None:
    """(counter, severity, message) of the worst value, None where all are sound."""
    values = array("d", numbers(dtype, raw))
    for i, v in enumerate(values):
        if not math.isfinite(v):
            return "non_finite", "error", f"scale {i}: found {v}, expected a finite number"
    for i, v in enumerate(values):
        if v < 0:
            return "negative", "warning", f"scale {i}: found {v}, expected a positive number"
    for i, v in enumerate(values):
        if v == 0:
            return "zero", "info", f"scale {i}: found {v}, which makes its block zero"
    return None
