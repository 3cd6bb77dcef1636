"""The benchmark program: what it offers, what it refuses, and the page that it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_rows_are_listed_and_chosen_by_glob() -> None:
    everything = bench("--list")
    assert everything.returncode == 0, everything.stderr
    names = [line.split()[0] for line in everything.stdout.splitlines()]
    assert len(names) == len(set(names)) >= 15
    some = bench("start-*", "census", "--list").stdout.splitlines()
    assert [line.split()[0] for line in some] == [
        "start-help",
        "start-version",
        "start-completion",
        "census",
    ]


@pytest.mark.parametrize("wrong", [["nothing"], ["--runs", "0"], ["--colour"]])
def test_wrong_use_is_refused(wrong: list[str]) -> None:
    done = bench(*wrong)
    assert done.returncode == 2 and done.stderr


def test_a_row_is_written_between_the_markers_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = bench("start-version", "--runs", "1", "--write", str(page))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("start-version ")
    first = page.read_text()
    assert "| start-version |" in first and "python -m bench start-version --runs 1" in first
    assert os.fspath(ROOT) not in first and os.fspath(tmp_path) not in first
    page.write_text(first.replace("# Benchmarks", "# Words before") + "\nWords after.\n")
    bench("start-help", "--runs", "1", "--write", str(page))
    again = page.read_text()
    assert again.startswith("# Words before") and again.endswith("\nWords after.\n")
    assert "| start-help |" in again and "start-version" not in again


def test_rows_that_reach_into_the_library_still_fit_it() -> None:
    """They call the pipeline and wrap its sessions, so a change there can break them unseen."""
    done = bench("loops-128", "export-copy", "verify-structure", "--runs", "1")
    assert done.returncode == 0, done.stdout
    words = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert {"prefill", "decode", "sample-128"} <= set(words)


def test_a_row_that_fails_writes_no_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = """
import sys
from bench import __main__ as program
from bench.measure import Failed
from bench.table import Row
def broken(bench):
    raise Failed("no such thing")
    yield
program.ROWS = (Row("broken", "fails", broken),)
sys.exit(program.main())
"""
    command = [sys.executable, "-c", code, "--write", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "no such thing" in done.stdout, done.stderr
    assert not page.exists()


def test_a_page_without_markers_is_not_overwritten(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("mine\n")
    done = bench("start-version", "--runs", "1", "--write", str(page))
    assert done.returncode == 2 and page.read_text() == "mine\n"
