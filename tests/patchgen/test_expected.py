"""What the reference tool generates, as syntax trees, up to the deliberate differences."""

from __future__ import annotations

import ast
import importlib
import io
import json
import sys
import tokenize
from pathlib import Path
from typing import Any

import pytest

from .projects import REFERENCE, copy_project, patchgen

EXPECTED = REFERENCE / "expected"
NAMES = sorted(p.name.removesuffix(".raw.py") for p in EXPECTED.glob("*.raw.py"))
FACTS = {n: json.loads((EXPECTED / f"{n}.facts.json").read_text()) for n in NAMES}
KEPT = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign)
DIFFERENT = {
    # text that the map would double is left as it is
    "patched_mini_moe_reuse": ["# MiniMoe model, see also MiniMoeMoe for the sibling"],
}
"""Comments of the reference tool that are deliberately others here."""


def module(name: str, root: Path) -> str:
    facts = FACTS[name]
    variable = "settings" if name == "patched_other_name" else "config"
    options = ["--stdout", "--allow-findings", "-c", variable]
    done = patchgen("generate", facts["config_module"], *options, cwd=root)
    assert done.code in (0, 1) and done.out, done.err
    return done.out


def comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t.string for t in tokens if t.type == tokenize.COMMENT]


def source_of(name: str) -> ast.Module:
    config = ast.parse((REFERENCE / "project" / path_of(FACTS[name]["config_module"])).read_text())
    for node in ast.walk(config):
        if isinstance(node, ast.keyword) and node.arg == "source_module":
            assert isinstance(node.value, ast.Constant)
            return ast.parse((REFERENCE / "project" / path_of(str(node.value.value))).read_text())
    raise AssertionError


def path_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


def imports(body: list[ast.stmt]) -> list[str]:
    """Each imported name as a statement of its own."""
    found = []
    for node in body:
        if isinstance(node, ast.Import):
            found += [f"import {ast.unparse(a)}" for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"from {node.module} import {ast.unparse(a)}" for a in node.names]
    return found


def statements(tree: ast.Module, apart: set[str]) -> list[str]:
    """What the reference tool keeps besides imports, without the docstring and `apart`."""
    kept = [n for n in tree.body if isinstance(n, (*KEPT, ast.Try))]
    return [d for d in map(ast.dump, kept) if d not in apart]


def replaced(tree: ast.Module, cls: str, method: str, text: str) -> None:
    """Put a method into the tree of the reference tool where it is wrong."""
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls)
    index = next(i for i, n in enumerate(node.body) if getattr(n, "name", "") == method)
    node.body[index] = ast.parse(text).body[0]


@pytest.mark.parametrize("name", NAMES)
def test_same_tree_as_the_reference_tool(name: str, tmp_path: Path) -> None:
    text = module(name, copy_project(tmp_path))
    ours, theirs = ast.parse(text), ast.parse((EXPECTED / f"{name}.raw.py").read_text())
    if name == "patched_paren":  # a bracket in a description swallows the function there
        replaced(theirs, "MiniMoeGate", "forward",
                 "def forward(self, values, mask=None):\n    return list(values)")  # fmt: skip
    if name == "patched_other_name":  # the decorator stays there
        replaced(theirs, "MiniMoeGate", "forward",
                 "def forward(self, values, mask=None):\n    return []")  # fmt: skip
    source = source_of(name)
    # statements that are left out there; a Try in an added block is in both
    apart = {ast.dump(n) for n in source.body if isinstance(n, ast.Try)}
    assert statements(ours, apart) == statements(theirs, apart)
    kinds = {type(n) for n in ours.body}
    assert kinds >= {type(n) for n in source.body}, "every statement of the source is kept"
    assert ast.get_docstring(ours) == ast.get_docstring(source)


@pytest.mark.parametrize("name", NAMES)
def test_same_imports_in_the_same_order(name: str, tmp_path: Path) -> None:
    text = module(name, copy_project(tmp_path))
    ours, theirs = ast.parse(text), ast.parse((EXPECTED / f"{name}.raw.py").read_text())
    source = source_of(name)
    guarded = [n for n in source.body if not isinstance(n, ast.Import | ast.ImportFrom)]
    hoisted = imports([n for g in guarded for n in ast.walk(g)])  # type: ignore[misc]
    used = {n.id for n in ast.walk(ours) if isinstance(n, ast.Name)}
    names = {n.id for n in ast.walk(source) if isinstance(n, ast.Name)}
    expected = [
        line
        for line in imports(theirs.body)
        if line not in hoisted and (line.split()[-1] in used or line.split()[-1] not in names)
    ]
    assert imports(ours.body) == expected
    inside = [n for n in ast.walk(ours) if n not in ours.body]
    assert set(hoisted) & set(imports(inside)) == {  # type: ignore[arg-type]
        line for line in hoisted if line.split()[-1] in text
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_comment_is_kept(name: str, tmp_path: Path) -> None:
    found = comments(module(name, copy_project(tmp_path)))
    expected = comments((EXPECTED / f"{name}.raw.py").read_text())
    for comment in DIFFERENT.get(name, ()):
        expected.remove(comment)
    missing = [c for c in expected if c not in found]
    assert missing == [] and len(found) >= len(expected)


@pytest.mark.parametrize("name", NAMES)
def test_header_and_markers(name: str, tmp_path: Path) -> None:
    """Markers are those of the reference tool; the header lists what was applied."""
    text = module(name, copy_project(tmp_path))
    found = [c.removeprefix("# ") for c in comments(text) if c.startswith("# [")]
    assert found == FACTS[name]["markers"]
    lines = text.split("\n\n")[0].split("\n")
    assert f"# Based on: {FACTS[name]['header']['based_on']}" in lines
    listed = [x.removeprefix("#   ") for x in lines if x.startswith("#   ")]
    registered = FACTS[name]["header"]["patches"]
    if name == "patched_not_applied":
        registered = [
            *("class_replacement: MiniMoeOutput", "  Replace MiniMoeOutput with SmallOutput"),
            *("method_override: MiniMoeGate.forward", "  second of two"),
        ]
    assert listed == registered


@pytest.mark.parametrize("name", NAMES)
def test_diff_names(name: str, tmp_path: Path) -> None:
    variable = "settings" if name == "patched_other_name" else "config"
    options = ["--stdout", "--diff", "--allow-findings", "-c", variable]
    config = FACTS[name]["config_module"]
    lines = patchgen("generate", config, *options, cwd=copy_project(tmp_path)).out.split("\n")
    if "diff" in FACTS[name]:
        assert lines[:2] == [FACTS[name]["diff"]["from_name"], FACTS[name]["diff"]["to_name"]]
    assert [x for x in lines if x != x.rstrip()] == []


@pytest.mark.parametrize("name", ["patched_mini_all", "patched_mini_model", "patched_paren"])
def test_generated_module_can_be_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_project(tmp_path)
    text = module(name, root)
    monkeypatch.syspath_prepend(str(root))
    before = set(sys.modules)
    space: dict[str, Any] = {"__name__": name}
    (root / f"{name}.py").write_text(text)
    try:
        space = vars(importlib.import_module(name))
    finally:
        for new in set(sys.modules) - before:
            if new.startswith(("upkit", name)):
                del sys.modules[new]
    if name == "patched_mini_all":
        model = space["MiniModel"](type("Settings", (), {"width": 2}))
        assert model.extra_step([1, 2, 3]) == 3
        assert model.forward([3.0, 4.0]).state is None
