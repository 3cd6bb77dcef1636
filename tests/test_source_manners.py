"""Manners of the source: public things say what they are, and no file is too long to read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("bench", "cli", "commands", "lib")
LONGEST = 500


def files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def unsaid(path: Path) -> Iterator[str]:
    """Module, public classes, functions and methods that have no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path.stat().st_size and not ast.get_docstring(tree):
        yield "the module"
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        prefix, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            if not isinstance(child, kinds) or child.name.startswith("_"):
                continue
            if not ast.get_docstring(child):
                yield f"{prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                waiting.append((f"{prefix}{child.name}.", child))


@pytest.mark.parametrize("folder", CODE)
def test_public_things_have_docstrings(folder: str) -> None:
    found = {str(p.relative_to(ROOT)): list(unsaid(p)) for p in files(folder)}
    assert len(found) > 5
    assert not {k: v for k, v in found.items() if v}


def test_no_file_is_too_long() -> None:
    found = {
        str(p.relative_to(ROOT)): len(p.read_bytes().splitlines())
        for p in [*files(*CODE, "tests"), *(ROOT / "completions").iterdir()]
    }
    assert len(found) > 300
    assert not {k: v for k, v in found.items() if v > LONGEST}


def test_what_is_unsaid_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        '"""M."""\nclass A:\n    def f(self): ...\n    def _g(self): ...\ndef h():\n    """H."""\n'
    )
    assert sorted(unsaid(path)) == ["A", "A.f"]
    path.write_text("x = 1\n")
    assert list(unsaid(path)) == ["the module"]
