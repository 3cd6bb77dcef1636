"""The files of a source, each opened once for a whole conversion and shared by its threads."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from ..checkpoint.folder import Folder, Readable
from ..errors import InputError


class OpenFiles:
    """Files by name; reading by position needs no lock.

    To be used as a context: all files are closed when it ends.
    """

    def __init__(self, folder: Folder) -> None:
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
        """
        found = self._open.get(name)
        if found is not None:
            return found
        with self._lock:
            if name not in self._open:
                self._open[name] = self._stack.enter_context(self._folder.open(name))
            return self._open[name]

    def require_unchanged(self) -> None:
        """Refuse a result whose source moved meanwhile.

        Raises:
            InputError: names the file.
        """
        for name, f in self._open.items():
            if not f.unchanged():
                raise InputError(f"{name}: changed while it was converted")
