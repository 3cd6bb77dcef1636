"""docs/recipes.md and the hooks of pre-commit: what is shown is what runs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ntool import completion
from ntool.lib import demo
from ntool.version import VERSION

from .conftest import DATA
from .test_docs import DOCS, OPTIONS, ROOT, blocks, calls, files

PAGE = (DOCS / "recipes.md").read_text(encoding="utf-8")
FILES = files(PAGE)
HOOKS_FILE = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
KEYS = re.compile(r"^(?:- |  )(\w+): (.*)$", re.M)


def hooks() -> dict[str, dict[str, str]]:
    """Hook -> its keys. No YAML library is needed: a line is a key and its value."""
    found = {}
    for part in re.split(r"^(?=- )", HOOKS_FILE, flags=re.M)[1:]:
        keys = dict(KEYS.findall(part))
        assert part.count("\n") == len(keys), part
        found[keys["id"]] = keys
    return found


HOOKS = hooks()


def run(entry: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of what pre-commit would call."""
    words = shlex.split(entry)
    assert words[0] == "ntool"
    done = subprocess.run(
        [sys.executable, "-m", "ntool", *words[1:], *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_files_of_the_page() -> None:
    kinds = {Path(name).suffix or name for name in FILES}
    assert {".yml", ".yaml", ".sh", "Makefile", "pre-commit"} == kinds
    for name, text in FILES.items():
        if text.startswith("#!/bin/sh") and shutil.which("sh"):
            done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True)
            assert (done.returncode, done.stderr) == (0, ""), name


def test_yaml() -> None:
    yaml: Any = pytest.importorskip("yaml")
    job = yaml.safe_load(FILES[".github/workflows/package.yml"])["jobs"]["verify"]
    assert all({"uses", "run"} & step.keys() for step in job["steps"])
    assert yaml.safe_load(FILES[".pre-commit-config.yaml"])["repos"][0]["hooks"]
    assert [hook["id"] for hook in yaml.safe_load(HOOKS_FILE)] == list(HOOKS)


def test_the_job_runs_what_the_page_has_run() -> None:
    ran = "\n".join(command for commands in blocks(PAGE) for command, _ in commands)
    steps = re.findall(r"^      - run: (ntool .*)$", FILES[".github/workflows/package.yml"], re.M)
    assert len(steps) == 2
    for step in steps:
        assert step in ran


def test_versions_are_this_one() -> None:
    assert set(re.findall(r"(?:@|rev: )v([\d.]+)", "".join(FILES.values()))) >= {VERSION}
    assert f"rev: v{VERSION}\n" in FILES[".pre-commit-config.yaml"]


def test_hooks_are_named_and_their_options_exist() -> None:
    used = re.findall(r"- id: (.*)", FILES[".pre-commit-config.yaml"])
    assert set(used) == set(HOOKS)
    for name, keys in HOOKS.items():
        assert f"`{name}`" in PAGE
        (call,) = calls(keys["entry"])
        assert call[0] in {c.name for c in completion.tree().commands}
        assert call[1] <= OPTIONS[call[0]]


def test_hook_of_headers(tmp_path: Path) -> None:
    keys = HOOKS["ntool-headers"]
    whole = sorted(Path(demo.path()).glob("*.safetensors"))[0]
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:100_000])
    assert re.search(keys["files"], cut.name) and not re.search(keys["files"], "x.safetensors.txt")
    code, said = run(keys["entry"], str(whole), cwd=tmp_path)
    assert (code, said.count("\n")) == (0, 1), "a table without rows"
    code, said = run(keys["entry"], str(whole), cut.name, cwd=tmp_path)
    assert code == 3 and "cut.safetensors" in said


def test_hook_of_patchgen(tmp_path: Path) -> None:
    keys = HOOKS["ntool-patchgen"]
    shutil.copytree(DATA / "patchgen" / "project", tmp_path / "project")
    code, said = run(keys["entry"], cwd=tmp_path / "project")
    assert code == 1 and "drift" in said
    assert re.search(keys["files"], "a/b/generated/x.py")
    assert re.search(keys["files"], "a/x_patch_gen_config.py")
    assert not re.search(keys["files"], "a/modeling_x.py")


def test_hook_of_a_package(tmp_path: Path) -> None:
    code, said = run(HOOKS["ntool-package"]["entry"], str(tmp_path), cwd=tmp_path)
    assert code in (1, 4) and "ntool verify-package: " in said
