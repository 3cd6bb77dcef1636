"""Output files: judged before the work that fills them, and written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from ..errors import EnvironmentProblem, SourceNotFound, UsageProblem

Identity = tuple[int, int] | str
"""(device, inode) of what exists, the real path of what does not: equal for one file under two
names."""
MAX_ENTRIES = 100_000
"""Files of an input folder that are compared with an output."""


class OneFile(UsageProblem):
    """Two paths of a command line lead to one file, and one of them would be written."""


def identity(path: str) -> Identity:
    """What a path leads to, through links; `-` is standard input.

    Standard input counts when it is a file: `command - -o F < F` would write over what it reads.
    """
    try:
        status = os.fstat(0) if path == "-" else os.stat(path)
    except (OSError, ValueError):
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def is_stream(path: str) -> bool:
    """Whether an output is a pipe or character device, which is written through and never replaced.

    Raises:
        UsageProblem: a folder, block device or socket.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    for test, kind in (
        (stat.S_ISDIR, "is a folder"),
        (stat.S_ISBLK, "is a block device"),
        (stat.S_ISSOCK, "is a socket"),
    ):
        if test(mode):
            raise UsageProblem(f"output '{path}' {kind}", expected="a file name")
    return False


def refuse_piped(folder: str, option: str = "-o") -> None:
    """Refuse `-` as an output that is a folder.

    Raises:
        UsageProblem: it is.
    """
    if folder == "-":
        raise UsageProblem(f"{option} -: a folder is not piped", expected="the name of a folder")


def check_new_files(
    paths: Iterable[str], inputs: Iterable[str] = (), folders: Sequence[str] = ()
) -> None:
    """Refuse output files that cannot be written or may not be, before the work that fills them.

    Args:
        inputs: files that the run reads (`-`: standard input); no output may be one of them, under
            whatever name.
        folders: folders that the run reads; no output may lie in one, or be one of its files.
    Raises:
        SourceNotFound: the folder is not there.
        UsageProblem: a folder, block device or socket; two outputs that are one file; an input.
        EnvironmentProblem: the folder is not writable, or a link leads nowhere.
    """
    seen: dict[Identity, str] = {}
    read = {identity(path): "standard input" if path == "-" else path for path in inputs}
    for path in paths:
        if not path:
            raise UsageProblem("output ''", expected="a file name")
        if path.endswith("/"):
            raise UsageProblem(f"output '{path}' is a folder's name", expected="a file name")
        this = identity(path)
        stream = is_stream(path)
        if this == _standard_output():
            raise OneFile(f"output '{path}' is the file that standard output goes to")
        if this in read:
            raise OneFile(f"output '{path}' and input '{read[this]}' are one file")
        if stream and stat.S_ISCHR(os.stat(path).st_mode):
            continue
        if this in seen:
            raise OneFile(f"outputs '{seen[this]}' and '{path}' are one file")
        seen[this] = path
        for folder in folders:
            _refuse_inside(path, this, folder)
        if stream:
            continue
        real = os.path.realpath(path)
        folder = os.path.dirname(real)
        if os.path.islink(real):  # what realpath leaves of a loop
            raise EnvironmentProblem(f"output '{path}': a link that leads nowhere")
        if not os.path.isdir(folder):
            leads = f"a link to '{real}': " if os.path.islink(path) else ""
            inside = folder if leads else os.path.dirname(path) or "."
            raise SourceNotFound(f"output '{path}': {leads}no folder '{inside}'")
        require_writable(path, folder)


def require_writable(path: str, folder: str) -> None:
    """Refuse an output that the system will not take.

    Args:
        folder: where it, or its first part that is not there, is to be made.
    Raises:
        EnvironmentProblem: the folder is not writable, or the name is too long.
    """
    if not os.access(folder, os.W_OK):
        raise EnvironmentProblem(f"output '{path}': its folder cannot be written to")
    with cannot_write(f"output '{path}'"), suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(path)


def _standard_output() -> Identity | None:
    """Standard output, where it is a regular file; records would mix with what replaces it."""
    try:
        status = os.fstat(1)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _refuse_inside(path: str, this: Identity, folder: str) -> None:
    real, base = os.path.realpath(path), os.path.realpath(folder)
    if real == base or real.startswith(os.path.join(base, "")):
        raise OneFile(
            f"output '{path}' lies in the input '{folder}'", hint="name a file outside of it"
        )
    if isinstance(this, str):
        return
    # links in the folder may lead to files anywhere, as those of a download cache do
    count = 0
    for parent, _, names in os.walk(base):
        for name in names:
            if identity(os.path.join(parent, name)) == this:
                inside = os.path.relpath(os.path.join(parent, name), base)
                raise OneFile(f"output '{path}' and file '{inside}' of '{folder}' are one file")
        count += len(names)
        if count > MAX_ENTRIES:
            return


@contextmanager
def cannot_write(path: str) -> Iterator[None]:
    """Errors of the system while `path` is written, named as such. A reader of a pipe that has gone
    keeps its own error: that is no fault of ours."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as e:
        raise EnvironmentProblem(f"{path}: cannot write: {e.strerror or e}") from e


def write_whole(path: str | os.PathLike[str], fill: Callable[[BinaryIO], object]) -> None:
    """Write the file `path` with what `fill` writes into the file object that it gets.

    A regular file appears whole or not at all: under a temporary name in the same folder, flushed
    to the disk, renamed. What a link leads to is replaced, the link stays. Pipes and character
    devices are written through.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    given = os.fspath(path)
    if is_stream(given):
        with cannot_write(given), open(given, "wb") as through:
            fill(through)
        return
    real = os.path.realpath(given)
    folder, name = os.path.split(real)
    # a name may be as long as the file system allows: there is no room for additions then
    temporary = os.path.join(folder, f".{name[:50]}.ntool-{os.getpid()}.tmp")
    with cannot_write(given):
        try:
            with _create(temporary) as f:
                fill(f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, real)
        except BaseException:  # Ctrl-C too must leave no part of a file
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(folder)


def _create(path: str) -> BinaryIO:
    """A new file, never one that is there or that a link leads to; what a killed process of the
    same number left is in the way and goes."""
    try:
        return open(path, "xb")
    except FileExistsError:
        os.unlink(path)
        return open(path, "xb")


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush a folder's entries, where the system can open folders."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # some file systems refuse fsync on folders
    finally:
        os.close(fd)
