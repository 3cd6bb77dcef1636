"""Bounded reading of files that others made."""

from __future__ import annotations

import os
import stat

from .errors import InputError, SourceNotFound


def read_bytes(path: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes.

    Raises:
        SourceNotFound: no such file.
        InputError: not a regular file, too large, or changed while it was read.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as e:
        raise SourceNotFound(f"{path}: no such file") from e
    except OSError as e:
        raise InputError(f"{path}: cannot read: {e.strerror}") from e
    try:
        info = os.fstat(fd)
        # before open(), which refuses a folder with an error of its own
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path}: not a regular file")
        if info.st_size > limit:
            raise InputError(f"{path}: size", found=info.st_size, expected=f"<= {limit} bytes")
        with open(fd, "rb", closefd=False) as f:
            data = f.read(limit + 1)
    except OSError as e:
        raise InputError(f"{path}: cannot read: {e.strerror}") from e
    finally:
        os.close(fd)
    if len(data) != info.st_size:
        raise InputError(f"{path}: changed while it was read")
    return data
