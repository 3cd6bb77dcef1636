"""A small package that tests of verify-package share; they leave it as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import export


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verify") / "pkg"
    export.write(export.plan(open_checkpoint("demo:shapes"), ["embedding", "vision_encoder"]), out)
    return out


@pytest.fixture
def readme(package: Path) -> Iterator[Path]:
    """A file that makes `layout.files` fail while it is there."""
    path = package / "left-over.txt"
    path.write_text("x")
    yield path
    path.unlink()


@pytest.fixture
def broken(package: Path, tmp_path: Path) -> Path:
    """A copy of the package that a test may damage."""
    return Path(shutil.copytree(package, tmp_path / "broken"))
