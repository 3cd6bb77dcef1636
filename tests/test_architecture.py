"""docs/architecture.md is true: folders, modules, who imports whom, classes, dependencies."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOPS = {"ntool": "cli", "ntool.commands": "commands", "ntool.lib": "lib"}
FAMILIES = ("neo_chat", "qwen4_exp")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    return found[1]


@cache
def imported() -> dict[str, dict[str, int]]:
    """Module -> the modules of ours that it imports, anywhere in it, with the line."""
    found: dict[str, dict[str, int]] = {}
    for name, path in modules():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        inside: dict[str, int] = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1])
                base = f"{base}.{node.module}" if node.module else base
                inside |= {f"{base}.{a.name}": node.lineno for a in node.names}
        found[name] = inside
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for top, folder in TOPS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((top, *parts)).removesuffix(".__init__"), path


def wrong(who: str, whom: str, but: tuple[str, ...] = ()) -> list[str]:
    """Imports by modules that match an expression of those that match another."""
    return [
        f"{name}:{line}: {target}"
        for name, targets in imported().items()
        for target, line in targets.items()
        if re.match(who, name) and re.match(whom, target) and not target.startswith(but or ("-",))
    ]


def test_every_package_and_module_at_the_top_is_named() -> None:
    tree = section("Tree")
    folders = set(re.findall(r"`((?:cli|commands|lib)/[\w/]*)`", tree))
    wanted = set()
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        top = max((t for t in TOPS if f"{package}.".startswith(f"{t}.")), key=len)
        rest = package.removeprefix(top).strip(".").replace(".", "/")
        wanted.add(f"{TOPS[top]}/{rest}/" if rest else f"{TOPS[top]}/")
    assert wanted <= folders
    for path in (ROOT / "lib").glob("*.py"):
        assert path.name == "__init__.py" or f"`{path.name}`" in tree, path.name
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.name.startswith(".") and any(folder.glob("*.*")):
            known = f"`{folder.name}/`" in tree or folder.name in ("docs", "demo-output", "build")
            assert known or folder.name.endswith(".egg-info"), folder.name


def test_every_path_exists() -> None:
    """Paths anywhere on the page; bare file names are in the folder of their row, or in one at
    all."""
    paths = set(re.findall(r"\b(?:cli|commands|lib|tests|docs)/[\w./-]*\w\.(?:py|md)\b", PAGE))
    assert len(paths) > 15
    assert {p for p in paths if not (ROOT / p).is_file() and "NAME" not in p} == set()
    for line in re.findall(r"^\| `.*", section("Tree"), re.M):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`(\w+\.py)`", cells[2]):
            folder = ROOT / cells[0].strip("`")
            assert (folder / name).is_file(), f"{folder}: {name}"
    names = set(re.findall(r"`(\w+\.py)`", PAGE))
    there = {path.name for _, path in modules()}
    assert names <= there


def test_the_drawing_names_every_command_of_the_pipeline() -> None:
    from ntool.commands import COMMANDS

    drawing = section("How data flows").split("```")[1]
    for name in COMMANDS:
        assert name in drawing or name in ("doctor", "patchgen", "completion"), name


def test_imports_go_one_way() -> None:
    lib = r"ntool\.lib(\.|$)"
    outside = r"ntool\.(?!lib\.)"
    assert wrong(lib, outside, but=("ntool.version.",)) == []
    assert wrong(r"ntool\.commands\.", r"ntool\.commands\.") == []
    for family in FAMILIES:
        other = "|".join(f for f in FAMILIES if f != family)
        assert (
            wrong(rf"ntool\.lib\.families\.{family}\.", rf"ntool\.lib\.families\.({other})") == []
        )
        named = rf"ntool\.lib\.families\.{family}(\.|$)"
        assert wrong(r"ntool\.lib\.(?!families\.\w+\.)", named) == []
        users = wrong(r"ntool\.(?!lib\.)", named)
        assert all(u.startswith("ntool.commands.sample_image:") for u in users), users
    for folder in ("checkpoint", "numeric", "text"):
        known = "checkpoint|numeric|text|demo|errors|progress|suggestions"
        assert wrong(rf"ntool\.lib\.{folder}\.", rf"ntool\.lib\.(?!({known})(\.|$))") == []
    for name in ("errors", "progress", "suggestions"):
        assert imported()[f"ntool.lib.{name}"] == {}


def test_the_search_for_imports_sees_them() -> None:
    assert wrong(r"ntool\.lib\.records$", r"ntool\.lib\.errors\.") != []
    assert wrong(r"ntool\.commands\.census$", r"ntool\.lib\.") != []


def test_classes_that_are_told_exist() -> None:
    told = set(re.findall(r"\*\*([A-Z]\w+)\*\*", section("From options to pictures")))
    assert {"Request", "Job", "Order", "Pipeline", "Settings"} <= told
    there = set()
    for _, path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        there |= {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    assert told <= there


def test_dependencies_are_those_of_the_project() -> None:
    project = PROJECT["project"]
    asked = [*project["dependencies"]]
    for extra in ("patchgen", "plot"):
        asked += project["optional-dependencies"][extra]
    wanted = {re.split(r"[<>=;\[ ]", words)[0] for words in asked}
    told = set()
    for first in re.findall(r"^\| ([^|]+) \|", section("Dependencies"), re.M):
        told |= {name.split(" ")[0] for name in first.split(", ")}
    assert wanted - {"onnxruntime"} == told - {"package", "---"}
    assert "`onnxruntime`" in section("Dependencies")
