"""A package in the checkpoint's own folder: graphs, package.json and what belongs to them take
their places together, and nothing that the folder had is touched but a package that was written so
before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ..checkpoint.output_file import sync_folder
from ..checkpoint.paths import path_fault
from ..checkpoint.regular_file import read_file
from ..checkpoint.strict_json import load_object
from ..checkpoint.writer import write_bytes
from ..errors import EnvironmentProblem, NtoolError, UsageProblem
from . import layout, sums

_MOST = 64 << 20
_HINT = "remove it yourself, or --data copy"


def check(root: Path, names: Iterable[str], *, force: bool) -> set[str]:
    """Refuse a folder in which something stands where the package goes.

    Args:
        names: files of the package, relative.
        force: replace a package that was put into the folder before.
    Returns:
        Names at the top of the folder that are of that package.
    Raises:
        UsageProblem: names what is in the way.
    """
    wanted = _tops(names)
    there = sorted(n for n in wanted if os.path.lexists(root / n))
    if not there:
        return set()
    old = _package(root)
    foreign = [n for n in there if n not in old]
    if foreign:
        what = f"'{root / foreign[0]}' exists and is no part of a package: not replaced"
        raise UsageProblem(what, hint=_HINT)
    if not force:
        what = f"'{root}' holds a package already ('{layout.MANIFEST}')"
        raise UsageProblem(what, hint="--force replaces it")
    return old


def write(root: Path, files: Mapping[str, bytes], *, force: bool) -> None:
    """Put files into a folder: all of them, or none. package.json comes last, and goes first where
    a package is replaced, so that a killed process leaves no package.

    Raises:
        UsageProblem: as `check`, also of what another process has put there meanwhile.
        EnvironmentProblem: something cannot be written.
    """
    replaced = check(root, files, force=force)
    new, old = (root / f".package.ntool-{os.getpid()}.{kind}" for kind in ("tmp", "old"))
    moved: list[tuple[Path, Path]] = []
    try:
        try:
            for folder in (new, old):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            for name, content in files.items():
                write_bytes(new / name, content)
            sync_folder(new)
            for name in sorted(replaced, key=lambda n: n != layout.MANIFEST):
                _move(root / name, old / name, moved)
            for name in sorted(_tops(files), key=lambda n: n == layout.MANIFEST):
                if os.path.lexists(root / name):
                    raise UsageProblem(f"'{root / name}': made meanwhile by another process, kept")
                _move(new / name, root / name, moved)
        except BaseException:
            for source, target in reversed(moved):
                with suppress(OSError):
                    os.rename(target, source)
            raise
        finally:
            for folder in (new, old):
                shutil.rmtree(folder, ignore_errors=True)
        sync_folder(root)
    except OSError as e:
        shown = str(e.filename or root).replace(str(new), str(root), 1)
        raise EnvironmentProblem(f"{shown}: cannot write: {e.strerror}") from e


def _move(source: Path, target: Path, moved: list[tuple[Path, Path]]) -> None:
    os.rename(source, target)
    moved.append((source, target))


def _tops(names: Iterable[str]) -> set[str]:
    return {n.split("/")[0] for n in names}


def _package(root: Path) -> set[str]:
    """Names at the top of a folder that an export has put there, by its package.json; none where
    that is somebody else's.

    A package.json may come with a downloaded checkpoint and say anything, so what is taken for ours
    are names that an export gives, never those of data.
    """
    try:
        manifest = load_object(read_file(str(root / layout.MANIFEST), _MOST), layout.MANIFEST)
    except NtoolError:
        return set()
    components = manifest.get("components")
    if manifest.get("schema") != layout.SCHEMA or not isinstance(components, dict):
        return set()
    ours = {layout.MANIFEST, layout.REPORT}
    for name, entry in components.items():
        graph = f"{name}.onnx"
        if not isinstance(entry, dict) or entry.get("data_form") != layout.INPLACE:
            return set()
        if entry.get("graph") == graph and path_fault(graph) is None and "/" not in graph:
            ours.add(graph)
    ours |= {n for n in (layout.PROCESSOR, layout.TOKENIZER) if n in manifest.values()}
    if _lists_package(root):
        ours.add(layout.SUMS)
    return {n for n in ours if os.path.lexists(root / n)}


def _lists_package(root: Path) -> bool:
    """Whether the folder's checksums are of a package: they hold no longer when that is replaced,
    while those that came with the checkpoint do."""
    with suppress(NtoolError, OSError):
        return layout.MANIFEST in sums.read(str(root / layout.SUMS))
    return False
