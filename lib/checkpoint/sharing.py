"""Files that share their blocks or their inode with others, where the file system can do that.

A clone (`cp --reflink`) is a file of its own whose blocks are written when one of the two changes;
a hard link is a second name of the same file. Neither costs room or time for the bytes.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import tempfile
from pathlib import Path

from ..errors import EnvironmentProblem
from .regular_file import open_regular

FICLONE, FICLONERANGE = 0x40049409, 0x4020940D
"""Requests of ioctl(2) on Linux (linux/fs.h)."""
PROBE = 1 << 16
"""Bytes that are cloned to see whether it works: whole blocks on every file system."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
COPY = "--data copy"


def clone(source: int, target: int, nbytes: int | None = None) -> None:
    """Let a new, empty file have the blocks of another.

    Args:
        source, target: descriptors.
        nbytes: only so many from the start, whole blocks; None: all.
    Raises:
        OSError: the file system, or this system, cannot do that.
    """
    try:
        from fcntl import ioctl
    except ImportError as e:  # Windows
        raise OSError(errno.ENOSYS, "this system clones no files") from e
    if nbytes is None:
        ioctl(target, FICLONE, source)
    else:
        ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source, 0, nbytes, 0))


def clone_fault(source: str, folder: Path) -> OSError | None:
    """Why files of a folder cannot be clones of `source`; None where it was tried and works.

    Nothing stays of the trial.

    Args:
        source: path of a regular file, resolved and judged.
        folder: where clones are to be made; it need not be there yet.
    """
    try:
        with open_regular(source, source) as f, tempfile.TemporaryFile(dir=existing(folder)) as to:
            clone(f.fileno(), to.fileno(), PROBE if f.nbytes >= PROBE else None)
    except OSError as e:
        return e
    return None


def clone_file(source: str, name: str, target: Path) -> tuple[int, int]:
    """Make `target` a clone of a file; returns size and time of change (ns) of what was cloned.

    Raises:
        EnvironmentProblem: that does not work here; names the file system.
    """
    with open_regular(source, name) as f, open(target, "xb", buffering=0) as to:
        try:
            clone(f.fileno(), to.fileno())
        except OSError as e:
            raise no_clone(e, name, source, target.parent) from e
        os.fsync(to.fileno())
        return f.stamp


def link_file(source: str, name: str, target: Path) -> tuple[int, int]:
    """Make `target` a second name of a file; returns its size and time of change (ns).

    Raises:
        EnvironmentProblem: that does not work here.
    """
    try:
        os.link(source, target)
    except OSError as e:
        raise no_link(e, name, source, target.parent) from e
    status = os.lstat(target)
    return status.st_size, status.st_mtime_ns


def existing(folder: Path) -> Path:
    """A folder, or the nearest one above it that is there."""
    folder = Path(os.path.realpath(folder))
    while not folder.is_dir():
        folder = folder.parent
    return folder


def link_fault(source: str, folder: Path) -> OSError | None:
    """Why a folder cannot have hard links to a file, as far as one can tell without making one."""
    if os.stat(source).st_dev == os.stat(existing(folder)).st_dev:
        return None
    return OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def no_clone(error: OSError, name: str, source: str, folder: Path) -> EnvironmentProblem:
    """The refusal of a clone, with the file systems in it."""
    return _refusal("reflink", "cloned", error, name, source, folder)


def no_link(error: OSError, name: str, source: str, folder: Path) -> EnvironmentProblem:
    """The refusal of a hard link, with the file systems in it."""
    return _refusal("hardlink", "linked", error, name, source, folder)


def _refusal(
    form: str, done: str, error: OSError, name: str, source: str, folder: Path
) -> EnvironmentProblem:
    here, there = file_system(source), file_system(str(existing(folder)))
    where = f"file system {there}"
    if error.errno == errno.EXDEV:
        where = f"the checkpoint is on {here}, the package on {there}: two file systems"
    text = f"--data {form}: {name} cannot be {done}: {where}: {error.strerror}"
    return EnvironmentProblem(text, hint=COPY)


def file_system(path: str) -> str:
    """Type of the file system that a path is on, as `mount` calls it."""
    real, best, kind = os.path.realpath(path), "", "of unknown type"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as f:
            lines = f.read().splitlines()
    except OSError:
        return kind
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        at = _ESCAPED.sub(lambda m: chr(int(m[1], 8)), fields[4])
        inside = real == at or real.startswith(os.path.join(at, ""))
        if inside and len(at) >= len(best):  # a later mount lies over an earlier one
            best, kind = at, after.split(" ")[0]
    return kind
