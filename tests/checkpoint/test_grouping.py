"""Grouping rules of a file: expressions that never end, and files that are pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ntool.lib.checkpoint import grouping
from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.errors import InputError

NAMES = [Tensor("a" * 60 + "!", "F32", (1,), "f", 0, 4)]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(?:a*)*b"])
def test_expressions_that_never_end_are_refused(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "START", 0.5)
    path = tmp_path / "groups.json"
    path.write_text(json.dumps([{"name": "x", "pattern": pattern}]))
    before, started = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(InputError, match="too long"):
        list(grouping.by_file(str(path))(NAMES))
    assert time.monotonic() - started < 10
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_as_a_process(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    # every name of the demonstration has 20 letters and dots in a row, and ends in no "!"
    path.write_text(json.dumps([{"name": "x", "pattern": r"^([\w.]+)+!"}]))
    done = subprocess.run(
        [sys.executable, "-m", "ntool", "census", "demo:shapes", "--groups", str(path)],
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert done.returncode == 3 and "the expressions take too long" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("pattern", ["(" * 5000 + ")" * 5000, "a{99999999999}", "a" * 100 + "("])
def test_expressions_that_do_not_compile(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "groups.json"
    path.write_text(json.dumps([{"name": "x", "pattern": pattern}]))
    with pytest.raises(InputError, match="rule 1: pattern") as caught:
        grouping.read_rules(str(path))
    assert len(caught.value.message) < 400


def test_rules_from_a_pipe() -> None:
    rules = json.dumps([{"name": "all", "pattern": ""}])
    script = f"\"$@\" --groups <(echo '{rules}')"
    command = [sys.executable, "-m", "ntool", "census", "demo:shapes"]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and '"key":"all"' in done.stdout, done.stderr
