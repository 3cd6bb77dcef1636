"""The entries of a safetensors header: a quick pass for sound files, a thorough one for others.

The quick pass accepts only files in which nothing at all is wrong; it must finish a million entries
in seconds. When it declines, the thorough pass looks at every entry by itself and reports each
finding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import header_text, strict_json
from .header_text import MAX_AXES, METADATA
from .strict_json import MAX_INTEGER, NotANumber
from .tensor import BITS, Problem, Tensor

if TYPE_CHECKING:
    from .safetensors_header import Header

_KNOWN = {dtype: (bits, dtype) for dtype, bits in BITS.items()}
"""Bits of a dtype, and its name as one object: a parsed header has a copy for each tensor."""
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))
_ALL_BUT_BRACKETS = bytes(c for c in range(256) if c not in b"[]{}")


def _quick_json(text: bytes) -> dict[str, Any] | None:
    """The header's object if its nesting is the expected one and no key occurs twice, else None.

    Duplicate keys are found without a Python call for each object: the colons of the text are those
    between keys and values plus those inside strings, so when the parsed keys and strings account
    for every colon, the parser dropped nothing. An escaped colon would falsify the count, hence its
    exclusion.
    """
    brackets = text.translate(None, _ALL_BUT_BRACKETS)
    entries = brackets.count(b"{[][]}")
    if len(brackets) - 6 * entries not in (2, 4):
        return None
    # one byte is looked for forty times as fast as two, and names without any escape are the rule
    if b"\\" in text and b"\\u" in text:
        return None
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if type(header) is not dict:
        return None
    colons = len(header) + 3 * entries + "".join(header).count(":")
    metadata = header.get(METADATA)
    if metadata is not None:
        if type(metadata) is not dict or entries != len(header) - 1:
            return None
        if metadata and set(map(type, metadata.values())) != {str}:
            return None
        colons += len(metadata) + sum(k.count(":") + v.count(":") for k, v in metadata.items())
    elif entries != len(header):
        return None
    return header if text.count(b":") == colons else None


def fill_sound(header: Header, text: bytes, payload: int) -> bool:
    """Fill `header` from a text with nothing wrong; False, with `header` as it was, if anything is.

    Args:
        text: the JSON without its padding.
        payload: position in the file where payloads begin.
    """
    if header.problems:
        return False
    usual = header_text.columns(text, header.file, payload, header.nbytes)
    if usual is not None:
        header.tensors, metadata = usual
        header.metadata = dict(metadata)
        return True
    entries = _quick_json(text)
    if entries is None:
        return False
    metadata = entries.pop(METADATA, {})
    try:
        tensors = _touching(entries.items(), header.file, payload)
        if tensors is None:  # perhaps only not written in offset order
            by_offset = sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
            tensors = _touching(by_offset, header.file, payload)
    except (KeyError, TypeError, ValueError):
        return False
    end = tensors[-1].offset + tensors[-1].nbytes if tensors else payload
    if tensors is None or end != header.nbytes:
        return False
    header.tensors = tensors
    header.metadata = metadata
    return True


def _touching(rows: Iterable[tuple[str, Any]], file: str, payload: int) -> list[Tensor] | None:
    """The tensors of sound entries in offset order, else None (or an error of Python's)."""
    known, make, limit = _KNOWN, tuple.__new__, MAX_INTEGER
    tensors: list[Tensor] = []
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # one tuple for all tensors of a shape
    add, one = tensors.append, shapes.setdefault
    at = 0
    for name, entry in rows:
        begin, end = entry["data_offsets"]
        shape = entry["shape"]
        bits, dtype = known[entry["dtype"]]
        if (
            begin != at
            or type(begin) is not int
            or type(end) is not int
            or type(shape) is not list
            or len(entry) != 3
            or len(shape) > MAX_AXES
        ):
            return None
        for d in shape:
            if type(d) is not int or not 0 <= d <= limit:
                return None
            bits *= d
        nbytes = end - begin
        if nbytes << 3 != bits or nbytes < 0:
            return None
        # what Tensor(...) does, without the call between: a quarter of the time of this loop
        dims = tuple(shape)
        dims = one(dims, dims)
        add(make(Tensor, (name, dtype, dims, file, payload + begin, nbytes, None, None)))
        at = end
    return tensors


def fill_with_findings(header: Header, text: bytes, payload: int) -> None:
    """Fill `header` with what is sound, and its problems with everything that is not."""
    decoded, fault = strict_json.decode(text)
    if decoded is None:
        assert fault is not None
        header.broken("bad-header", f"header: {fault.message}")
        return
    entries, faults = strict_json.parse(decoded)
    for fault in faults:
        code = fault.code if fault.code == "duplicate-key" else "bad-header"
        header.broken(code, f"header: {fault.message}")
    if entries is None:
        return
    if not isinstance(entries, dict):
        header.broken("bad-header", "header: expected a JSON object")
        return
    if METADATA in entries:
        _metadata(header, entries.pop(METADATA))
    ranges: list[tuple[int, int, str]] = []
    sound: dict[str, Tensor] = {}
    for name, entry in entries.items():
        tensor = _entry(header, name, entry, payload, ranges)
        if tensor is not None:
            sound[name] = tensor
    complete = len(ranges) == len(entries)
    for name in _layout(header, ranges, header.nbytes - payload, complete):
        tensor = sound.pop(name, None)
        if tensor is not None and tensor.offset + tensor.nbytes > header.nbytes:
            header.cut.append(tensor)
    header.tensors = sorted(sound.values(), key=lambda t: (t.offset, t.nbytes))
    header.unsound = [name for name in entries if name not in sound]


def _metadata(header: Header, value: Any) -> None:
    """`__metadata__`: a map of strings; null counts as absent, as in the official reader."""
    if value is None:
        message = "__metadata__ is null: read as absent"
        header.problems.append(
            Problem("null-metadata", message, severity="warning", file=header.file)
        )
        return
    if not isinstance(value, dict):
        found = type(value).__name__
        header.broken("bad-metadata", f"__metadata__: found {found}, expected a map of strings")
        return
    for key, text in value.items():
        if not isinstance(text, str):
            found = json.dumps(text, default=repr)[:60]
            header.broken(
                "bad-metadata", f"__metadata__ key '{key}': found {found}, expected a string"
            )
        elif strict_json.first_lone_surrogate((key, text)) is not None:
            header.broken("bad-metadata", f"__metadata__ key '{key}': holds a lone surrogate")
        else:
            header.metadata[key] = text


def _show(value: Any) -> str:
    text = repr(value) if isinstance(value, NotANumber) else json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INTEGER


def _entry(
    header: Header, name: str, entry: Any, payload: int, ranges: list[tuple[int, int, str]]
) -> Tensor | None:
    """One tensor by itself, or None with its problems noted; its range joins `ranges`."""

    sound = True

    def broken(code: str, message: str) -> None:
        nonlocal sound
        sound = False
        header.broken(code, message, name=name)

    if strict_json.has_lone_surrogate(name):
        broken("bad-header", "name holds a lone surrogate")
    if not isinstance(entry, dict):
        broken("bad-header", f"entry: found {_show(entry)}, expected an object")
        return None
    if entry.keys() != _FIELDS:
        missing = ", ".join(sorted(_FIELDS - entry.keys()))
        extra = ", ".join(sorted(entry.keys() - _FIELDS))[:100]
        found = "; ".join(x for x in (missing and f"no {missing}", extra and f"also {extra}") if x)
        broken("bad-header", f"entry: found {found}, expected exactly dtype, shape, data_offsets")
    dtype = entry.get("dtype")
    bits = BITS.get(dtype) if isinstance(dtype, str) else None
    if "dtype" in entry and bits is None:
        code = "unknown-dtype" if isinstance(dtype, str) else "bad-header"
        broken(code, f"dtype: found {_show(dtype)}, expected one of {', '.join(BITS)}")
    nbytes = _offsets(entry, broken, name, ranges)
    count = _elements(entry, broken)
    if bits is not None and count is not None and nbytes is not None:
        total = count * bits
        if total % 8:
            broken(
                "size-mismatch",
                f"{count} elements of {bits} bits: found {total} bits, expected whole bytes",
            )
        elif total // 8 != nbytes:
            message = f"size of {dtype} {_show(entry['shape'])}"
            broken("size-mismatch", f"{message}: found {nbytes} bytes, expected {total // 8}")
    if not sound or nbytes is None:
        return None
    begin = entry["data_offsets"][0]
    shape = tuple(entry["shape"])
    return Tensor(name, str(dtype), shape, header.file, payload + begin, nbytes)


def _elements(entry: dict[str, Any], broken: Any) -> int | None:
    """Number of elements of the shape, or None."""
    if "shape" not in entry:
        return None
    shape = entry["shape"]
    if not isinstance(shape, list):
        broken("bad-shape", f"shape: found {_show(shape)}, expected a list of integers")
        return None
    for d in shape:
        if not _integer(d):
            code = "overflow" if type(d) is int and d > MAX_INTEGER else "bad-shape"
            broken(code, f"shape: found {_show(d)}, expected integers from 0 to 2^63-1")
            return None
    if 0 in shape:
        return 0
    count = 1
    for d in shape:
        count *= d
        if count > MAX_INTEGER:
            broken("overflow", f"elements of shape {_show(shape)}: expected at most 2^63-1")
            return None
    return count


def _offsets(
    entry: dict[str, Any], broken: Any, name: str, ranges: list[tuple[int, int, str]]
) -> int | None:
    """Bytes between the two offsets, or None."""
    if "data_offsets" not in entry:
        return None
    offsets = entry["data_offsets"]
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(map(_integer, offsets))
        or offsets[0] > offsets[1]
    ):
        expected = "[begin, end] with 0 <= begin <= end <= 2^63-1"
        broken("bad-offsets", f"data_offsets: found {_show(offsets)}, expected {expected}")
        return None
    begin, end = offsets
    ranges.append((begin, end, name))
    return int(end - begin)


def _layout(
    header: Header, ranges: list[tuple[int, int, str]], size: int, complete: bool
) -> list[str]:
    """Check that the ranges cover the payload once and without holes.

    Returns the names whose bytes are in doubt.

    Args:
        ranges: (begin, end, name), relative to the payload.
        size: bytes of payload that the file has.
        complete: every entry has a range; otherwise a hole may be that of an entry without one.
    """
    doubtful = []
    at, last = 0, None
    for begin, end, name in sorted(ranges):
        if begin > at and complete:
            message = f"hole before its payload: begins at {begin}, expected {at}"
            header.broken("hole", message, name=name)
        elif begin < at:
            message = f"overlaps '{last}': begins at {begin}, expected {at} or later"
            header.broken("overlap", message, name=name)
            doubtful += [name, str(last)]
        if end > size:
            doubtful.append(name)
        if end >= at:
            at, last = end, name
    if at > size:
        message = (
            f"file is short by {at - size} bytes: found {size} bytes of payload, expected {at}"
        )
        header.broken("truncated", message, name=last)
    elif at < size and complete:
        left = size - at
        message = f"{left} bytes follow the last tensor: found {size} of payload, expected {at}"
        header.broken("trailing-bytes", message)
    return doubtful
