"""Hidden folders `.NAME.ntool-PID.tmp` in which an output is made: locked by their process, and
removed by the next one where theirs has been killed.

A number may have passed to another process, so whose a folder is says a lock on the folder itself,
which ends with the process. Where the system has no such locks nothing is removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST = 1000
"""Folders of one number that are passed by: processes of several machines may have it."""


@contextmanager
def hidden_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, locked while the block runs; what becomes of it is the block's
    business.

    Raises:
        OSError: it cannot be made.
    """
    folder, lock = _made(out)
    try:
        yield folder
    finally:
        if lock is not None:
            os.close(lock)


def is_hidden(path: Path, out: Path) -> bool:
    """Whether a path is a folder of this kind for `out`."""
    form = re.escape(f".{out.name}.ntool-") + r"[0-9]+(-[0-9]+)?\.tmp"
    return path.parent == out.parent and re.fullmatch(form, path.name, re.S) is not None


def remove_left(out: Path) -> None:
    """Remove the folders of `out` whose processes are gone."""
    out = Path(os.path.realpath(out))
    try:
        left = [p for p in out.parent.iterdir() if is_hidden(p, out)]
    except OSError:
        return
    for folder in left:
        try:
            lock = _lock(folder)
        except BlockingIOError:  # its process is at work
            continue
        if lock is not None:
            if _is(folder, lock):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _made(out: Path) -> tuple[Path, int | None]:
    """A new folder, and the descriptor that holds its lock, or None without locks."""
    for n in range(MOST):
        more = f"-{n}" if n else ""
        folder = out.parent / f".{out.name}.ntool-{os.getpid()}{more}.tmp"
        try:
            folder.mkdir()
            lock = _lock(folder)
        except (FileExistsError, BlockingIOError):  # of another machine; or taken for one left
            continue
        if lock is None:
            if folder.is_dir():
                return folder, None
        elif _is(folder, lock):
            return folder, lock
        else:
            os.close(lock)
    raise FileExistsError(f"{out}: {MOST} folders of unfinished outputs beside it")


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where there is no folder, or no lock.

    Raises:
        BlockingIOError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(opened)
        if isinstance(e, BlockingIOError):
            raise
        return None  # some network file systems have no locks
    return opened


def _is(folder: Path, opened: int) -> bool:
    """Whether a folder is still the one that was opened."""
    try:
        return os.path.samestat(os.stat(folder, follow_symlinks=False), os.fstat(opened))
    except OSError:
        return False
