"""A file that is read by ranges: its start once, for what a reader of headers asks for first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ..errors import EnvironmentProblem

PREFETCH = 1 << 17
"""Bytes of the first request where nothing is known of the header: most are smaller."""
SMALLEST = 1 << 10
MAX_PREFETCH = 100_000_000

_PER_TENSOR = 80
"""Bytes of a tensor in a header besides its name: 68 to 93 in published checkpoints, the most
where there are few."""
_PER_FILE = 512
"""Bytes of `__metadata__`, padding and the header's length."""


class Bytes(Protocol):
    """What one request brings (`range_client.Part`)."""

    @property
    def data(self) -> bytes:
        """The bytes asked for, or fewer at the end of the file."""

    @property
    def total(self) -> int | None:
        """Size of the whole file, where the answer says it."""

    @property
    def identity(self) -> str:
        """ETag or the like, by which a changed file is noticed; empty where there is none."""


Fetch = Callable[[int, int], Bytes]
"""Of offset and count, count > 0."""


class RemoteFile:
    """A `Readable` over requests.

    Args:
        name: for messages.
        fetch: makes one request.
        nbytes: size of the file, or None where only an answer tells.
        expect: bytes at its start that will be read; 0: that is not known.
    """

    def __init__(self, name: str, fetch: Fetch, nbytes: int | None, expect: int = 0) -> None:
        self._name, self._fetch = name, fetch
        self._start = b""
        self._identity: str | None = None
        self._expect = max(SMALLEST, expect) if expect else PREFETCH
        self.bytes_read = 0
        self.nbytes = 0
        self._known = nbytes is not None
        if nbytes is not None:
            self.nbytes = nbytes
        else:
            self._start = self._get(0, min(self._expect, MAX_PREFETCH))

    def read(self, offset: int, count: int) -> bytes:
        """Bytes `offset` to `offset + count`; fewer only at the end of the file.

        The first read near the start takes `expect` bytes with it; of what is read after that only
        what is not there is asked for.

        Raises:
            EnvironmentProblem: the network, or a file that changed since the first answer.
        """
        end = min(offset + count, self.nbytes)
        if offset >= end:
            return b""
        if not self._start and offset < self._expect:
            first = min(max(self._expect, end), self.nbytes)
            self._start = self._get(0, first)
        have = len(self._start)
        if end <= have:
            return self._start[offset:end]
        if offset < have:
            return self._start[offset:] + self._get(have, end - have)
        return self._get(offset, end - offset)

    def unchanged(self) -> bool:
        """True: each answer is compared with the one before, and `read` raises."""
        return True

    def _get(self, offset: int, count: int) -> bytes:
        part = self._fetch(offset, count)
        self.bytes_read += len(part.data)
        if part.total is not None:
            if not self._known:
                self.nbytes, self._known = part.total, True
            elif part.total != self.nbytes:
                self._moved("size in bytes", part.total, self.nbytes)
        elif not self._known:
            raise EnvironmentProblem(f"{self._name}: network: the server does not tell the size")
        if self._identity is not None and part.identity != self._identity:
            self._moved("ETag", part.identity or "none", self._identity or "none")
        self._identity = part.identity
        if len(part.data) != min(count, self.nbytes - offset):
            self._moved("bytes", len(part.data), min(count, self.nbytes - offset))
        return part.data

    def _moved(self, what: str, found: object, expected: object) -> None:
        raise EnvironmentProblem(
            f"{self._name}: the file is another than before: {what}", found=found, expected=expected
        )


def expected_headers(names: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """About how long the header of each file of an index is, in bytes with its length's eight.

    Too much is a few bytes over the network, too little is one more request.

    Args:
        names: of the tensors of each file.
    """
    return {
        file: _PER_FILE + _PER_TENSOR * len(inside) + sum(map(len, inside))
        for file, inside in names.items()
    }
