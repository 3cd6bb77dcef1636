"""Copies of projects that a test may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from .projects import copy_project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_project(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return make_project(
        tmp_path / "p",
        "import os\ndef f(x):\n    return os\n",
        '@config.replace_function("f")\ndef g(x):\n    return 1\n',
    )
