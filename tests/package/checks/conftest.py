from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import export


@pytest.fixture(scope="session")
def good_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the demonstration checkpoint; never changed."""
    out = tmp_path_factory.mktemp("good") / "pkg"
    export.write(export.plan(open_checkpoint("demo:shapes")), out)
    return out


@pytest.fixture
def package(good_package: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy that a test may damage."""
    root = tmp_path / "pkg"
    shutil.copytree(good_package, root)
    yield root
    shutil.rmtree(root)
