"""A bounded reader of protobuf messages by position. Standard library only.

Messages are declared (protobuf_fields.py) with the fields that are kept, checked, or counted. Byte
fields are noted by their place and not read, so a file with gigabytes of weights in it costs as
much as one without. Nothing here recurses: depth is bounded by protobuf's own limit.

Stricter than protobuf's own parsers, which keep a field of the wrong wire type as an unknown one,
merge a single field that occurs twice, and skip groups: all of these are refused, no writer of the
declared messages makes them. Source of the format: protobuf's "Encoding" page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .folder import Readable
from .protobuf_fields import (
    BYTES,
    COUNT,
    DROP,
    FIXEDS,
    INT,
    INTS,
    MANY,
    MESSAGE,
    ONE,
    SMALL,
    TEXT,
    VARINTS,
    Message,
    Span,
)

MAX_BYTES = 2**31 - 1
"""Bytes of one message, protobuf's own limit."""
MAX_DEPTH = 100
"""Messages inside the outermost one, protobuf's default limit."""
MAX_TEXT = 1 << 16
"""Longest text or list of dimensions that is kept, bytes."""
MAX_FIELDS = 20_000_000
MAX_MESSAGES = 1_000_000
"""What is parsed and kept of one file: a file made to be wrong could have a thousand times that."""
WHOLE = 32 << 20
"""A file up to this size is read at once, bytes."""
BLOCK = 64 << 10
"""First read after a skip, bytes; blocks double while nothing is skipped, up to 16 of these."""
_SHARED = 64
"""Longest message, in bytes, of which equal ones are parsed once."""
_SPARE = 32
"""Bytes that a tag and a length take at most, with room."""
_NOTED = 1000
_INT64, _INT32 = 2**63, 2**31

_NAMES = ("a varint", "64 bits", "bytes", "a group", "a group's end", "32 bits")
_TOO_LONG = re.compile(rb"[\x80-\xff]{10}")
_HIGH = bytes(range(128, 256))


class Fault(NamedTuple):
    """What is wrong with the encoding: `truncated`, `malformed`, `too-deep`, `too-large`,
    `not-utf-8`."""

    code: str
    message: str


@dataclass
class Parsed:
    """A message, as far as it could be read.

    Attributes:
        faults: all that is wrong with the encoding.
        complete: False when reading ended at the last fault; the rest is unknown then.
        open: messages that were being read at that point, and those that the file's end cuts.
    """

    message: Any
    faults: list[Fault] = field(default_factory=list)
    complete: bool = True
    open: list[Message] = field(default_factory=list)


class _Stop(Exception):
    """The encoding is broken; nothing after this point has a meaning."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(code, message)


def parse(source: Readable, kind: type[Message], first: bytes = b"") -> Parsed:
    """The message that is all of a file.

    Args:
        first: bytes at its start that were read already; all of a file up to WHOLE, or BLOCK.
    """
    return _Parser(source, first).run(kind)


def _varint(data: bytes, i: int) -> tuple[int, int]:
    """The varint at data[i], and the index behind it.

    Raises:
        _Stop: more than 10 bytes or 64 bits.
        IndexError: the data end inside.
    """
    value = shift = 0
    while True:
        byte = data[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise _Stop("malformed", "a varint of more than 10 bytes")
    if value >> 64:
        raise _Stop("malformed", "a varint of more than 64 bits")
    return value, i


def _signed(value: int) -> int:
    return value - 2**64 if value >= _INT64 else value


class _Parser:
    def __init__(self, source: Readable, first: bytes) -> None:
        self._source, self._first = source, first
        self._size = source.nbytes
        self._faults: list[Fault] = []
        self._noted: set[str] = set()
        self._clipped: list[Message] = []
        self._block = BLOCK
        self._after = -1

    def _load(self, at: int, count: int) -> bytes:
        """Bytes from `at` on: `count` of them and perhaps more; fewer only at the file's end."""
        left = self._size - at
        if at == 0 and self._first:
            data = self._first
        elif self._size <= WHOLE:
            data = self._source.read(at, left)
        else:
            following = at <= self._after + BLOCK
            self._block = min(2 * self._block, 16 * BLOCK) if following else BLOCK
            data = self._source.read(at, min(left, max(count, self._block)))
        if len(data) < min(count, left):
            raise _Stop("truncated", "the file became shorter while it was read")
        self._after = at + len(data)
        return data

    def _note(self, code: str, message: str) -> None:
        """A fault that reading survives; each is told once."""
        if message not in self._noted and len(self._noted) < _NOTED:
            self._noted.add(message)
            self._faults.append(Fault(code, message))

    def run(self, kind: type[Message]) -> Parsed:
        """Parse all of the file."""
        self._open: list[Message] = []
        root = kind()
        try:
            cut = self._run(kind, root)
        except _Stop as e:
            if not any(f.code == "truncated" for f in self._faults):
                self._faults.append(e.fault)
        except IndexError:
            if not any(f.code == "truncated" for f in self._faults):
                self._faults.append(Fault("truncated", "the file ends inside a field"))
        else:
            return Parsed(root, self._faults, not cut, self._clipped)
        return Parsed(root, self._faults, False, self._open + self._clipped)

    def _run(self, kind: type[Message], root: Message) -> bool:
        """The loop: one field at a time, whatever its depth. Local names, because it is hot.

        Returns whether the file was found to be cut (only then it goes on behind a fault).
        """
        cut = clipped = False
        data = self._load(0, _SPARE)
        base, have = 0, len(data)
        safe = have if have == self._size else have - _SPARE
        message, table, values = root, kind.table, root.__dict__
        end = stop = self._size
        memo: bytes | None = None
        # what is inside of what: message, table of its kind, its end, key under which it is shared
        stack: list[tuple[Message, dict[int, tuple[int, str, int, Any]], int, bytes | None]] = []
        self._open = opened = [root]
        shared: dict[type[Message], dict[bytes, Message]] = {}
        texts: dict[bytes, str] = {}
        fields_left, messages_left = MAX_FIELDS, MAX_MESSAGES
        i = 0
        more: Any
        while True:
            if i >= stop:
                if not stack:
                    return cut
                if memo is not None:
                    shared.setdefault(type(message), {})[memo] = message
                opened.pop()
                message, table, end, memo = stack.pop()
                values, stop = message.__dict__, end - base
                continue
            if i > safe:
                at = base + i
                data = self._load(at, _SPARE)
                base, have, i, stop = at, len(data), 0, end - at
                safe = have if base + have == self._size else have - _SPARE
            fields_left -= 1
            if not fields_left:
                raise _Stop("too-large", f"more than {MAX_FIELDS} fields")
            key = data[i]
            i += 1
            if key > 127:
                key, i = _varint(data, i - 1)
            entry = table.get(key)
            if entry is None:
                self._unknown(message, key)
                op, name, how, more = -1, "", DROP, 0
            else:
                op, name, how, more = entry
            wire = key & 7
            if wire != 2:
                at = i
                if wire == 0:
                    value = data[i]
                    i += 1
                    if value > 127:
                        value, i = _varint(data, i - 1)
                        if op == INT:
                            value = _signed(value)
                        elif op == SMALL:
                            value = _signed(value)
                            if not -_INT32 <= value < _INT32:
                                where = f"{type(message).__name__}.{name}"
                                self._note("malformed", f"{where}: {value} is not of 32 bits")
                else:
                    value = 0
                    i += 8 if wire == 1 else 4
                if i > stop:
                    raise self._overrun(message, name, i - stop)
                if how == ONE:
                    if name in values:
                        raise _Stop("malformed", f"{type(message).__name__}.{name} twice")
                    values[name] = value
                elif how == MANY:
                    try:
                        values[name].append(value)
                    except KeyError:
                        values[name] = [value]
                elif how == COUNT:
                    self._count(values, name, base + at, i - at, 1, False)
                continue
            n = data[i]
            i += 1
            if n > 127:
                n, i = _varint(data, i - 1)
            j = i + n
            if j > stop:
                if op != MESSAGE or (stack and not cut):
                    raise self._overrun(message, name, j - stop)
                # the file is cut, but the fields that are there are as good as in a whole one
                if not cut:
                    self._faults.append(self._overrun(message, name, j - stop).fault)
                cut, n, j = True, stop - i, stop
                clipped = True
            if op == TEXT:
                if n > MAX_TEXT:
                    if how != DROP:
                        where = f"{type(message).__name__}.{name}"
                        self._note("too-large", f"{where}: a text of {n} bytes")
                        self._put(message, name, how, "")
                    i = j
                    continue
                if j > have:
                    at = base + i
                    data = self._load(at, n)
                    base, have, i, j, stop = at, len(data), 0, n, end - at
                    safe = have if base + have == self._size else have - _SPARE
                raw = data[i:j]
                i = j
                text = texts.get(raw)
                if text is None:
                    text = texts[raw] = self._text(raw, message, name)
                if how == ONE:
                    if name in values:
                        raise _Stop("malformed", f"{type(message).__name__}.{name} twice")
                    values[name] = text
                elif how == MANY:
                    try:
                        values[name].append(text)
                    except KeyError:
                        values[name] = [text]
                continue
            if op == MESSAGE:
                if len(stack) >= MAX_DEPTH:
                    raise _Stop("too-deep", f"nested deeper than {MAX_DEPTH} messages")
                key_of = None
                if more.shared and not clipped:
                    # 64 bytes nest 32 messages at most: deeper down each is parsed, and counted
                    if n <= _SHARED and j <= have and len(stack) < MAX_DEPTH - _SHARED // 2:
                        key_of = data[i:j]
                        known = shared.get(more, {}).get(key_of)
                        if known is not None:
                            self._put(message, name, how, known)
                            i = j
                            continue
                elif memo is not None:  # it holds something that has a place
                    memo = None
                messages_left -= how != DROP
                if not messages_left:
                    raise _Stop("too-large", f"more than {MAX_MESSAGES} messages")
                stack.append((message, table, end, memo))
                inner = more()
                if how == MANY:
                    try:
                        values[name].append(inner)
                    except KeyError:
                        values[name] = [inner]
                else:
                    self._put(message, name, how, inner)
                message, table, values = inner, more.table, inner.__dict__
                opened.append(inner)
                if clipped:
                    self._clipped.append(inner)
                    clipped = False
                memo, stop, end = key_of, j, base + j
                continue
            if op == BYTES:
                if how == COUNT:
                    self._count(values, name, base + i, n, 1, False)
                elif how != DROP:
                    self._put(message, name, how, Span(base + i, n, n, True))
            elif op == FIXEDS:
                if n % more:
                    where = f"{type(message).__name__}.{name}"
                    raise _Stop("malformed", f"{where}: {n} bytes of {more}-byte values")
                if how == COUNT:
                    self._count(values, name, base + i, n, n // more, True)
            elif op == VARINTS:
                count = self._varints(data[i:j] if j <= have else None, base + i, n)
                if how == COUNT:
                    self._count(values, name, base + i, n, count, False)
            elif op == INTS:
                if n > MAX_TEXT:
                    raise _Stop("too-large", f"{type(message).__name__}.{name}: {n} bytes")
                if j > have:
                    at = base + i
                    data = self._load(at, n)
                    base, have, i, j, stop = at, len(data), 0, n, end - at
                    safe = have if base + have == self._size else have - _SPARE
                numbers = values.setdefault(name, [])
                while i < j:
                    value, i = _varint(data, i)
                    numbers.append(_signed(value))
                if i > j:
                    raise self._overrun(message, name, i - j)
            i = j

    def _put(self, message: Message, name: str, how: int, value: Any) -> None:
        values = message.__dict__
        if how == MANY:
            values.setdefault(name, []).append(value)
        elif how == ONE:
            if name in values:
                raise _Stop("malformed", f"{type(message).__name__}.{name} twice")
            values[name] = value

    def _count(
        self, values: dict[str, Any], name: str, start: int, nbytes: int, count: int, whole: bool
    ) -> None:
        known = values.get(name)
        if known is None:
            values[name] = Span(start, nbytes, count, whole)
        else:
            known.nbytes += nbytes
            known.count += count
            known.whole = False

    def _text(self, raw: bytes, message: Message, name: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            where = f"{type(message).__name__}.{name}"
            self._note("not-utf-8", f"{where} is not UTF-8: {raw[:60]!r}")
            return raw.decode(errors="backslashreplace")

    def _varints(self, data: bytes | None, start: int, nbytes: int) -> int:
        """Number of varints in a packed field; those that are not in memory are read by blocks."""
        count, tail, step = 0, b"", 16 * BLOCK
        for at in range(start, start + nbytes, step):
            size = min(step, start + nbytes - at)
            piece = data[at - start : at - start + size] if data is not None else None
            if piece is None:
                piece = self._source.read(at, size)
                if len(piece) < size:
                    raise _Stop("truncated", "the file became shorter while it was read")
            if _TOO_LONG.search(tail + piece):
                raise _Stop("malformed", "a varint of more than 10 bytes")
            tail = piece[-10:]
            count += len(piece.translate(None, _HIGH))
        if tail and tail[-1] > 127:
            raise _Stop("malformed", "a packed field ends inside a varint")
        return count

    def _overrun(self, message: Message, name: str, by: int) -> _Stop:
        where = type(message).__name__ + (f".{name}" if name else "")
        if len(self._open) == 1:
            return _Stop("truncated", f"the file ends {by} bytes before the end of {where}")
        return _Stop("malformed", f"{where} ends {by} bytes behind the message that holds it")

    def _unknown(self, message: Message, key: int) -> None:
        """A field that is not declared is skipped; the tag itself has to make sense.

        Raises:
            _Stop: it does not.
        """
        number, wire = key >> 3, key & 7
        where = type(message).__name__
        if not 0 < number < 2**29 or wire > 5:
            raise _Stop("malformed", f"{where}: no protobuf tag: field {number}, wire type {wire}")
        if wire in (3, 4):
            raise _Stop("malformed", f"{where}: field {number} is a group")
        known = message.numbers.get(number)
        if known is not None:
            raise _Stop(
                "malformed", f"{where}.{known.name}: found {_NAMES[wire]}, expected {known.kind}"
            )
