"""Makes GGUF files byte by byte, sound and broken, in both byte orders."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import Any, NamedTuple

from ntool.lib.checkpoint.gguf_header import gguf_header_of
from ntool.lib.checkpoint.gguf_values import GgufHeader

from .header_files import InMemory

CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


class T(NamedTuple):
    """A tensor as the file gives it: dims innermost first, number of the type, bytes."""

    name: str | bytes
    dims: Sequence[int]
    kind: int = 0
    nbytes: int | None = None
    offset: int | None = None


class Maker:
    """Makes files of one byte order."""

    def __init__(self, order: str = "<") -> None:
        self.order = order

    def number(self, code: str, *values: Any) -> bytes:
        return struct.pack(f"{self.order}{len(values)}{code}", *values)

    def string(self, text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return self.number("Q", len(raw)) + raw

    def value(self, kind: int, value: Any) -> bytes:
        """A value without its type; of an array `value` is (type of elements, elements)."""
        if kind == STRING:
            return self.string(value)
        if kind == ARRAY:
            inner, items = value
            head = self.number("I", inner) + self.number("Q", len(items))
            return head + b"".join(self.value(inner, v) for v in items)
        return self.number(CODES[kind], value)

    def pair(self, key: str | bytes, kind: int, value: Any) -> bytes:
        return self.string(key) + self.number("I", kind) + self.value(kind, value)

    def record(self, t: T, offset: int) -> bytes:
        head = self.string(t.name) + self.number("I", len(t.dims)) + self.number("Q", *t.dims)
        return head + self.number("I", t.kind) + self.number("Q", offset)

    def file(
        self,
        pairs: Sequence[bytes] = (),
        tensors: Sequence[T] = (),
        *,
        version: int = 3,
        alignment: int = 32,
        pair_count: int | None = None,
        tensor_count: int | None = None,
        padded: bool = True,
        extra: int = 0,
    ) -> bytes:
        """A file; its payload is of zeros. `nbytes` of a tensor is 4 an element unless given."""
        at, records = 0, []
        for t in tensors:
            offset = at if t.offset is None else t.offset
            records.append(self.record(t, offset))
            nbytes = 4 * prod(t.dims) if t.nbytes is None else t.nbytes
            at = offset + nbytes
            end = at
            at += -at % alignment
        raw = b"GGUF" + self.number("I", version)
        raw += self.number("Q", len(tensors) if tensor_count is None else tensor_count)
        raw += self.number("Q", len(pairs) if pair_count is None else pair_count)
        raw += b"".join(pairs) + b"".join(records)
        raw += bytes(-len(raw) % alignment)
        if tensors:
            raw += bytes((at if padded else end) + extra)
        return raw


LITTLE, BIG = Maker("<"), Maker(">")
ARCH = LITTLE.pair("general.architecture", STRING, "llama")
A = T("a", (4,))


def read(raw: bytes, **options: Any) -> GgufHeader:
    return gguf_header_of(nullcontext(InMemory(raw)), "f.gguf", **options)


def found(header: GgufHeader, severity: str = "error") -> list[str]:
    chosen = [p for p in header.problems if p.severity == severity]
    assert all(p.malformed == (severity == "error") for p in chosen)
    return [p.code for p in chosen]
