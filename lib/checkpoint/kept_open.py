"""A remote folder whose files stay open, for readers that come back for tensor after tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from .folder import Folder, Readable
from .tensor import Checkpoint

LEAST, MOST = 1 << 20, 8 << 20
"""Bytes of a request: the first of a place in a file, and the largest as reading goes on there."""
PLACES = 8
"""Places, in all files together, that are read in turn: the codes of some matrices, their scales.
"""


class _Piece:
    """Bytes of a file that are kept."""

    def __init__(self, of: Growing, start: int, raw: bytes) -> None:
        self.of, self.start, self.raw = of, start, raw

    @property
    def end(self) -> int:
        return self.start + len(self.raw)


class Growing:
    """A remote file; the longer it is read in order, the larger the pieces that are fetched.

    Args:
        pieces: of all files that are open; the last used comes last.
    """

    def __init__(self, remote: Readable, pieces: list[_Piece]) -> None:
        self._remote, self._pieces = remote, pieces
        self.nbytes, self.bytes_read = remote.nbytes, remote.bytes_read

    def read(self, offset: int, count: int) -> bytes:
        """As of any file."""
        mine = [p for p in self._pieces if p.of is self]
        for piece in mine:
            if piece.start <= offset and offset + count <= piece.end:
                self._pieces.remove(piece)
                self._pieces.append(piece)
                return piece.raw[offset - piece.start : offset - piece.start + count]
        before = next((p for p in mine if p.start <= offset <= p.end), None)
        if before is None:
            made, at = b"", offset
            want = LEAST
        else:
            self._pieces.remove(before)
            made, at = before.raw[offset - before.start :], before.end
            want = min(2 * len(before.raw), MOST)
        want = min(max(want, count - len(made)), max(self.nbytes - at, 0))
        if want:
            made += self._remote.read(at, want)
        self.bytes_read = self._remote.bytes_read
        self._pieces.append(_Piece(self, offset, made))
        del self._pieces[:-PLACES]
        return made[:count]

    def unchanged(self) -> bool:
        """Whether the file is still the one that was opened."""
        return self._remote.unchanged()


class _KeptOpen:
    """A folder, but for `open`."""

    def __init__(self, folder: Folder, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._open: dict[str, Growing] = {}
        self._pieces: list[_Piece] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def open(self, name: str, expect: int = 0) -> AbstractContextManager[Readable]:
        """The file, opened at the first time; it is closed with the folder."""
        if name not in self._open:
            found = self._stack.enter_context(self._folder.open(name, expect))
            self._open[name] = Growing(found, self._pieces)
        return nullcontext(self._open[name])


@contextmanager
def kept_open(*checkpoints: Checkpoint) -> Iterator[None]:
    """While the context lasts, files of remote checkpoints are opened once and read ahead.

    Args:
        checkpoints: views of one checkpoint: they share their folder.
    """
    folder = checkpoints[0].folder
    if folder.local:
        yield
        return
    with ExitStack() as stack:
        kept: Any = _KeptOpen(folder, stack)
        for checkpoint in checkpoints:
            checkpoint.folder = kept
        try:
            yield
        finally:
            for checkpoint in checkpoints:
                checkpoint.folder = folder
