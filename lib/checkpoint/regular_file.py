"""Opening files that may be anything: regular files only, without hanging, noticing a change.

A named pipe in a model folder would block an ordinary open() for ever, and a device can do worse.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import BinaryIO

from ..errors import EnvironmentProblem, InputError, SourceNotFound
from ..suggestions import near_path

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}


class NotRegular(InputError):
    """The path is a directory, pipe, socket or device."""


class Changed(InputError):
    """The file moved or grew while it was read."""


class OpenFile:
    """A regular file that is open for reading by position.

    Attributes:
        nbytes: its size when it was opened.
        bytes_read: what was read of it so far.
    """

    def __init__(self, fd: int, path: str, status: os.stat_result) -> None:
        self._fd, self._path, self._status = fd, path, status
        self.nbytes = status.st_size
        self.bytes_read = 0

    def read(self, offset: int, count: int) -> bytes:
        """Bytes `offset` to `offset + count`; fewer only at the end of the file."""
        piece = os.pread(self._fd, count, offset)
        self.bytes_read += len(piece)
        if len(piece) == count or not piece:
            return piece
        pieces, left = [piece], count - len(piece)
        while left and (piece := os.pread(self._fd, left, offset + count - left)):
            pieces.append(piece)
            left -= len(piece)
            self.bytes_read += len(piece)
        return b"".join(pieces)

    def read_many(self, offsets: Sequence[int], counts: Sequence[int]) -> list[bytes]:
        """What `read` gives for each offset and count; 75,000 calls of it would take longer."""
        pieces = list(map(os.pread, repeat(self._fd), counts, offsets))
        if list(map(len, pieces)) != list(counts):  # a short read, or the end of the file
            return list(map(self.read, offsets, counts))
        self.bytes_read += sum(counts)
        return pieces

    def read_into(self, offset: int, buffer: bytearray | memoryview) -> int:
        """Fill a buffer with the bytes from `offset` on; how many, fewer only at the end of the
        file. The memory of a buffer that is used again costs nothing."""
        view = memoryview(buffer)
        done = 0
        while done < len(view) and (count := os.preadv(self._fd, [view[done:]], offset + done)):
            done += count
        self.bytes_read += done
        return done

    def bands(self, offset: int, nbytes: int, size: int = 1 << 20) -> Iterator[memoryview]:
        """`nbytes` bytes from `offset` on in pieces of `size`, all in one buffer: a piece holds
        only until the next is asked for. Ends early where the file does."""
        view = memoryview(bytearray(min(size, nbytes)))
        end = offset + nbytes
        while offset < end:
            count = self.read_into(offset, view[: end - offset])
            if not count:
                return
            yield view[:count]
            offset += count

    @property
    def stamp(self) -> tuple[int, int]:
        """Size and time of change in ns, when it was opened."""
        return self._status.st_size, self._status.st_mtime_ns

    def fileno(self) -> int:
        """The descriptor, for copies inside the kernel."""
        return self._fd

    def unchanged(self) -> bool:
        """Whether path, size and modification time are still those of the opening."""
        try:
            now = os.stat(self._path)
        except OSError:
            return False
        then = self._status
        return (now.st_ino, now.st_dev, now.st_size, now.st_mtime_ns) == (
            then.st_ino,
            then.st_dev,
            then.st_size,
            then.st_mtime_ns,
        )


@contextmanager
def open_regular(path: str, name: str) -> Iterator[OpenFile]:
    """Open a regular file.

    Args:
        path: with its symbolic links resolved and judged already (`index.contained`): a link that
            turns up in its last part now is refused.
        name: how messages call it.
    Raises:
        NotRegular: a directory, pipe, socket, device or link.
        SourceNotFound: no such file.
    """
    try:
        _require_regular(os.lstat(path), name)  # before the open: opening a device can have effects
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError as e:
        # a name inside of something else is not what the user typed
        hint = near_path(name) if os.path.realpath(name) == path else None
        raise SourceNotFound(f"{name}: no such file", hint=hint) from e
    try:
        status = os.fstat(fd)
        _require_regular(status, name)  # again: the path may lead elsewhere by now
        os.set_blocking(fd, True)
        yield OpenFile(fd, path, status)
    finally:
        os.close(fd)


def size_of_regular(path: str, name: str) -> int:
    """Bytes of a regular file, without opening it; arguments as of `open_regular`.

    Raises:
        NotRegular: a directory, pipe, socket, device or link.
    """
    status = os.lstat(path)
    _require_regular(status, name)
    return status.st_size


def read_all(path: str, name: str, limit: int) -> bytes:
    """All bytes of a regular file of at most `limit` bytes.

    Raises:
        InputError: larger than `limit`, not regular, or changed while reading.
        SourceNotFound: no such file.
    """
    with open_regular(path, name) as f:
        if f.nbytes > limit:
            raise InputError(f"{name}: size in bytes", found=f.nbytes, expected=f"<= {limit}")
        raw = f.read(0, f.nbytes)
        if len(raw) != f.nbytes or not f.unchanged():
            raise Changed(f"{name}: changed while it was read")
        return raw


def read_file(path: str, limit: int) -> bytes:
    """`read_all` of a path that the user named or that lies in a folder the user named: links are
    followed, the message calls the file by its path."""
    return read_all(os.path.realpath(path), path, limit)


def standard_input() -> BinaryIO:
    """Standard input as bytes.

    Raises:
        EnvironmentProblem: it is closed.
    """
    if sys.stdin is None:
        raise EnvironmentProblem("standard input is closed")
    return sys.stdin.buffer


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Errors of the system while something that was opened is read, named."""
    try:
        yield
    except OSError as e:
        raise EnvironmentProblem(f"{name}: cannot read: {e.strerror or e}") from e


@contextmanager
def open_given(path: str) -> Iterator[BinaryIO]:
    """A file that the user named, to be read from start to end: a regular file, a pipe (as shells
    make for `<(command)`), or standard input for `-`.

    Raises:
        NotRegular: a directory, socket or device.
        SourceNotFound: no such file.
        EnvironmentProblem: closed standard input, or an error while reading.
    """
    name = "standard input" if path == "-" else path
    if path == "-":
        stream = standard_input()
        with reading(name):
            yield stream
        return
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError) as e:
        raise SourceNotFound(f"{path}: no such file", hint=near_path(path)) from e
    if not stat.S_ISFIFO(status.st_mode):
        _require_regular(status, name)
    with reading(name), open(path, "rb") as stream:
        yield stream


def read_given(path: str, limit: int) -> bytes:
    """All bytes of what `open_given` opens, at most `limit` of them.

    Raises:
        InputError: more than `limit`; or as `open_given`.
    """
    with open_given(path) as f:
        raw = f.read(limit + 1)
    if len(raw) > limit:
        name = "standard input" if path == "-" else path
        raise InputError(f"{name}: size", found=f"over {limit} bytes", expected=f"<= {limit}")
    return raw


def _require_regular(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
        raise NotRegular(name, found=kind, expected="a regular file")
