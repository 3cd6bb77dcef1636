"""Declaring protobuf messages: which fields a parser keeps, checks, or only counts."""

from __future__ import annotations

import re
from typing import Any, ClassVar, NamedTuple

_WIRES = {
    "int64": 0, "int32": 0, "uint64": 0, "enum": 0, "double": 1, "float": 5, "text": 2, "bytes": 2,
}  # fmt: skip
# what the parser does with a field that begins with a tag, and with its value
(INT, SMALL, WIDE, FIXED, TEXT, BYTES, MESSAGE, INTS, VARINTS, FIXEDS) = range(10)
_OPS = {
    "int64": INT, "int32": SMALL, "enum": SMALL, "uint64": WIDE, "double": FIXED,
    "float": FIXED, "text": TEXT, "bytes": BYTES,
}  # fmt: skip
DROP, ONE, MANY, COUNT = range(4)
_DECLARED = re.compile(r"(\w+)=(\d+):(\w+?)([*#]?)(-?)")


class Span:
    """Where the bytes of a field are.

    Attributes:
        start, nbytes: of the first piece in the file; bytes of all pieces together.
        count: values in it; of a byte field its bytes. `len` of the span.
        whole: the values lie behind each other, each in its fixed width.
    """

    __slots__ = ("count", "nbytes", "start", "whole")

    def __init__(self, start: int, nbytes: int, count: int, whole: bool) -> None:
        self.start, self.nbytes, self.count, self.whole = start, nbytes, count, whole

    def __len__(self) -> int:
        return self.count


class Field(NamedTuple):
    """A declared field. `repeated` and `kept` as the declaration says; `counted` ones keep no value
    but their number."""

    number: int
    name: str
    kind: str
    repeated: bool
    kept: bool
    counted: bool


class Message:
    """A message. Fields are attributes; one that is absent has its default, as in protobuf.

    `HasField`, `ListFields` and `WhichOneof` mean what they mean for the messages of the protobuf
    library, so that one rule can judge both.
    """

    fields: ClassVar[dict[str, Field]]
    oneof: ClassVar[frozenset[str]]
    shared: ClassVar[bool]
    table: ClassVar[dict[int, tuple[int, str, int, Any]]]
    numbers: ClassVar[dict[int, Field]]

    def HasField(self, name: str) -> bool:
        """Whether the field is there."""
        return name in self.__dict__

    def ListFields(self) -> list[tuple[Field, Any]]:
        """The kept fields that are there, with their values."""
        return [(self.fields[name], value) for name, value in self.__dict__.items()]

    def WhichOneof(self, group: str) -> str | None:
        """The member that is set of the message's one group, whatever that is called."""
        members = [n for n in self.__dict__ if n in self.oneof]
        return members[-1] if members else None


def declare(text: str) -> dict[str, type[Message]]:
    """Classes of messages, one a line: `Name field=number:kind ...`.

    Kinds are `int64`, `int32`, `uint64`, `enum`, `float`, `double`, `text` (UTF-8), `bytes` and
    names of messages. `*` after it: repeated. `#`: repeated, and only counted. `-`: checked and
    dropped. `!` after a message's name: equal ones may be one object. `|` before a field: member
    of the message's one group of which one is set.
    """
    kinds: dict[str, type[Message]] = {}
    lines = [line.split() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    for name, *_ in lines:
        plain = name.rstrip("!")
        kinds[plain] = type(plain, (Message,), {"shared": name != plain})
    for name, *declared in lines:
        kind = kinds[name.rstrip("!")]
        kind.fields, kind.table, kind.numbers = {}, {}, {}
        kind.oneof = frozenset(d[1:].split("=")[0] for d in declared if d.startswith("|"))
        for one in declared:
            match = _DECLARED.fullmatch(one.removeprefix("|"))
            assert match, one
            number, many, drop = int(match[2]), match[4], match[5]
            f = Field(number, match[1], match[3], bool(many), not drop, many == "#")
            kind.fields[f.name] = kind.numbers[number] = f
            _enter(kind, f, kinds)
    return kinds


def _enter(kind: type[Message], f: Field, kinds: dict[str, type[Message]]) -> None:
    """A field's ways to be written into the table by tag, and its default into the class."""
    how = DROP if not f.kept else COUNT if f.counted else MANY if f.repeated else ONE
    sub = kinds.get(f.kind)
    wire = _WIRES.get(f.kind, 2)
    width = {1: 8, 5: 4}.get(wire)
    op = MESSAGE if sub else _OPS[f.kind]
    kind.table[f.number << 3 | wire] = (op, f.name, how, sub or width)
    if f.repeated and wire != 2:  # also packed: all values behind each other in one byte field
        packed = FIXEDS if width else INTS if how == MANY else VARINTS
        kind.table[f.number << 3 | 2] = (packed, f.name, how, width)
    default: Any = "" if f.kind == "text" else Span(0, 0, 0, True) if f.kind == "bytes" else 0
    if sub:
        default = sub()
    setattr(kind, f.name, () if f.repeated else default)
