from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntool.progress import Lines

from ..conftest import run_ntool
from ..fp8 import fp8_files


def ticking(*seconds: float) -> Iterator[float]:
    yield from seconds
    while True:
        yield seconds[-1]


def test_lines_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ticking(0.0, 0.2, 1.0, 1.1, 2.0)
    bar = Lines(1000, "converting", "B", "json", clock=lambda: next(clock))
    bar.update(100)
    bar.update(300)
    bar.update(100)
    bar.update(500)
    bar.close()
    err = capsys.readouterr().err
    lines = [json.loads(line) for line in err.splitlines()]
    assert [r["done"] for r in lines] == [400, 1000, 1000]
    assert lines[0] == {
        "kind": "progress", "step": "converting", "unit": "B", "done": 400, "total": 1000,
        "seconds": 1.0, "rate": 400.0, "seconds_left": 1.5,
    }  # fmt: skip
    assert lines[-1]["seconds_left"] == 0.0


def test_plain_lines_have_words_and_no_carriage_return(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ticking(0.0, 10.0, 20.0)
    bar = Lines(4_000_000, "converting", "B", "plain", clock=lambda: next(clock))
    bar.update(1_000_000)
    bar.update(3_000_000)
    bar.close()
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "converting: 1.00 MB of 4.00 MB, 100.00 kB/s, 30 s left"


def test_nothing_done_in_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    Lines(None, "x", "it", "json", clock=lambda: 0.0).close()
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["rate"] is None


def test_of_a_command(tmp_path: Path) -> None:
    source = fp8_files.checkpoint(tmp_path / "in")
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--progress", "json")
    last = json.loads(done.err.splitlines()[-1])
    assert done.code == 0 and last["done"] == last["total"] > 0
    quiet = run_ntool("convert-fp8", source, "-o", tmp_path / "two", "--progress", "never")
    assert quiet.err == ""
    wrong = run_ntool("convert-fp8", source, "-o", tmp_path / "no", "--progress", "loud")
    assert wrong.code == 2 and "json" in wrong.err
