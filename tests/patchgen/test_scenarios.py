"""The scenarios of the reference tool's command line, with the exit codes meant for ours."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .projects import MINI, REFERENCE, copy_project, patchgen, tree

SCENARIOS = json.loads((REFERENCE / "scenarios.json").read_text())["scenarios"]
CONFIG = f"{MINI}/mini_all_patch_gen_config.py"
MODULE = f"{MINI}/generated/patched_mini_all.py"
SOURCE = "upkit/models/mini/modeling_mini.py"


def edit(path: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new, 1))

    return change


def generate(*options: str) -> Callable[[Path], None]:
    def step(root: Path) -> None:
        assert patchgen("generate", *options, cwd=root).code == 0

    return step


def delete(*paths: str) -> Callable[[Path], None]:
    def step(root: Path) -> None:
        for path in paths:
            (root / path).unlink()

    return step


def blanks_in_diff(root: Path) -> None:
    path = (root / MODULE).with_suffix(".diff")
    text = re.sub("^$", " ", path.read_text().rstrip("\n"), flags=re.M)
    assert " \n" in text
    path.write_text(text + "\n")


def dangling(root: Path) -> None:
    folder = root / "fixkit" / "models" / "hazards"
    original = REFERENCE / "project" / "fixkit" / "models" / "hazards"
    folder.mkdir()
    for name in ("__init__.py", "dangling_patch_gen_config.py"):
        shutil.copy(original / name, folder)


PREPARE: dict[str, Callable[[Path], None]] = {
    "generate every config with diffs": generate("--diff"),
    "generate": generate("--diff"),
    "generate every config without diffs": generate(),
    "change one line of a generated module by hand": edit(MODULE, "counter = 0", "counter = 9"),
    "delete one generated module": delete(MODULE),
    "delete one diff": delete(MODULE.replace(".py", ".diff")),
    "reword a comment in the source module": edit(SOURCE, "inside remark", "inner remark"),
    "reword a comment in a replacement": edit(CONFIG, "# comment kept", "# a comment kept"),
    "change only the version text of the config": edit(CONFIG, "fixture-1", "fixture-2"),
    "put one blank at the end of empty diff lines": blanks_in_diff,
    "delete one config, leave its generated module": delete(CONFIG),
    "delete every config": delete(CONFIG, f"{MINI}/mini_model_patch_gen_config.py"),
    "make one config import a module that is not installed": edit(
        CONFIG, "from functools", "import no_such_module_anywhere\nfrom functools"
    ),
    "change its generated module by hand": edit(MODULE, "counter = 0", "counter = 9"),
    "make one config raise NameError": edit(CONFIG, "config = ", "no_such_name\nconfig = "),
    "delete the source module": delete(SOURCE),
    "break the syntax of the source module": edit(SOURCE, "counter = 0", "counter = = 0"),
    "empty the source module": lambda root: (root / SOURCE).write_text(""),
    "remove the settings table": lambda root: (root / "pyproject.toml").write_text("[project]\n"),
    "misspell a required key": edit("pyproject.toml", "package_prefix", "package_prefx"),
    "add a config that excludes a class still in use": dangling,
}


def ours(arguments: list[str]) -> list[str]:
    """Arguments of the reference tool in our words."""
    words = list(arguments)
    for option, command in (("--check", "check"), ("--list", "list"), ("--all", "generate")):
        if option in words:
            words.remove(option)
            return [command, *words]
    named = bool(words) and not words[0].startswith("-")
    return ["generate", *words] if named else words


CONTRADICTED = {
    # Proposed 0, "an empty source is a valid module". It is read (no 3), but every target of the
    # config is missing then, and `target-missing` is a finding of level error: 1.
    "source-empty-dry-run": 1,
}
"""Scenarios whose proposed exit code contradicts the rules of findings, which are followed."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s["name"])
def test_scenario(scenario: dict[str, Any], tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    shutil.rmtree(root / "fixkit/models/hazards")
    shutil.rmtree(root / "fixkit/models/mini_moe")
    for step in scenario["prepare"]:
        PREPARE[step](root)
    before = tree(root)
    done = patchgen(*ours(scenario["args"]), cwd=root / scenario["cwd"])
    expected_code = CONTRADICTED.get(scenario["name"], scenario["proposed_exit"])
    assert done.code == expected_code, done.err + done.out
    after = tree(root)
    created = set(after) - set(before)
    expected = set(scenario["created"])
    if scenario["name"] in ("lint-leftover", "all-one-broken"):
        # nothing is written of a config with findings of level error
        expected -= {"fixkit/models/hazards/generated/patched_dangling.py"}
    assert created == expected
    changed = {path for path in set(after) & set(before) if after[path] != before[path]}
    assert changed == set(scenario["changed"])
    assert set(before) - set(after) == set(scenario["removed"])
    assert "Traceback" not in done.err


def test_every_scenario_is_there() -> None:
    assert len(SCENARIOS) == 40


def test_a_config_that_cannot_be_loaded_keeps_no_other_from_being_checked(tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    generate(f"{MINI}/mini_all_patch_gen_config.py", f"{MINI}/mini_model_patch_gen_config.py")(root)
    PREPARE["make one config raise NameError"](root)
    edit(f"{MINI}/generated/patched_mini_model.py", "counter = 0", "counter = 1")(root)
    done = patchgen("check", CONFIG, f"{MINI}/mini_model_patch_gen_config.py", cwd=root)
    found = [(p["code"], p["severity"]) for p in done.of("problem")]
    assert (done.code, found) == (3, [("config-not-loaded", "error"), ("drift", "error")])
    assert "line 8" in done.of("problem")[0]["message"]


def test_nothing_to_do_is_said(tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    shutil.rmtree(root / "fixkit/models")
    (root / "fixkit/models").mkdir()
    for command in ("generate", "check", "list"):
        done = patchgen(command, cwd=root)
        assert done.code == 0 and "no configs below fixkit/models" in done.err
