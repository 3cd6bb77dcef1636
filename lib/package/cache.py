"""Exports made on the way: a checkpoint given where a package is wanted is exported once and
kept."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ..checkpoint.source import open_checkpoint
from ..checkpoint.tensor import Checkpoint
from ..errors import EnvironmentProblem
from . import layout
from .package import Package, is_package, open_package


def cache_folder() -> Path:
    """`NTOOL_CACHE`, else `ntool` in the user's cache folder."""
    own = os.environ.get("NTOOL_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "ntool"


def cache_key(checkpoint: Checkpoint) -> str:
    """Hash of what an export depends on: ntool's version and each file's path, size and time of
    change."""
    from ...version import VERSION

    lines = [VERSION, str(checkpoint.config_hash), str(checkpoint.index_hash)]
    names = sorted({t.file for t in checkpoint.tensors.values()})
    for name in [*names, *layout.TOKENIZER_FILES, "generation_config.json"]:
        path = os.path.realpath(checkpoint.path(name))
        if os.path.exists(path):
            s = os.stat(path)
            lines.append(f"{path}\t{s.st_size}\t{s.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


def package_of(source: str, note: Callable[[str], None]) -> Package:
    """The package in a folder, or the cached export of a checkpoint SOURCE.

    Raises:
        what `open_package`, `open_checkpoint` and `export.plan` raise.
    """
    if is_package(source):
        return open_package(source)
    checkpoint = open_checkpoint(source)
    checkpoint.refuse_if_broken()
    folder = cache_folder() / cache_key(checkpoint)
    if not is_package(folder):
        from . import export

        note(f"exporting {source} once into the cache ({folder})")
        try:
            if folder.exists():  # a folder without package.json is none of ours that is finished
                shutil.rmtree(folder)
            export.write(export.plan(checkpoint), folder)
        except OSError as e:
            raise EnvironmentProblem(f"cache '{folder}': {e.strerror or e}") from e
    return open_package(folder)
