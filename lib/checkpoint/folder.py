"""Where the files of a checkpoint are: a folder on this machine, or something that behaves as one.

Readers of headers ask a `Folder` for names and byte ranges and do not know where they come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from ..errors import InputError
from .paths import contained
from .regular_file import NotRegular, open_regular, size_of_regular

T = TypeVar("T")


class Readable(Protocol):
    """An open file that is read by position.

    Attributes:
        nbytes: its size.
        bytes_read: what was read of it so far; for a remote file what came over the network.
    """

    nbytes: int
    bytes_read: int

    def read(self, offset: int, count: int) -> bytes:
        """Bytes `offset` to `offset + count`; fewer only at the end of the file."""

    def unchanged(self) -> bool:
        """Whether the file is still the one that was opened."""


class NotReadable(InputError):
    """A file of a checkpoint is not there, is no file, or must not be read.

    Attributes:
        code: of the problem: `missing-shard`, `path-escape`, `not-regular-file`.
        reason: the message without the file's name.
    """

    def __init__(self, file: str, code: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.code, self.reason = code, reason


class Folder(Protocol):
    """A folder of a checkpoint.

    Names of files are relative, with `/`; their grammar was checked (`index.path_fault`) or they
    come from `names`.

    Attributes:
        root: absolute path, or the address that begins every message about it.
        local: whether `root` is a path.
        revision: commit on the Hub, or None.
    """

    root: str
    local: bool
    revision: str | None

    @property
    def requests(self) -> int:
        """Requests made so far."""

    @property
    def bytes_read(self) -> int:
        """Bytes that came over the network so far, listings included."""

    def names(self, inside: str = "") -> list[str]:
        """Names in the folder, or in a folder of it, sorted; no names where there is no such."""

    def exists(self, name: str) -> bool:
        """Whether something of that name is there, if only a link that leads nowhere."""

    def is_folder(self, name: str) -> bool:
        """Whether it is a folder inside this one."""

    def open(self, name: str, expect: int = 0) -> AbstractContextManager[Readable]:
        """Open a file.

        Args:
            expect: bytes at its start that will be read, as far as one can tell.
        Raises:
            NotReadable: when the context is entered.
        """

    def size(self, name: str) -> int:
        """Bytes of a file, which is not opened for it.

        Raises:
            NotReadable: no such file, none that may be read, or not a regular one.
        """

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
        """`function(name)` of all names, in their order; several at once where that is faster."""


class LocalFolder:
    """A folder on this machine. Links must not lead out of it (`index.contained`).

    Args:
        root: absolute path.
        named: a file that the user named: its link is followed, wherever it leads.
    """

    local = True
    revision: str | None = None
    requests = bytes_read = 0

    def __init__(self, root: str, named: str | None = None) -> None:
        self.root = root
        self._named = named

    def names(self, inside: str = "") -> list[str]:
        """See `Folder`; links that lead out of the root have no names."""
        if inside:
            real, problem = contained(self.root, inside)
            if problem is not None or not os.path.isdir(real):
                return []
            return sorted(os.listdir(real))
        return sorted(os.listdir(self.root))

    def exists(self, name: str) -> bool:
        """See `Folder`."""
        return os.path.lexists(os.path.join(self.root, name))

    def is_folder(self, name: str) -> bool:
        """See `Folder`; a link that leads out of the root is none."""
        real, problem = contained(self.root, name)
        return problem is None and os.path.isdir(real)

    @contextmanager
    def open(self, name: str, expect: int = 0) -> Iterator[Readable]:
        """See `Folder`; `expect` changes nothing here."""
        if name == self._named:
            real = os.path.realpath(os.path.join(self.root, name))
        else:
            real, problem = contained(self.root, name)
            if problem is not None:
                raise NotReadable(name, problem.code, problem.message)
        with open_regular(real, name) as f:
            yield f

    def size(self, name: str) -> int:
        """See `Folder`."""
        real, problem = contained(self.root, name)
        if problem is not None:
            raise NotReadable(name, problem.code, problem.message)
        try:
            return size_of_regular(real, name)
        except NotRegular as e:
            reason = e.message.removeprefix(f"{name}: ")
            raise NotReadable(name, "not-regular-file", reason) from e

    def each(self, function: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        """See `Folder`; one after the other, since a local read waits for nothing."""
        return map(function, names)


def read_small(folder: Folder, name: str, limit: int) -> bytes:
    """All bytes of a file of at most `limit` bytes.

    Raises:
        NotReadable: it cannot be opened.
        InputError: larger than `limit`, not regular, or changed while reading.
    """
    with folder.open(name, limit) as f:
        if f.nbytes > limit:
            raise InputError(f"{name}: size in bytes", found=f.nbytes, expected=f"<= {limit}")
        raw = f.read(0, f.nbytes)
        if len(raw) != f.nbytes or not f.unchanged():
            raise InputError(f"{name}: changed while it was read")
        return raw
