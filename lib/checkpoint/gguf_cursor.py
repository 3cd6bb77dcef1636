"""Walks through the header of a GGUF file, which does not say how long it is.

The file is read in blocks as far as the header goes; every step is checked against the size of the
file before anything is read or counted.
"""

from __future__ import annotations

import struct
from itertools import repeat
from operator import length_hint
from typing import Any

from .folder import Readable

BLOCK = 64 << 10
"""Bytes that are read first: the records of 600 tensors fit."""
_STEP = 256 << 10
"""Least bytes of each further read."""


class Stopped(Exception):
    """The rest of the header cannot be read.

    Attributes:
        code, message: of the problem.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Cursor:
    """A position in the header.

    Args:
        f: the file.
        limit: largest header that is read, bytes.
    Attributes:
        pos: bytes from the start of the file.
        order: `<` or `>`, for `struct`.
        inside: what is being read, for messages.
    """

    def __init__(self, f: Readable, limit: int) -> None:
        self._file = f
        self._limit = limit
        self.size = f.nbytes
        self.buf = f.read(0, min(BLOCK, self.size, limit))
        self.pos = 0
        self.order = "<"
        self.inside = "the header"
        self.use_order("<")

    def use_order(self, order: str) -> None:
        """Take numbers as little-endian (`<`) or big-endian (`>`) from now on."""
        self.order = order
        self._u32 = struct.Struct(f"{order}I").unpack_from
        self._u64 = struct.Struct(f"{order}Q").unpack_from
        self._array = struct.Struct(f"{order}IQ").unpack_from

    @property
    def left(self) -> int:
        """Bytes of the file behind the position."""
        return self.size - self.pos

    def need(self, count: int) -> None:
        """Have `count` bytes from the position on in the buffer.

        Raises:
            Stopped: the file or the limit ends before them.
        """
        end = self.pos + count
        if end <= len(self.buf):
            return
        if end > self.size:
            raise Stopped(
                "truncated",
                f"file ends inside {self.inside}: found {self.size} bytes, expected at least {end}",
            )
        if end > self._limit:
            raise Stopped(
                "header-too-large",
                f"header, at {self.inside}: found at least {end} bytes, expected at most "
                f"{self._limit} bytes (raise --max-header)",
            )
        have = len(self.buf)
        # by half of what there is: few reads for a long vocabulary, little read beyond its end
        target = min(max(end, have + max(_STEP, have // 2)), self.size, self._limit)
        self.buf += self._file.read(have, target - have)
        if len(self.buf) < end:
            raise Stopped("truncated", f"file ends inside {self.inside}: it became shorter")

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        self.need(count)
        start = self.pos
        self.pos = end = start + count
        return self.buf[start:end]

    def u32(self) -> int:
        """The next unsigned number of 4 bytes."""
        self.need(4)
        (value,) = self._u32(self.buf, self.pos)
        self.pos += 4
        return int(value)

    def u64(self) -> int:
        """The next unsigned number of 8 bytes."""
        self.need(8)
        (value,) = self._u64(self.buf, self.pos)
        self.pos += 8
        return int(value)

    def numbers(self, code: str, count: int, nbytes: int) -> tuple[Any, ...]:
        """The next `count` numbers of a `struct` code, each of `nbytes` bytes."""
        self.need(count * nbytes)
        values = struct.unpack_from(f"{self.order}{count}{code}", self.buf, self.pos)
        self.pos += count * nbytes
        return values

    def array_head(self) -> tuple[int, int]:
        """Type number of the elements and length of the array that begins here."""
        self.need(12)
        kind, length = self._array(self.buf, self.pos)
        self.pos += 12
        return kind, length

    def string(self) -> bytes:
        """The next string, as bytes."""
        return self.take(self.u64())

    def skip_strings(self, count: int) -> list[int]:
        """Go behind `count` strings; positions of those longer than 127 bytes.

        A vocabulary has some hundred thousand strings, so that nothing but the addition is done for
        each: the buffer itself says when it ends.
        """
        self.need(8 * count)
        unpack, buf, pos = self._u64, self.buf, self.pos
        long: list[int] = []
        todo = repeat(None, count)
        while True:
            try:
                for _ in todo:
                    (length,) = unpack(buf, pos)
                    if length > 127:
                        long.append(pos)
                    pos += length + 8
                break
            except (struct.error, OverflowError):  # behind the buffer, or behind any file
                self.pos = pos
                self.need(8)
                buf = self.buf
                todo = repeat(None, length_hint(todo) + 1)
        self.pos = pos
        self.need(0)
        return long

    def strings_before(self, start: int, position: int) -> int:
        """How many strings from `start` on end at or before a position that was skipped."""
        count = 0
        while True:
            start += self._u64(self.buf, start)[0] + 8
            if start > position:
                return count
            count += 1
