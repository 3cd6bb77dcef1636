"""Writing: safetensors files with aligned offsets, and outputs that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import EnvironmentProblem, InputError, SourceNotFound, UsageProblem
from .folder import Readable
from .hidden_folder import hidden_folder, is_hidden
from .output_file import require_writable, sync_folder

COPIED, READ = 1 << 24, 1 << 20
"""Bytes of one copy inside the kernel, and of one through this process."""
_NO_KERNEL_COPY = (
    *(errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF),
    *(errno.ETXTBSY,),
)
ALIGNMENT = 64
"""Bytes. Offsets that are multiples of it suit every vector unit and cuBLAS."""
METADATA = {"format": "pt"}
"""What a checkpoint's files say of themselves; some loaders refuse a file that does not."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor to be written: its header fields, and where its payload comes from.

    Attributes:
        bands: streams a payload that is computed.
        copies: (file, offset, bytes) of a payload that is moved as it is, piece by piece.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    bands: Callable[[], Iterable[bytes | memoryview]] = tuple
    copies: Callable[[], Iterable[tuple[Readable, int, int]]] = tuple


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an entry's payload will stand: file name, bytes from the start of the file, length."""

    file: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class DataFile:
    """One safetensors file to be written: its header bytes and its entries in order."""

    name: str
    header: bytes
    entries: tuple[Entry, ...]

    @property
    def nbytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + sum(e.nbytes for e in self.entries)


def alignment(nbytes: int) -> int:
    """Largest power of two up to 64 that divides `nbytes`."""
    return ALIGNMENT if nbytes % ALIGNMENT == 0 else nbytes & -nbytes


def plan_files(entries: list[Entry], shard_nbytes: int) -> tuple[list[DataFile], dict[str, Placed]]:
    """Lay entries out in one or more files of at most `shard_nbytes` (a larger tensor has its own).

    Tensors whose size is a multiple of 64 come first, sorted by name, then those of smaller
    alignment, so that without any gap (the format allows none) every offset is aligned as far as
    sizes permit: to 64 bytes for all but the odd-sized tail.
    """
    ordered = sorted(entries, key=lambda e: (-alignment(e.nbytes), e.name))
    groups: list[list[Entry]] = [[]]
    size = 0
    for entry in ordered:
        if groups[-1] and size + entry.nbytes > shard_nbytes:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.nbytes
    files, placed = [], {}
    for i, group in enumerate(groups, 1):
        name = (
            "model.safetensors"
            if len(groups) == 1
            else f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        )
        header = encode_header(group)
        files.append(DataFile(name, header, tuple(group)))
        offset = len(header)
        for entry in group:
            placed[entry.name] = Placed(name, offset, entry.nbytes)
            offset += entry.nbytes
    return files, placed


def encode_header(entries: Iterable[Entry], metadata: Mapping[str, str] = METADATA) -> bytes:
    """Length prefix and JSON header, padded with spaces so that the data start on a 64-byte
    boundary."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for e in entries:
        header[e.name] = {
            "dtype": e.dtype,
            "shape": list(e.shape),
            "data_offsets": [at, at + e.nbytes],
        }
        at += e.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_file(folder: Path, data: DataFile, progress: Callable[[int], object]) -> None:
    """Stream one data file into `folder` and flush it to the disk."""
    write_data(folder / data.name, data, progress)


def write_data(path: Path, data: DataFile, progress: Callable[[int], object]) -> None:
    """Stream one data file to `path`, where nothing is yet, and flush it to the disk.

    Its room is taken first where the file system can do that: a full disk is noticed before the
    first byte, and the file lies in one piece.
    """
    with open(path, "xb", buffering=0) as f:
        _named(path, _take_room, f.fileno(), data.nbytes)
        _named(path, _write_all, f.fileno(), data.header)
        progress(len(data.header))
        for entry in data.entries:
            written = 0
            for readable, offset, nbytes in entry.copies():
                for count in copy_range(readable, offset, nbytes, f.fileno(), path):
                    written += count
                    progress(count)
            for band in entry.bands():
                _named(path, _write_all, f.fileno(), band)
                written += len(band)
                progress(len(band))
            assert written == entry.nbytes, f"{entry.name}: wrote {written} of {entry.nbytes}"
        _named(path, os.fsync, f.fileno())


def copy_range(source: Readable, offset: int, nbytes: int, fd: int, path: Path) -> Iterator[int]:
    """Append bytes of a file to another; yields how many, piece by piece.

    Inside the kernel where both are files of this machine: file systems that can share the blocks
    copy nothing at all.

    Raises:
        InputError: the source ends early.
    """
    end = offset + nbytes
    descriptor = getattr(source, "fileno", None)
    while offset < end:
        if descriptor is not None and hasattr(os, "copy_file_range"):
            try:
                most = min(end - offset, COPIED)
                count = os.copy_file_range(descriptor(), fd, most, offset)
            except OSError as e:
                if e.errno not in _NO_KERNEL_COPY:
                    raise OSError(e.errno, e.strerror, str(path)) from e
                descriptor = None
                continue
        else:
            piece = source.read(offset, min(end - offset, READ))
            _named(path, _write_all, fd, piece)
            count = len(piece)
        if not count:
            what = f"{path.name}: the source ends early, bytes missing"
            raise InputError(what, found=end - offset)
        offset += count
        yield count


def _take_room(fd: int, nbytes: int) -> None:
    """Allocate a file's room; where that is not known, nothing."""
    if not nbytes or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
            raise


def _write_all(fd: int, data: bytes | memoryview) -> None:
    """write() takes less than it is given now and then, and never more than 2 GiB."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def _named(path: Path, call: Callable[..., object], *arguments: object) -> None:
    """Call, and give an error of the system the name of the file: write() does not know it."""
    try:
        call(*arguments)
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from e


def check_space(folder: Path, nbytes: int) -> None:
    """Refuse to start what the disk cannot hold.

    Raises:
        EnvironmentProblem: free bytes below `nbytes`.
    """
    parent = folder
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if free < nbytes:
        raise EnvironmentProblem(
            f"{folder}: not enough disk space, bytes", found=free, expected=f">= {nbytes}"
        )


def check_output(out: Path, inputs: Iterable[str], *, force: bool, marker: str) -> None:
    """Refuse an output folder that is an input, lies in one, holds one, or exists.

    Args:
        force: replace an existing folder, but only one that holds `marker` (so that a mistyped path
            cannot delete somebody's work) or is empty.
    Raises:
        UsageProblem: says which rule is broken.
        SourceNotFound: what should be its folder is none. One that is not there will be made.
        EnvironmentProblem: its folder cannot be written to.
    """
    real = Path(os.path.realpath(out))
    for given in inputs:
        source = Path(os.path.realpath(given))
        if real == source or real in source.parents or source in real.parents:
            raise UsageProblem(
                f"output '{out}' and input '{given}': one is or holds the other",
                hint="name a folder outside the source",
            )
    if not os.path.lexists(out):
        above = next(p for p in out.absolute().parents if os.path.lexists(p))
        if not above.is_dir():
            raise SourceNotFound(f"output '{out}': no folder '{out.parent}'")
        require_writable(str(out), str(above))
        return
    if not out.is_dir():
        raise UsageProblem(f"output '{out}' exists and is not a folder")
    require_writable(str(out), str(real.parent))
    if not any(out.iterdir()):
        return
    if not force:
        raise UsageProblem(f"output '{out}' exists", hint="--force replaces it")
    if not (out / marker).is_file():
        raise UsageProblem(
            f"output '{out}' exists and holds no {marker}: not replaced",
            hint="remove it yourself, or name another folder",
        )


@contextmanager
def new_folder(out: Path, *, replace: str | None = None) -> Iterator[Path]:
    """A temporary sibling of `out` that takes its place when the block ends, and vanishes if it
    raises.

    A killed process leaves at most a hidden folder `.NAME.ntool-PID.tmp`, never a half-written
    `out`; `remove_left` removes it before the next one. A link `out` stays, what it leads to is
    made.

    Args:
        replace: None keeps a folder that is there by now, even one that another process has just
            made; the name of a file allows to replace a folder that holds it.
    Raises:
        UsageProblem: `out` exists and is not to be replaced.
        EnvironmentProblem: something cannot be written; names what, by its place in `out`.
    """
    given, out = out, Path(os.path.realpath(out))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with hidden_folder(out) as temporary:
            try:
                yield temporary
                sync_folder(temporary)
                take_place(temporary, out, given, replace)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        sync_folder(out.parent)
    except OSError as e:
        where = Path(str(e.filename or ""))
        hidden = [p for p in (where, *where.parents) if is_hidden(p, out)]
        if not (hidden or out in (where, *where.parents) or where in out.parents):
            raise  # of the source, not of the output
        shown = str(where).replace(str(hidden[0]), str(given), 1) if hidden else str(where)
        raise EnvironmentProblem(f"{shown}: cannot write: {e.strerror}") from e


def take_place(temporary: Path, out: Path, given: Path, replace: str | None) -> None:
    """Rename a finished folder to its place: where nothing is, or an empty folder, or one that may
    be replaced. Of two that finish at the same time one fails: the rename itself sees to that."""
    old = out.parent / f".{out.name}.ntool-{os.getpid()}.old"
    while not _renamed(temporary, out):
        if replace is None or not (out / replace).is_file():
            raise UsageProblem(f"output '{given}' exists: made meanwhile by another process, kept")
        try:
            os.rename(out, old)
        except FileNotFoundError:  # another process moves it just now
            continue
        try:
            done = _renamed(temporary, out)
        except BaseException:
            with suppress(OSError):
                os.rename(old, out)
            raise
        shutil.rmtree(old, ignore_errors=True)
        if done:
            return


def _renamed(temporary: Path, out: Path) -> bool:
    """Rename; False where something is in the way."""
    try:
        os.rename(temporary, out)
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file inside a folder that is not visible yet, flushed to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as f:
        _named(path, f.write, data)
        _named(path, f.flush)
        _named(path, os.fsync, f.fileno())
