"""The files of a source, each opened once for a whole conversion and shared by its threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack

from ..checkpoint.folder import Folder, Readable
from ..errors import InputError

AHEAD = 16 << 20
"""Bytes of one request to a remote file: conversions read in order, in small bands."""


class Ahead:
    """A remote file that is read in large pieces, each kept until the next."""

    def __init__(self, remote: Readable, ahead: int = AHEAD) -> None:
        self._remote, self._ahead, self._lock = remote, ahead, threading.Lock()
        self._start, self._piece = 0, b""
        self.nbytes, self.bytes_read = remote.nbytes, remote.bytes_read

    def read(self, offset: int, count: int) -> bytes:
        """Bytes at a position, out of the piece that is kept where it has them all."""
        with self._lock:
            at = offset - self._start
            if not 0 <= at <= len(self._piece) - count:
                want = min(max(count, self._ahead), max(self.nbytes - offset, 0))
                self._start, self._piece = offset, self._remote.read(offset, want)
                at, self.bytes_read = 0, self._remote.bytes_read
            return self._piece[at : at + count]

    def unchanged(self) -> bool:
        """Whether the file behind is still the one that was opened."""
        return self._remote.unchanged()


class OpenFiles:
    """Files by name; reading by position needs no lock.

    To be used as a context: all files are closed when it ends.

    Args:
        stamps: size and time of change of each file when its header was read; a file that has
            others by now is another one.
        ahead: bytes of one request to a remote file.
    """

    def __init__(
        self,
        folder: Folder,
        stamps: Mapping[str, tuple[int, int]] | None = None,
        ahead: int = AHEAD,
    ) -> None:
        self._stamps, self._ahead = stamps or {}, ahead
        self._folder, self._stack, self._lock = folder, ExitStack(), threading.Lock()
        self._open: dict[str, Readable] = {}

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()
        self._open.clear()

    def __call__(self, name: str) -> Readable:
        """The file of that name, open.

        Raises:
            NotReadable: it cannot be opened.
            InputError: it is not the file whose header was read.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        with self._lock:
            if name not in self._open:
                f = self._stack.enter_context(self._folder.open(name))
                stamp = self._stamps.get(name)
                if stamp is not None and getattr(f, "stamp", stamp) != stamp:
                    raise InputError(f"{name}: changed since its header was read")
                kept: Readable = f if self._folder.local else Ahead(f, self._ahead)
                self._open[name] = kept
            return self._open[name]

    def require_unchanged(self) -> None:
        """Refuse a result whose source moved meanwhile.

        Raises:
            InputError: names the file.
        """
        for name, f in self._open.items():
            if not f.unchanged():
                raise InputError(f"{name}: changed while it was converted")
