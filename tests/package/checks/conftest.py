from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_faults import TEXT

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import export


@pytest.fixture(scope="session")
def good_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the demonstration checkpoint; never changed."""
    out = tmp_path_factory.mktemp("good") / "pkg"
    export.write(export.plan(open_checkpoint("demo:shapes")), out)
    return out


@pytest.fixture(scope="session")
def linkable(good_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that others may share files with: other tests count its names."""
    out = tmp_path_factory.mktemp("linkable") / "pkg"
    shutil.copytree(good_package, out)
    return out


@pytest.fixture(scope="session")
def good(linkable: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good package of each family."""
    out = tmp_path_factory.mktemp("qwen") / "pkg"
    export.write(export.plan(open_checkpoint(str(TEXT))), out)
    return {"neo": linkable, "qwen": out}


@pytest.fixture
def package(good_package: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy that a test may damage."""
    root = tmp_path / "pkg"
    shutil.copytree(good_package, root)
    yield root
    shutil.rmtree(root)
