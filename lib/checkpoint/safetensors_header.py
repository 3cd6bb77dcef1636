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
from contextlib import AbstractContextManager
from typing import Any

from ..errors import InputError
from . import header_entries, strict_json
from .folder import Readable
from .header import Header, noting_failures
from .regular_file import open_regular
from .sniff import what_is

MAX_HEADER = 100_000_000
"""Default cap of a header in bytes; the safetensors library has the same."""
_SNIFFED = 512


def read_header(path: str, file: str, max_header: int = MAX_HEADER) -> Header:
    """The header of a local file; as `header_of`.

    Args:
        path: absolute, links resolved.
        file: name for records and messages.
    """
    return header_of(open_regular(path, file), file, max_header)


def header_of(
    opening: AbstractContextManager[Readable], file: str, max_header: int = MAX_HEADER
) -> Header:
    """The header of a file. Nothing is raised for a bad one: its problems are in the result.

    Args:
        opening: the file, not yet open.
        file: name for records and messages.
        max_header: largest header to read, bytes.
    """
    header = Header(file)
    with noting_failures(header), opening as f:
        header.nbytes = f.nbytes
        prefix = f.read(0, 8)
        length = _length(header, prefix, max_header, lambda: f.read(0, _SNIFFED))
        if length is not None:
            _fill(header, f.read(8, length), length, lambda: f.read(0, _SNIFFED))
        header.bytes_read = f.bytes_read
        header.stamp = getattr(f, "stamp", None)
        if not f.unchanged():
            header.broken("changed-while-reading", "the file changed while its header was read")
    return header


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
