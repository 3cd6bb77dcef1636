"""Metadata of a GGUF file: its key/value pairs, checked, long ones summarised. Bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ..errors import shorten
from . import gguf_types
from .gguf_cursor import Cursor, Stopped
from .gguf_types import ARRAY, BOOL, STRING, VALUE_NAMES, VALUES
from .header import Header

MAX_PAIRS = 100_000
"""Most pairs that are read; real files have fewer than a hundred."""
MAX_DEPTH = 8
"""Nesting of arrays in arrays."""
MAX_ARRAYS = 1_000_000
"""Most arrays in arrays that are walked in one file."""
MAX_KEY = 65_535
"""Longest key, bytes (the format's own limit)."""
HEAD = 8
"""Elements of an array that are shown without `full`."""
MAX_TEXT = 65_536
"""Longest string that is shown whole without `full`, bytes; chat templates are shorter."""
MAX_FULL = 10 << 20
"""Bytes of the longest value that is shown whole with `full`: six characters of JSON for each are
what one record may have (`records.MAX_LINE`)."""
MAX_KEPT = 65_536
"""Longest array of numbers that is kept for the checks of a family, elements."""


@dataclass
class GgufHeader(Header):
    """The header of a GGUF file.

    `metadata` is for records: arrays and very long strings as {"type", "length", "head"}.

    Attributes:
        version: 2 or 3, or None where it could not be read.
        big_endian: byte order of the file, payloads included.
        alignment: of the data section and of each tensor in it, bytes.
        data_offset: start of the data section, or None where the header could not be read to its
            end.
        pair_count, tensor_count: as the file gives them.
        types: name of each value's type; of an array that of its elements in `ARRAY[...]`.
        values: for checks: numbers, strings, and arrays of at most MAX_KEPT numbers as lists; of
            other arrays their length.
    """

    version: int | None = None
    big_endian: bool = False
    alignment: int = 32
    data_offset: int | None = None
    pair_count: int = 0
    tensor_count: int = 0
    types: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Length:
    """Stands in `values` for an array that is not kept: its length."""

    length: int


def text_of(raw: bytes) -> tuple[str, bool]:
    """The text of a string, and whether it was UTF-8; bytes that are not are written as `\\xNN`."""
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace"), False


def quoted(key: str) -> str:
    """A key for a message."""
    return f"'{shorten(key, 80)}'"


class Pairs:
    """Reads the pairs of one file into its header.

    Args:
        full: arrays and long strings whole, up to MAX_FULL bytes.
    """

    def __init__(self, header: GgufHeader, cursor: Cursor, full: bool) -> None:
        self._header, self._cursor, self._full = header, cursor, full
        self._arrays = 0
        self._key = ""
        self._possible = True

    def read(self, count: int, possible: bool = True) -> None:
        """Read `count` pairs.

        Args:
            possible: False if there cannot be so many; then the first odd key ends the reading, for
                it is most likely none.
        Raises:
            Stopped: what follows cannot be read.
        """
        header, cursor = self._header, self._cursor
        self._possible = possible
        for i in range(count):
            if i == MAX_PAIRS:
                message = f"pairs of metadata: found {count}, expected at most {MAX_PAIRS}"
                raise Stopped("bad-header", message)
            cursor.inside = f"key {i + 1} of {count}"
            key = self._key = self._read_key()
            cursor.inside = f"the value of {quoted(key)}"
            kind = cursor.u32()
            type_name, shown, value = self._value(kind)
            if key in header.metadata:
                header.broken("duplicate-key", f"duplicate key {quoted(key)}")
                continue
            header.metadata[key] = shown
            header.types[key] = type_name
            header.values[key] = value

    def _read_key(self) -> str:
        length = self._cursor.u64()
        raw = self._cursor.take(length)
        key, _ = text_of(raw)
        message = ""
        if not 1 <= length <= MAX_KEY:
            message = f"length of key {quoted(key)}: found {length} bytes, expected 1 to {MAX_KEY}"
        elif not (raw.isascii() and key.isprintable() and " " not in key):
            message = f"key {quoted(key)}: expected printable ASCII without spaces"
        if message and not self._possible:
            raise Stopped("bad-key", message)
        if message:
            self._header.broken("bad-key", message)
        return shorten(key, MAX_KEY)

    def _value(self, kind: int) -> tuple[str, Any, Any]:
        """Type name, value for records, value for checks."""
        cursor = self._cursor
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array()
        fixed = VALUES.get(kind)
        if fixed is None:
            message = f"type of {quoted(self._key)}: found {kind}, expected 0 to 12"
            raise Stopped("bad-value", message)
        (value,) = cursor.numbers(fixed.code, 1, fixed.nbytes)
        if kind == BOOL:
            if value > 1:
                message = f"{quoted(self._key)}: found {value}, expected 0 or 1 for BOOL"
                self._header.broken("bad-value", message)
            value = bool(value)
        shown = None if isinstance(value, float) and not math.isfinite(value) else value
        return fixed.name, shown, value

    def _string(self) -> tuple[str, Any, Any]:
        raw = self._cursor.string()
        text, sound = text_of(raw)
        if not sound:
            self._header.broken("bad-string", f"{quoted(self._key)}: not UTF-8")
        if len(raw) <= (MAX_FULL if self._full else MAX_TEXT):
            return "STRING", text, text
        head = {"type": "STRING", "length": len(raw), "head": text[:1000]}
        return "STRING", head, text

    def _array(self) -> tuple[str, Any, Any]:
        cursor = self._cursor
        start = cursor.pos
        summary = self._walk(1)
        end = cursor.pos
        kind, length = summary["type"], summary["length"]
        shown: Any = summary
        value: Any = Length(length)
        whole = self._full and end - start <= MAX_FULL
        kept = kind not in ("STRING", "ARRAY") and length <= MAX_KEPT
        if whole or kept:
            cursor.pos = start
            items = self._items()
            cursor.pos = end
            value = items if kept else value
            shown = _finite(items) if whole else shown
        return f"ARRAY[{kind}]", shown, value

    def _walk(self, depth: int) -> dict[str, Any]:
        """Go behind an array, checking it; its type, length and head."""
        cursor = self._cursor
        kind, length = cursor.array_head()
        if kind == STRING:
            head = self._walk_strings(length)
        elif kind == ARRAY:
            head = self._walk_arrays(length, depth)
        elif kind in VALUES:
            fixed = VALUES[kind]
            nbytes = length * fixed.nbytes
            cursor.need(nbytes)
            start = cursor.pos
            if kind == BOOL:
                raw = cursor.buf[start : start + nbytes]
                wrong = length - raw.count(0) - raw.count(1)
                if wrong:
                    message = f"{quoted(self._key)}: {wrong} elements are neither 0 nor 1"
                    self._header.broken("bad-value", f"{message}, expected for BOOL")
            head = _finite(self._numbers(kind, min(length, HEAD)))
            cursor.pos = start + nbytes
        else:
            message = f"type of the elements of {quoted(self._key)}: found {kind}, expected 0 to 12"
            raise Stopped("bad-value", message)
        return {"type": VALUE_NAMES[kind], "length": length, "head": head if depth <= 2 else []}

    def _numbers(self, kind: int, count: int) -> list[Any]:
        fixed = gguf_types.VALUES[kind]
        values = self._cursor.numbers(fixed.code, count, fixed.nbytes)
        return list(map(bool, values)) if kind == BOOL else list(values)

    def _walk_strings(self, length: int) -> list[str]:
        cursor = self._cursor
        start = cursor.pos
        long = cursor.skip_strings(length)
        end = cursor.pos
        at = _not_utf8(cursor.buf, start, end, long)
        if at is not None:
            number = cursor.strings_before(start, at)
            message = f"{quoted(self._key)}: string {number}, from 0, is not UTF-8"
            self._header.broken("bad-string", f"{message} (others may not be either)")
        cursor.pos = start
        head = [text_of(cursor.string())[0] for _ in range(min(length, HEAD))]
        cursor.pos = end
        return [shorten(t, 1000) for t in head]

    def _walk_arrays(self, length: int, depth: int) -> list[Any]:
        cursor = self._cursor
        if depth == MAX_DEPTH:
            message = f"{quoted(self._key)}: arrays nest deeper than {MAX_DEPTH} levels"
            raise Stopped("bad-value", message)
        cursor.need(12 * length)
        self._arrays += length
        if self._arrays > MAX_ARRAYS:
            message = f"{quoted(self._key)}: more than {MAX_ARRAYS} arrays in arrays"
            raise Stopped("bad-value", message)
        head = []
        for i in range(length):
            inner = self._walk(depth + 1)
            if i < HEAD:
                head.append(inner)
        return head

    def _items(self) -> list[Any]:
        """All elements of the array that begins here; `_walk` has checked them."""
        kind, length = self._cursor.array_head()
        if kind == STRING:
            return [text_of(self._cursor.string())[0] for _ in range(length)]
        if kind == ARRAY:
            return [self._items() for _ in range(length)]
        return self._numbers(kind, length)


def _finite(values: list[Any]) -> list[Any]:
    """NaN and infinities as None, at any depth."""
    if values and isinstance(values[0], list):
        return [_finite(v) for v in values]
    if not (values and isinstance(values[0], float)):
        return values
    return [v if math.isfinite(v) else None for v in values]


def _not_utf8(buf: bytes, start: int, end: int, long: list[int]) -> int | None:
    """Position of the first byte that is not UTF-8 in the strings between two positions, or None.

    Lengths and strings are decoded together: the length of a string of at most 127 bytes is ASCII
    by itself, so it can neither complete a broken character nor be part of one. Where a longer
    string begins the text is cut, and its length left out.

    Args:
        long: positions of the strings of more than 127 bytes.
    """
    if buf[start:end].isascii():
        return None
    for position in (*long, end):
        try:
            buf[start:position].decode("utf-8")
        except UnicodeDecodeError as e:
            return start + e.start
        start = position + 8
    return None
