"""Small odd files through every command; their verdicts are in tests/data/hostile/manifest.json.

Each call is a process of its own, forked from one that has the libraries loaded, under an audit
hook: nothing outside of the case is opened, nothing is executed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .fork_server import served
from .hostile import (  # noqa: F401
    config,
    fp8,
    gguf_files,
    graphs,
    index,
    safetensors,
    vocabularies_and_pictures,
)
from .hostile.ground import ALL, COMMANDS, Ground, audited, unpack
from .hostile.making import CASES as SIBLINGS
from .hostile.making import make

BAD_GRAPHS = [c["id"] for c in ALL if c["format"] == "onnx" and c["verdict"] == "reject"]
LIGHT = ("inspect-headers", "census")


@pytest.fixture(scope="module")
def ground(demo_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    root = tmp_path_factory.mktemp("hostile")
    temporary = root / "tmp"
    temporary.mkdir()
    env = {
        **os.environ,
        "TMPDIR": str(temporary),
        "NTOOL_CACHE": str(temporary / "cache"),
        "PYTHONWARNINGS": "error::RuntimeWarning",
    }
    with served(root, env) as server, served(root, env, light=True) as light:
        yield Ground(server, light, unpack(root), demo_package, root / "work", temporary)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", ALL, ids=[c["id"] for c in ALL])
def test_case(case: dict[str, Any], command: str, ground: Ground) -> None:
    main = ground.cases / case["id"] / case["main"]
    ground.judge(case, command, str(main), ground.cases)
    # again from inside, by a bare name
    folder, name = (main, ".") if main.is_dir() else (main.parent, main.name)
    if command in case["subcommands"] or command == LIGHT[case["format"] != "onnx"]:
        ground.judge(case, command, name, folder)


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_a_bad_graph_in_a_package_is_not_run(name: str, ground: Ground) -> None:
    """The decoder of a package is the graph of a case, with the files beside it."""
    case = next(c for c in ALL if c["id"] == name)
    root, main = ground.temporary / name, ground.cases / name / case["main"]
    shutil.copytree(ground.package, root, copy_function=os.link)
    shutil.rmtree(root / "decoder")
    shutil.copytree(main.parent, root / "decoder", symlinks=True)
    for command in (["run-prefill", str(root), "--query", "hello"], ["verify-package", str(root)]):
        done, _ = ground.call(command, ground.cases, ground.cases / name)
        assert done.code == (3 if command[0] == "run-prefill" else 1), done.err
    shutil.rmtree(root)


@pytest.mark.parametrize("command", LIGHT)
@pytest.mark.parametrize("name", ["st-bad-zip", "ix-bad-absolute", "ox-bad-ext-subgraph"])
def test_nothing_happens_while_modules_are_loaded_either(
    name: str, command: str, ground: Ground
) -> None:
    case = next(c for c in ALL if c["id"] == name)
    folder = ground.cases / name
    done = audited([command, str(folder / case["main"])], ground.cases, folder)
    report = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 3
    assert report["opened"] == report["events"] == []
    assert report["rss"] < 128 << 20


@pytest.mark.parametrize("number", range(len(SIBLINGS)), ids=[c["id"] for c in SIBLINGS])
def test_sibling(number: int, ground: Ground) -> None:
    """One of the commands that a case names, by turns; all of them where it is sound or odd."""
    case = SIBLINGS[number]
    folder = ground.cases / case["id"]
    make(case["id"], folder)
    commands = case["subcommands"]
    if case["verdict"] in ("reject", "refuse"):
        commands = [commands[number % len(commands)]]
    for command in commands:
        ground.judge(case, command, str(folder / case["main"]), ground.cases)
    shutil.rmtree(folder)


def test_all_cases_are_here() -> None:
    assert len(ALL) == 88
    assert {c for case in ALL for c in case["subcommands"]} == set(COMMANDS)


def test_the_hook_sees_what_it_is_for(ground: Ground) -> None:
    """A package outside of what may be read, an output outside of what may be changed."""
    package, elsewhere = str(ground.package), ground.cases.parent / "elsewhere"
    done = ground.server.watched(["inspect-headers", package], ground.cases, ground.cases, [])
    assert done.code == 0 and done.opened
    command = ["export-component", "demo:shapes", "vision_encoder", "-o", str(elsewhere)]
    done = ground.server.watched(command, ground.cases, ground.cases, [])
    assert done.code == 0 and any("elsewhere" in e for e in done.events)
