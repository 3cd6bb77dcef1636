"""SHA256SUMS: the list of all files of a package with their hashes, as `sha256sum -c` reads it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator

from ..checkpoint.paths import contained, path_fault
from ..checkpoint.regular_file import open_regular, read_all
from ..errors import InputError, NtoolError
from ..progress import step
from . import layout

NAME = layout.SUMS
MAX_SUMS = 16 << 20
MAX_FILES = 100_000
THREADS = 4
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


def read(path: str) -> dict[str, str]:
    """{file: SHA-256 in lower case} of a checksum list.

    Raises:
        InputError, SourceNotFound: not readable, a line that is none, a path that is not plain, or
            a file twice.
    """
    name = os.path.basename(path)
    if name == NAME:
        # the package's own; where it leads out of the package it is not read, nor quoted
        _, problem = contained(os.path.dirname(path) or ".", name)
        if problem is not None:
            raise InputError(f"{name}: {problem.message}")
    try:
        text = read_all(os.path.realpath(path), name, MAX_SUMS).decode()
    except UnicodeDecodeError as e:
        raise InputError(f"{name}: not UTF-8: byte at {e.start}") from e
    listed: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise InputError(
                f"{name}: line {number}",
                found=line[:80],
                expected="64 hex digits, two spaces, a file",
            )
        file = match[2].removeprefix("./")
        fault = path_fault(file)
        if fault:
            raise InputError(f"{name}: line {number}: file '{file}' {fault}")
        if file in listed:
            raise InputError(f"{name}: line {number}: file '{file}' twice")
        listed[file] = match[1].lower()
    if not listed:
        raise InputError(f"{name}: lists no file")
    return listed


def files(root: str) -> list[str]:
    """All files under a folder, sorted; links and other odd things included.

    Left out are SHA256SUMS itself and the folders of download tools.

    Raises:
        InputError: too many files.
    """
    found = []
    for folder, folders, names in os.walk(root):
        if folder == root:
            folders[:] = [d for d in folders if d not in layout.BOOKKEEPING]
        folders.sort()
        for name in [*names, *(d for d in folders if os.path.islink(os.path.join(folder, d)))]:
            relative = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            if relative != NAME:
                found.append(relative)
        if len(found) > MAX_FILES:
            raise InputError(f"{root}: files", found=f"more than {MAX_FILES}")
    return sorted(found)


def digest(root: str, name: str, progress: Callable[[int], object] = lambda n: None) -> str:
    """SHA-256 of a regular file of a folder, in hex.

    Raises:
        InputError: a link that leaves the folder, not a regular file, or changed while it was read.
    """
    real, problem = contained(root, name)
    if problem is not None:
        raise InputError(f"{name}: {problem.message}")
    h = hashlib.sha256()
    with open_regular(real, name) as f:
        for band in f.bands(0, f.nbytes):
            h.update(band)
            progress(len(band))
        if not f.unchanged():
            raise InputError(f"{name}: changed while it was read")
    return h.hexdigest()


def digests(root: str, names: Iterable[str]) -> Iterator[tuple[str, str | InputError]]:
    """(name, SHA-256 in hex or why there is none) of files of a folder, in their order; several at
    once: neither reading nor hashing holds other threads up."""
    from concurrent.futures import ThreadPoolExecutor

    def one(name: str) -> str | InputError:
        try:
            return digest(root, name, bar.update)
        except InputError as e:
            return e
        except NtoolError as e:
            return InputError(e.message)

    names = list(names)
    total = sum(_size(os.path.join(root, name)) for name in names)
    with (
        step(total, "hashing") as bar,
        ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool,
    ):
        yield from zip(names, pool.map(one, names), strict=True)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # hashing it says what is wrong
        return 0


def check_place(root: str) -> str:
    """The path of the list of a folder, if it can be written there.

    Raises:
        InputError: a link is in its place.
        EnvironmentProblem: the folder is not writable.
    """
    from ..checkpoint.output_file import require_writable

    path = os.path.join(root, NAME)
    if os.path.islink(path):
        raise InputError(f"{NAME}: a symbolic link", expected="a file of the package, or none")
    require_writable(path, root)
    return path


def write(root: str) -> int:
    """Write SHA256SUMS of all files; returns how many.

    Raises:
        InputError: something in the folder is not a regular file, or has a name that the format
            cannot carry.
    """
    from ..checkpoint.output_file import write_whole

    path = check_place(root)
    names = files(root)
    for name in names:
        fault = path_fault(name)
        if fault:
            raise InputError(f"file '{name}' {fault}", hint=f"rename it; {NAME} cannot list it")
    lines = []
    for name, found in digests(root, names):
        if isinstance(found, InputError):
            raise found
        lines.append(f"{found}  {name}\n")
    write_whole(path, lambda f: f.write("".join(lines).encode()))
    return len(lines)
