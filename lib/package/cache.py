"""Exports made on the way: a checkpoint given where a package is wanted is exported once and
kept."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .. import demo, families
from ..checkpoint.safetensors_header import read_header, require_sound
from ..checkpoint.source import open_checkpoint
from ..checkpoint.tensor import Checkpoint
from ..errors import EnvironmentProblem, NtoolError, SourceNotFound, Unsupported, UsageProblem
from ..families import gguf
from . import layout
from .not_a_package import refuse_part
from .package import Package, inside, is_package, open_package

WHERE = "NTOOL_CACHE names another folder"


def cache_folder() -> Path:
    """`NTOOL_CACHE`, else `ntool` in the user's cache folder.

    Raises:
        EnvironmentProblem: a name that is not UTF-8, which the runtime cannot open.
    """
    own = os.environ.get("NTOOL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = own or os.path.join(base, "ntool")
    try:
        folder.encode()
    except UnicodeEncodeError as e:
        raise EnvironmentProblem(f"cache '{folder}': name is not UTF-8", hint=WHERE) from e
    return Path(folder)


def cache_key(checkpoint: Checkpoint) -> str:
    """Hash of what an export depends on: ntool's version and each file's path, size and time of
    change."""
    from ...version import VERSION

    lines = [VERSION, str(checkpoint.config_hash), str(checkpoint.index_hash)]
    names = sorted({t.file for t in checkpoint.tensors.values()})
    for name in [*names, *layout.beside_weights()]:
        path = os.path.realpath(checkpoint.path(name))
        if os.path.exists(path):
            s = os.stat(path)
            lines.append(f"{path}\t{s.st_size}\t{s.st_mtime_ns}")
    text = "\n".join(lines)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


def folder_of(package: str) -> list[str]:
    """The folder of a package or checkpoint SOURCE, if it is on this machine."""
    if package.startswith("demo:") and package.removeprefix("demo:") in demo.NAMES:
        return [demo.path(package.removeprefix("demo:"))]
    if not os.path.exists(package):
        return []
    return [package if os.path.isdir(package) else os.path.dirname(os.path.abspath(package))]


@dataclass(frozen=True)
class Found:
    """What a command was given to run: a package, or a checkpoint that is not exported yet.

    Attributes:
        family: its model family, as its package.json or config.json has it.
    """

    family: str
    _package: Package | None
    _checkpoint: Checkpoint | None

    def package(self, note: Callable[[str], None]) -> Package:
        """The package itself, or the cached export of the checkpoint.

        Of several processes that want one export at the same time, one makes it and the others
        use it. An entry of the cache that is damaged is made again.

        Raises:
            what `export.plan` raises.
            EnvironmentProblem: the cache cannot be written.
        """
        if self._package is not None:
            return self._package
        assert self._checkpoint is not None
        folder = cache_folder() / cache_key(self._checkpoint)
        found, _ = _whole(folder)
        return found or _made(self._checkpoint, folder, note)


def find(source: str) -> Found:
    """The package in a folder, or the checkpoint SOURCE, opened; nothing is exported yet.

    Raises:
        what `open_package` and `open_checkpoint` raise.
        Unsupported: a family whose graphs ntool does not build.
    """
    if is_package(source):
        package = open_package(source)
        family = package.manifest["family"]
        if family not in families.EXPORTED:  # the name of a module to come, from a stranger's file
            raise Unsupported(
                f"{source}: family", found=repr(family), expected=" or ".join(families.EXPORTED)
            )
        return Found(family, package, None)
    refuse_part(source)
    checkpoint = open_checkpoint(source, local=True)
    gguf.refuse_payload(checkpoint)
    checkpoint.refuse_if_broken()
    if checkpoint.config_hash is None:
        raise SourceNotFound(
            f"{source}: config.json: no such file", hint="give the checkpoint's folder"
        )
    module = families.find(checkpoint.config, f"{source}: config.json")
    return Found(module.NAME, None, checkpoint)


def package_of(source: str, note: Callable[[str], None]) -> Package:
    """The package in a folder, or the cached export of a checkpoint SOURCE; see `Found.package`.

    Raises:
        what `find` and `Found.package` raise.
    """
    return find(source).package(note)


def _made(checkpoint: Checkpoint, folder: Path, note: Callable[[str], None]) -> Package:
    from . import export

    family = families.find(checkpoint.config, f"{checkpoint.source}: config.json")
    without = getattr(family, "text_only_by_default", None)
    text_only = without is not None and without(checkpoint.config)
    # what is wrong with the checkpoint is told before all else
    plan = export.plan(checkpoint, text_only=text_only)
    with _alone(folder, note) as locked:
        found, damage = _whole(folder)  # another process may have made it meanwhile
        if found:
            return found
        if locked:
            _clear(folder)
        if damage:
            note(f"cache '{folder}' is damaged ({damage}); exporting again")
            _put_away(folder)
        what = f"{checkpoint.source}, its text model alone," if text_only else checkpoint.source
        note(f"exporting {what} once into the cache ({folder})")
        try:
            export.write(plan, folder)
        except UsageProblem:  # without a lock, another process may have been quicker
            found, _ = _whole(folder)
            if not found:
                raise
            return found
    found, damage = _whole(folder)
    if not found:
        raise EnvironmentProblem(f"cache '{folder}': {damage}", hint="delete that folder")
    return found


def _whole(folder: Path) -> tuple[Package | None, str]:
    """An entry of the cache, if all of its files are there and as long as they should be; else what
    is wrong with it, or "" where there is none."""
    if not os.path.lexists(folder):
        return None, ""
    try:
        package = open_package(folder)
        for name, entry in package.manifest["components"].items():
            graph = package.graph(name)
            if not graph.is_file() or not graph.stat().st_size:
                return None, f"no graph '{graph.name}' of {name}"
            package.check_data(name)
            for data in entry.get("data", []):
                path = folder / inside(data, str(folder))
                require_sound(read_header(os.path.realpath(path), data))
        if package.manifest["processor"] is not None:
            package.manifest_processor()
        if package.manifest["tokenizer"] is None:
            return package, ""
        tokenizer = Path(package.tokenizer_folder())
    except (NtoolError, OSError) as e:
        return None, str(e)
    _, required = layout.tokenizer_files(package.manifest["family"])
    for name in required:
        if not (tokenizer / name).is_file():
            return None, f"no tokenizer file '{name}'"
    return package, ""


@contextmanager
def _alone(folder: Path, note: Callable[[str], None]) -> Iterator[bool]:
    """While this process alone makes an entry; False where the system cannot see to that.

    The lock ends with the process, however it ends. Its file stays: removing it would let two
    processes hold two files of one name.

    Raises:
        EnvironmentProblem: the cache cannot be written to.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = open(folder.parent / f".{folder.name}.lock", "a")  # noqa: SIM115 -- below
    except OSError as e:
        raise EnvironmentProblem(f"cache '{folder.parent}': {e.strerror or e}", hint=WHERE) from e
    with file:
        yield _locked(file, folder, note)


def _locked(file: IO[str], folder: Path, note: Callable[[str], None]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(f"waiting for another process that exports into the cache ({folder})")
    except OSError:  # some network file systems have no locks
        return False
    else:
        return True
    fcntl.flock(file, fcntl.LOCK_EX)
    return True


def _clear(folder: Path) -> None:
    """Remove what killed processes left of this entry; whoever makes one holds the lock."""
    for left in folder.parent.glob(f".{folder.name}.ntool-*"):
        shutil.rmtree(left, ignore_errors=True)


def _put_away(folder: Path) -> None:
    """Take a damaged entry out of its place, then delete it: a process that reads it keeps its
    files.

    Raises:
        EnvironmentProblem: it cannot be moved.
    """
    old = folder.parent / f".{folder.name}.ntool-{os.getpid()}.old"
    try:
        os.rename(folder, old)
    except FileNotFoundError:  # another process was quicker
        return
    except OSError as e:
        raise EnvironmentProblem(
            f"cache '{folder}' is damaged, and cannot be replaced: {e.strerror}",
            hint="delete that folder",
        ) from e
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink()
