"""The benchmark program: what it offers, what it refuses, how it judges, and the page it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import measure, page, peers
from bench.__main__ import ROWS
from bench.budgets import BUDGETS
from bench.table import COLUMNS, Line, at_least, at_most, cells, held

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
NAMES = [row.name for row in ROWS]
FAKE = """
import sys
from bench import __main__ as program
from bench.measure import Failed
from bench.table import Line, Row
def broken(bench):
    raise Failed("no such thing")
    yield
program.ROWS = (
    Row("good", "holds", lambda bench: [Line("well", excess=1.0)]),
    Row("near", "nearly holds", lambda bench: [Line("so so", excess=1.2)]),
    Row("far", "does not hold", lambda bench: [Line("bad", excess=1.21)]),
    Row("broken", "fails", broken),
    Row("heavy", "once", lambda bench: [Line(f"{bench.runs}")], most=1),
)
sys.exit(program.main())
"""
"""A program with other rows."""


def bench(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **settings}
    )


def fake(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FAKE, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_rows_are_listed_and_chosen_by_glob() -> None:
    everything = bench("--list")
    assert everything.returncode == 0, everything.stderr
    names = [line.split()[0] for line in everything.stdout.splitlines()]
    assert names == NAMES and len(names) == len(set(names)) >= 15
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


def test_every_budget_has_its_rows() -> None:
    assert len({budget.what for budget in BUDGETS}) == len(BUDGETS) == 13
    for budget in BUDGETS:
        assert budget.rows, budget.what
        assert set(budget.rows) <= set(NAMES), budget.what


def test_peers_of_rows_can_be_installed() -> None:
    assert {row.peer for row in ROWS if row.peer} == set(peers.ENVIRONMENTS)
    for packages in peers.ENVIRONMENTS.values():
        assert all(package.count("==") == 1 for package in packages)
    unknown = bench("--install-peers", "nothing")
    assert unknown.returncode == 1 and "mobius" in unknown.stderr


def test_a_row_without_its_peer_says_what_to_install(tmp_path: Path) -> None:
    done = bench("census-peer", "--runs", "1", "--check", NTOOL_BENCH_PEERS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "--install-peers modelinfo " in done.stdout and "skipped" in done.stdout
    (tmp_path / "modelinfo").mkdir()
    (tmp_path / "modelinfo" / "versions.txt").write_text("modelinfo-cli==0.1\nmodelinfo-cli 0.1\n")
    done = bench("census-peer", "--runs", "1", NTOOL_BENCH_PEERS=str(tmp_path))
    assert "skipped" in done.stdout, "made with other versions"


@pytest.mark.parametrize(
    ("excess", "verdict"),
    [(None, "-"), (0.0, "ok"), (1.0, "ok"), (1.001, "over"), (1.2, "over"), (1.21, "missed"),
     (held(False), "missed"), (held(True), "ok"), (at_most(3, 2), "missed"), (at_least(3, 2), "ok"),
     (at_least(5, 6), "over")],
)  # fmt: skip
def test_verdicts(excess: float | None, verdict: str) -> None:
    assert Line("", excess=excess).verdict == verdict
    assert Line("", excess=excess, state="failed").verdict == "failed"


def test_missed_budgets_fail_a_check_alone() -> None:
    for check, row, code in [
        ((), "far", 0), (("--check",), "far", 1), (("--check",), "near", 0), ((), "broken", 1),
    ]:  # fmt: skip
        done = fake(row, "--runs", "1", *check)
        assert done.returncode == code, (check, row, done.stderr)
    assert "over a budget: far" in fake("--check").stderr


def test_a_row_is_written_between_the_markers_of_a_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    done = bench("start-version", "--runs", "1", "--write", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("start-version ")
    first = path.read_text()
    assert "| start-version | " in first and "numpy " in first
    assert "\nstart-version: 1 run\n    cd DATA && python -m ntool --version\n" in first
    assert os.fspath(ROOT) not in first and os.fspath(tmp_path) not in first
    assert sys.executable not in first
    path.write_text(first.replace("# Benchmarks", "# Words before") + "\nWords after.\n")
    bench("start-help", "--runs", "1", "--write", str(path))
    again = path.read_text()
    assert again.startswith("# Words before") and again.endswith("\nWords after.\n")
    assert list(page.results_in(again)) == ["start-help", "start-version"]
    known = page.results_in(first)["start-version"]
    assert page.results_in(again)["start-version"] == known, "as it was"


def test_a_page_is_refreshed_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    order = ["a", "b", "c"]

    def result(name: str, number: str, where: str, table: str = "Costs") -> page.Result:
        lines = [
            cells(name, Line(number, "x | y", excess=1.5, part="one")),
            cells(name, Line(number, part="two, three")),
        ]
        return page.Result(table, lines, "2 runs; that 1.0", [f"run {name} {number}"], where)

    old = {name: result(name, "1", "Old; v 1") for name in ("a", "c", "gone")}
    page.write(path, old, [*order, "gone"])
    assert page.results_in(path.read_text()) == old
    new = {"b": result("b", "2", "New; v 2", "Accuracy"), "c": result("c", "2", "New; v 2")}
    page.write(path, new, order)
    text = path.read_text()
    assert page.results_in(text) == {"a": old["a"], **new}
    assert "- Old; v 1: `a`\n- New; v 2: `b`, `c`\n" in text
    assert text.index("| c, one |") < text.index("## Accuracy") < text.index("| b, one |")
    assert "gone" not in text and "run c 1" not in text


def test_a_page_sums_up_the_budgets() -> None:
    budget = BUDGETS[0]
    name, other, last = budget.rows
    lines = {
        name: [
            cells(name, Line("1 s", excess=0.9)),
            cells(name, Line("3 s", excess=1.3, part="b")),
        ],
        other: [cells(other, Line("2 s", excess=1.1))],
        last: [cells(last, Line("no", state="skipped"))],
    }
    results = {n: page.Result("Costs", c, "1 run", [], "here") for n, c in lines.items()}
    assert page.judged(budget, results)[2:] == (
        f"{name}, b",
        "130%",
        f"missed; not measured: {last}",
    )
    assert page.judged(budget, {})[-1] == f"not measured: {name}, {other}, {last}"
    results[last] = page.Result("Costs", [cells(last, Line("", excess=0.5))], "", [], "")
    results[other] = page.Result("Costs", [cells(other, Line("", excess=held(False)))], "", [], "")
    assert page.judged(budget, results)[2:] == (other, "inf%", "missed")


def test_a_row_that_fails_leaves_its_place_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    done = fake("--runs", "3", "--write", str(path))
    assert done.returncode == 1 and "no such thing" in done.stdout, done.stderr
    assert "not measured: broken" in done.stderr
    text = path.read_text()
    assert "broken" not in text and "no such thing" not in text
    assert "| good | well |" in text and "good: 3 runs" in text
    assert "| heavy | 1 |" in text and "heavy: 1 run\n" in text, "its own number of runs"
    path.write_text(text.replace("| good | well |", "| broken | once |"))
    fake("broken", "--write", str(path))
    assert "| broken | once |" in path.read_text()


def test_a_page_without_markers_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("mine\n")
    done = bench("start-version", "--runs", "1", "--write", str(path))
    assert done.returncode == 2 and path.read_text() == "mine\n"


def test_the_page_of_the_project_has_every_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = page.results_in(text.partition(page.BEGIN)[2].partition(page.END)[0])
    assert list(shown) == NAMES
    for name, result in shown.items():
        assert page.UNKNOWN not in (result.how, result.environment), name
        skipped = all(cell[-1] == "skipped" for cell in result.lines)
        assert result.commands or skipped, name
        assert all(len(line) == len(COLUMNS) for line in result.lines)


def test_command_lines_name_no_machine() -> None:
    measure.noted.clear()
    script = str(ROOT / "bench" / "bare_loop.py")
    measure.note([sys.executable, script, "a b"], [sys.executable, "-c", "pass"], cwd=ROOT)
    measure.note([sys.executable, script, "a b"], [sys.executable, "-c", "pass"], cwd=ROOT)
    assert measure.noted == ["python bench/bare_loop.py 'a b' | python -c pass"]


def test_rows_that_reach_into_the_library_still_fit_it() -> None:
    """They call the pipeline and wrap its sessions, so a change there can break them unseen."""
    done = bench("loops-128", "verify-structure", "--runs", "1")
    assert done.returncode == 0, done.stdout
    for name in ("loops-128, prefill", "loops-128, decode", "loops-128, sample"):
        assert f"\n{name} " in done.stdout
