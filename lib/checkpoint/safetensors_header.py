"""Strict reader of safetensors headers; payload bytes are never read. Standard library only.

A file is: 8 bytes, the header's length N as a little-endian unsigned integer; N bytes of JSON, an
object that maps tensor names to {"dtype", "shape", "data_offsets": [begin, end]} and may be padded
with spaces; then the payloads, without holes or overlaps, to the end of the file. (The format's
README, "Format".)

The official reader accepts duplicate names and leading spaces; this one refuses all that the README
excludes, says what was found instead, and still lists the tensors that are sound.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, NtoolError, SourceNotFound
from . import header_entries, strict_json
from .regular_file import NotRegular, open_regular
from .sniff import what_is
from .tensor import Problem, Tensor

MAX_HEADER = 100_000_000
"""Default cap of a header in bytes; the safetensors library has the same."""
MAX_PROBLEMS = 1000
"""Findings that are listed of one file; a file made to be wrong could have millions."""
_SNIFFED = 512


@dataclass
class Header:
    """What the header of one file says.

    Attributes:
        file: name for records, relative to the checkpoint.
        tensors: the sound ones, in offset order.
        unsound: names that the header gives and that are not in `tensors`.
        metadata: `__metadata__`, strings only.
        problems: everything wrong with the file.
        nbytes: size of the file.
        bytes_read: bytes read of it.
    """

    file: str
    tensors: list[Tensor] = field(default_factory=list)
    unsound: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nbytes: int = 0
    bytes_read: int = 0

    def broken(self, code: str, message: str, name: str | None = None) -> None:
        """Note that the file breaks its format; after MAX_PROBLEMS only that there are more."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(code, message, file=self.file, name=name, malformed=True))
        elif len(self.problems) == MAX_PROBLEMS:
            message = f"more problems than the {MAX_PROBLEMS} that are listed"
            self.problems.append(Problem("more-problems", message, file=self.file, malformed=True))


def read_header(path: str, file: str, max_header: int = MAX_HEADER) -> Header:
    """The header of a local file. Nothing is raised for a bad file: its problems are in the result.

    Args:
        path: absolute, links resolved.
        file: name for records and messages.
        max_header: largest header to read, bytes.
    """
    header = Header(file)
    try:
        with open_regular(path, file) as f:
            header.nbytes = f.nbytes
            prefix = f.read(0, 8)
            length = _length(header, prefix, max_header, lambda: f.read(0, _SNIFFED))
            if length is not None:
                _fill(header, f.read(8, length), length, lambda: f.read(0, _SNIFFED))
            header.bytes_read = f.bytes_read
            if not f.unchanged():
                header.broken("changed-while-reading", "the file changed while its header was read")
    except NotRegular as e:
        header.broken("not-regular-file", _without(e, file))
    except SourceNotFound as e:
        header.broken("missing-shard", _without(e, file))
    except OSError as e:
        header.broken("unreadable", f"cannot be read: {e.strerror or e}")
    return header


def parse_header(first: bytes, raw: bytes, nbytes: int, file: str, max_header: int) -> Header:
    """The same from bytes that were read elsewhere (a range request).

    Args:
        first: the first 8 bytes of the file, or more.
        raw: bytes 8 to 8 + N; may be empty when `first` shows that there is no header.
        nbytes: size of the whole file.
    """
    header = Header(file, nbytes=nbytes)
    start = first + raw[: _SNIFFED - 8] if len(first) == 8 else first
    length = _length(header, first[:8], max_header, lambda: start)
    if length is not None:
        _fill(header, raw, length, lambda: start)
    return header


def _without(error: NtoolError, file: str) -> str:
    """The message without the file's name, which the record has in a field of its own."""
    return error.message.removeprefix(f"{file}: ")


def _length(header: Header, prefix: bytes, max_header: int, start: Any) -> int | None:
    """The header's length N, or None with the reason in `problems`."""
    size = header.nbytes
    if len(prefix) < 8:
        kind = what_is(prefix)
        if size == 0:
            header.broken("truncated", "empty file: found 0 bytes, expected at least 10")
        elif kind:
            header.broken("not-safetensors", f"not a safetensors file: it is {kind}")
        else:
            message = (
                f"ends inside the length of its header: found {size} bytes, expected at least 10"
            )
            header.broken("truncated", message)
        return None
    length: int = struct.unpack("<Q", prefix)[0]
    if 2 <= length <= min(size - 8, max_header):
        return length
    kind = what_is(start())
    if kind and not (kind == "JSON text" and length <= max_header):
        header.broken("not-safetensors", f"not a safetensors file: it is {kind}")
    elif length < 2:
        header.broken("bad-header", f"header length: found {length}, expected at least 2")
    elif length > size - 8 and length <= max(max_header, size):
        message = f"file ends before its header: found {size - 8} bytes, expected {length}"
        header.broken("truncated", message)
    elif length > size - 8:
        message = (
            f"not a safetensors file, or damaged: header length: found {length}, "
            f"expected at most {size - 8} (the rest of the file)"
        )
        header.broken("not-safetensors", message)
    else:
        expected = f"at most {max_header} bytes (raise --max-header)"
        message = f"header length: found {length}, expected {expected}"
        header.broken("header-too-large", message)
    return None


def _fill(header: Header, raw: bytes, length: int, start: Any) -> None:
    """Parse the header's JSON and put tensors, metadata and problems into `header`."""
    if len(raw) != length:
        message = f"file ends before its header: found {len(raw)} bytes, expected {length}"
        header.broken("truncated", message)
        return
    if not raw.startswith(b"{"):
        if raw.startswith(strict_json.BOM):
            found = "a UTF-8 byte order mark"
        else:
            kind = what_is(start())
            if kind:
                header.broken("not-safetensors", f"not a safetensors file: it is {kind}")
                return
            found = f"byte 0x{raw[0]:02x}"
        header.broken("bad-header", f"first byte of the header: found {found}, expected '{{'")
        return
    text = raw.rstrip(b" ")
    if not text.endswith(b"}"):
        kept = text.rstrip(b"\0\t\r\n\v\f ")
        if kept.endswith(b"}"):
            message = f"header padding: found byte 0x{text[-1]:02x}, expected spaces (0x20)"
            header.broken("bad-header", message)
            text = kept
    with strict_json.no_collector():
        if not header_entries.fill_sound(header, text, 8 + length):
            header_entries.fill_with_findings(header, text, 8 + length)


def require_sound(header: Header) -> None:
    """Raise the first thing wrong with a file, for readers that need all of it.

    Raises:
        InputError: names file, tensor, found and expected.
    """
    for p in header.problems:
        if p.severity == "error":
            raise InputError(": ".join(x for x in (p.file, p.name, p.message) if x))
