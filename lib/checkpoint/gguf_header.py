"""Strict reader of GGUF headers; payload bytes are never looked at. Standard library only.

A file is: `GGUF`, version, number of tensors, number of pairs; the key/value pairs; a record for
each tensor (name, dimensions with the innermost first, type, offset in the data section); padding
to `general.alignment`; the data section, in which each tensor begins at a multiple of the
alignment. (ggml's document of the format; where it is silent, what ggml's own reader demands.)

The header has no length of its own, so it is read in blocks, and the last of them may reach into
the data section. The `gguf` package accepts much that is refused here, and is a hundred times
slower.
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from dataclasses import dataclass

from .folder import Readable
from .gguf_cursor import Cursor, Stopped
from .gguf_files import MAGIC
from .gguf_types import TENSORS, TensorType, unknown_type
from .gguf_values import GgufHeader, Pairs, text_of
from .header import noting_failures
from .regular_file import open_regular
from .safetensors_header import MAX_HEADER
from .sniff import what_is
from .strict_json import MAX_INTEGER
from .tensor import Problem, Tensor

VERSIONS = (2, 3)
MAX_TENSORS = 300_000
"""Most tensors that are read; the largest checkpoints of any format have half as many."""
MAX_ALIGNMENT = 65_536
MAX_DIMS = 4
"""Dimensions of a tensor in ggml."""
_MAX_SKIPPED_DIMS = 64
"""A record that claims more dimensions than that is taken for garbage, and so is what follows."""
MAX_NAME = 64
"""Longest name by the format's document, bytes; image models exceed it, so this is a warning."""
_FIXED, _LEAST_PAIR, _LEAST_TENSOR = 24, 13, 24


def read_gguf(path: str, file: str, *, full: bool = False) -> GgufHeader:
    """The header of a local file; as `gguf_header_of`.

    Args:
        path: absolute, links resolved.
        file: name for records and messages.
    """
    return gguf_header_of(open_regular(path, file), file, full=full)


def gguf_header_of(
    opening: AbstractContextManager[Readable],
    file: str,
    *,
    full: bool = False,
    max_header: int = MAX_HEADER,
) -> GgufHeader:
    """The header of a file. Nothing is raised for a bad one: its problems are in the result.

    Args:
        opening: the file, not yet open.
        file: name for records and messages.
        full: long values of the metadata whole (`gguf_values.MAX_FULL`).
        max_header: largest header to read, bytes.
    """
    header = GgufHeader(file)
    with noting_failures(header), opening as f:
        header.nbytes = f.nbytes
        cursor = Cursor(f, max_header)
        try:
            _fill(header, cursor, full)
        except Stopped as e:
            header.broken(e.code, e.message)
        header.bytes_read = f.bytes_read
        if not f.unchanged():
            header.broken("changed-while-reading", "the file changed while its header was read")
    return header


def _fill(header: GgufHeader, cursor: Cursor, full: bool) -> None:
    _begin(header, cursor)
    header.tensor_count, header.pair_count = cursor.u64(), cursor.u64()
    most = cursor.left // _LEAST_PAIR
    try:
        Pairs(header, cursor, full).read(header.pair_count, header.pair_count <= most)
    except Stopped as e:
        if header.pair_count > most and e.code != "truncated":
            message = f"pairs of metadata: found {header.pair_count}, expected at most {most}"
            header.broken("bad-header", f"{message} in a file of {header.nbytes} bytes")
        raise
    _alignment(header)
    most = cursor.left // _LEAST_TENSOR
    if header.tensor_count > most:
        message = f"tensors: found {header.tensor_count}, expected at most {most}"
        raise Stopped("truncated", f"{message} in the {cursor.left} bytes that are left")
    if header.tensor_count > MAX_TENSORS:
        message = f"tensors: found {header.tensor_count}, expected at most {MAX_TENSORS}"
        raise Stopped("bad-header", message)
    records = _Records(header, cursor)
    try:
        records.read()
    except Stopped:
        header.unsound = records.names  # none of their payloads can be placed
        raise
    header.data_offset = -(-cursor.pos // header.alignment) * header.alignment
    records.place(header.data_offset)


def _begin(header: GgufHeader, cursor: Cursor) -> None:
    """Magic and version; sets the byte order."""
    start = cursor.buf[:512]
    if not start.startswith(MAGIC):
        kind = "an empty file" if not start else what_is(start)
        found = kind or f"a file that begins with {start[:4].hex(' ')}"
        code = "truncated" if MAGIC.startswith(start) else "not-gguf"
        raise Stopped(code, f"not a GGUF file: it is {found}")
    cursor.inside = "the first 24 bytes"
    cursor.pos = len(MAGIC)
    raw = cursor.take(4)
    little, big = (struct.unpack(f"{order}I", raw)[0] for order in "<>")
    # a version fits into two bytes, so that one of the two readings is absurd
    version = big if little & 0xFFFF == 0 and big else little
    if version not in VERSIONS:
        found = "1 (its counts have 4 bytes; no tool writes it now)" if version == 1 else version
        raise Stopped("bad-version", f"GGUF version: found {found}, expected 2 or 3")
    header.version = version
    if version == big and version != little:
        header.big_endian = True
        cursor.use_order(">")
        message = "the file is big-endian, payloads included"
        _note(header, "big-endian", message, "info")


def _alignment(header: GgufHeader) -> None:
    """`general.alignment`; what can be computed with is, so that tensors are listed all the same.

    ggml demands a power of two, its document a multiple of 8.
    """
    key = "general.alignment"
    if key not in header.values:
        return
    value, kind = header.values[key], header.types[key]
    expected = f"a power of two from 8 to {MAX_ALIGNMENT}, as UINT32"
    if kind != "UINT32":
        header.broken("bad-alignment", f"{key}: found a value of type {kind}, expected {expected}")
        return
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        header.broken("bad-alignment", f"{key}: found {value}, expected {expected}")
    if value:
        header.alignment = value


def _note(
    header: GgufHeader, code: str, message: str, severity: str, name: str | None = None
) -> None:
    header.problems.append(Problem(code, message, severity, file=header.file, name=name))


@dataclass(slots=True)
class _Record:
    """A tensor as the file gives it; `kind` is None and `offset` -1 where they are not sound."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType | None
    nbytes: int
    offset: int


class _Records:
    """The tensor records of one file."""

    def __init__(self, header: GgufHeader, cursor: Cursor) -> None:
        self._header, self._cursor = header, cursor
        self._records: list[_Record] = []
        self._doubtful: set[str] = set()
        self._long: list[str] = []
        self.names: list[str] = []

    def read(self) -> None:
        """Read all records.

        Raises:
            Stopped: what follows cannot be read.
        """
        cursor = self._cursor
        count = self._header.tensor_count
        seen: set[str] = set()
        try:
            for i in range(count):
                cursor.inside = f"the record of tensor {i + 1} of {count}"
                record = self._record()
                if record.name in seen:
                    self._broken("duplicate-tensor", "two records have this name", record.name)
                    self._doubtful.add(record.name)
                else:
                    seen.add(record.name)
                    self.names.append(record.name)
                self._records.append(record)
        finally:
            self._note_long_names()

    def _broken(self, code: str, message: str, name: str) -> None:
        self._header.broken(code, message, name=name)

    def _note_long_names(self) -> None:
        if self._long:
            longest = max(len(n.encode()) for n in self._long)
            message = f"longer than the {MAX_NAME} bytes of the format's document"
            if len(self._long) > 1:
                message += f", like {len(self._long) - 1} other names"
            message += f": found {longest}"
            _note(self._header, "long-name", message, "warning", self._long[0])

    def _record(self) -> _Record:
        cursor = self._cursor
        name = self._name(cursor.string())
        rank = cursor.u32()
        if rank > _MAX_SKIPPED_DIMS:
            self._broken("bad-shape", f"dimensions: found {rank}, expected 1 to {MAX_DIMS}", name)
            message = f"records from tensor '{name}' on are not read"
            raise Stopped("bad-header", message)
        dims = cursor.numbers("Q", rank, 8)
        number = cursor.u32()
        offset = cursor.u64()
        kind = TENSORS.get(number)
        if kind is None:
            self._broken("unknown-dtype", f"type: {unknown_type(number)}", name)
        nbytes = self._nbytes(name, dims, kind)
        if nbytes is None:
            kind = None
        return _Record(name, dims[::-1], kind, nbytes or 0, self._offset(name, offset))

    def _name(self, raw: bytes) -> str:
        name, sound = text_of(raw)
        if not sound:
            self._broken("bad-name", "name: not UTF-8", name)
        elif not raw:
            self._broken("bad-name", "name: found no bytes, expected at least 1", name)
        elif "\0" in name:
            self._broken("bad-name", "name: holds a zero byte, at which others end it", name)
        else:
            if len(raw) > MAX_NAME:
                self._long.append(name)
            return name
        self._doubtful.add(name)
        return name

    def _nbytes(self, name: str, dims: tuple[int, ...], kind: TensorType | None) -> int | None:
        """Bytes of a tensor, or None with the reason noted."""
        rank = len(dims)
        if not 1 <= rank <= MAX_DIMS:
            message = f"dimensions: found {rank}, expected 1 to {MAX_DIMS}"
            self._broken("bad-shape", message, name)
            return None
        count = 1
        for d in dims:
            if not 1 <= d <= MAX_INTEGER:
                code = "overflow" if d > MAX_INTEGER else "bad-shape"
                self._broken(code, f"dimension: found {d}, expected 1 to 2^63-1", name)
                return None
            count *= d
        shown = list(dims[::-1])
        if count > MAX_INTEGER:
            message = f"elements of shape {shown}: found {count}, expected at most 2^63-1"
            self._broken("overflow", message, name)
            return None
        if kind is None:
            return None
        if dims[0] % kind.elements:
            message = f"innermost dimension: found {dims[0]}, expected a multiple of "
            self._broken("bad-shape", f"{message}{kind.elements} for {kind.name}", name)
            return None
        nbytes = count // kind.elements * kind.nbytes
        if nbytes > MAX_INTEGER:
            self._broken("overflow", f"bytes of {kind.name} {shown}: more than 2^63-1", name)
            return None
        return nbytes

    def _offset(self, name: str, offset: int) -> int:
        """The offset, or -1 with the reason noted."""
        alignment = self._header.alignment
        if offset > MAX_INTEGER:
            self._broken("bad-offset", f"offset: found {offset}, expected at most 2^63-1", name)
        elif offset % alignment:
            message = f"offset: found {offset}, expected a multiple of {alignment}"
            self._broken("bad-offset", message, name)
        else:
            return offset
        return -1

    def place(self, base: int) -> None:
        """Check the ranges of all tensors in the data section; list what is sound.

        Args:
            base: start of the data section in the file.
        """
        header = self._header
        known = [r for r in self._records if r.kind is not None and r.offset >= 0]
        complete = len(known) == len(self._records)
        self._in_order()
        in_file = sorted(known, key=lambda r: (r.offset, r.nbytes))
        self._layout(in_file, complete, header.nbytes - base)
        sound: dict[str, Tensor] = {}
        for r in in_file:
            assert r.kind is not None
            if r.name not in self._doubtful:
                sound[r.name] = Tensor(
                    r.name, r.kind.dtype, r.shape, header.file, base + r.offset, r.nbytes
                )
        header.tensors = list(sound.values())
        header.unsound = [n for n in self.names if n not in sound]

    def _in_order(self) -> None:
        """Offsets rise from record to record; ggml reads them in no other order."""
        at, last = -1, ""
        for r in self._records:
            if r.offset < 0:
                continue
            if r.offset < at:
                message = f"offset: found {r.offset}, expected more than {at}, that of '{last}'"
                self._broken("bad-offset", message, r.name)
            at, last = r.offset, r.name

    def _layout(self, in_file: list[_Record], complete: bool, size: int) -> None:
        """Tensors do not overlap and lie inside the file; the names of those that do not become
        doubtful.

        Args:
            in_file: in offset order.
            complete: all tensors of the file are among them; otherwise a hole may be another's.
            size: bytes of the data section that the file has.
        """
        header, alignment = self._header, self._header.alignment
        end, last = 0, ""
        holes: list[tuple[str, int]] = []
        cut: list[str] = []
        for r in in_file:
            expected = -(-end // alignment) * alignment
            if r.offset < end:
                message = f"overlaps '{last}': begins at {r.offset}, expected {end} or later"
                self._broken("overlap", message, r.name)
                self._doubtful.update((r.name, last))
            elif r.offset > expected:
                holes.append((r.name, r.offset - expected))
            stop = r.offset + r.nbytes
            if stop > size:
                cut.append(r.name)
            if stop >= end:
                end, last = stop, r.name
        if cut:
            self._doubtful.update(cut)
            have = max(size, 0)
            message = (
                f"file is short by {end - size} bytes: found {have} bytes of payload, expected "
                f"{end}; tensors cut or absent: {len(cut)}, this is the first"
            )
            self._broken("truncated", message, cut[0])
        if holes and complete:
            lost = sum(n for _, n in holes)
            message = f"a hole before its payload; all holes: {len(holes)}, {lost} bytes"
            _note(header, "hole", f"{message} (ggml refuses such a file)", "warning", holes[0][0])
        padded = -(-end // alignment) * alignment
        if complete and size > padded:
            message = f"{size - padded} bytes follow the last tensor: found {size} of payload"
            _note(header, "trailing-bytes", f"{message}, expected {padded}", "warning")
