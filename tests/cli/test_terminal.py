"""What a terminal shows: bars that come and go, whole lines, nothing that it cannot do."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ntool import progress, terminal_bar
from ntool.console import console
from ntool.lib import progress as steps

from ..conftest import Ended
from ..fp8 import fp8_files
from ..patchgen.projects import copy_project

AT_ONCE = """
import sys
from ntool import terminal_bar
terminal_bar.DELAY = terminal_bar.EVERY = 0.0
from ntool.guard import run
sys.exit(run(sys.argv[1:]))
"""
"""ntool with bars that do not wait until a step has taken half a second, nor between two frames."""
SAMPLE = ["--prompt", "x", "--steps", "3", "--size", "64x64", "--device", "cpu"]


@dataclass
class Seen:
    """What came to a terminal.

    Attributes:
        text: all of it. screen: lines as they stand at the end. out: standard output, if apart.
    """

    code: int
    text: str
    screen: list[str]
    out: str = ""


def screen_of(text: str) -> list[str]:
    """The lines that a terminal of any height shows after a text with CR, LF and `ESC [ A`; LF
    stands for CR LF."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[A|[\r\n]|[^\r\n\x1b]+", text):
        if part == "\x1b[A":
            row = max(row - 1, 0)
        elif part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def on_terminal(
    *arguments: object, columns: int = 100, both: bool = False, interrupt: str = "", **env: str
) -> Seen:
    """ntool with standard error, or `both` outputs, on a terminal.

    Args:
        interrupt: a word; when it is seen, Ctrl-C is typed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    around = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs if both else subprocess.PIPE,
        stderr=theirs,
        env={**around, "TERM": "xterm", **env},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    data = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other side has closed it
            break
        if not piece:
            break
        data += piece
        if interrupt and interrupt in data.decode(errors="replace"):
            os.write(ours, b"\x03")
            interrupt = ""
    out = b"" if both else process.communicate(timeout=60)[0]
    code = process.wait(60)
    os.close(ours)
    text = data.decode(errors="replace").replace("\r\n", "\n")
    return Seen(code, text, [line for line in screen_of(text) if line], out.decode())


def told(err: str) -> dict[str, dict]:
    """The last line of each step of `--progress json`."""
    lines = [json.loads(line) for line in err.splitlines() if line.startswith('{"kind":"progress"')]
    return {line["step"]: line for line in lines}


def check_steps(done: Ended, *wanted: str) -> None:
    found = told(done.err)
    assert set(wanted) <= found.keys()
    for step in found.values():
        if step["total"] is not None:
            assert step["done"] == step["total"], step


# -- every step that may take long is told -------------------------------------------------------

JSON = ("--progress", "json")


def test_steps_of_headers_and_conversions(ntool: Callable[..., Ended], tmp_path: Path) -> None:
    check_steps(ntool("inspect-headers", "demo:shapes", *JSON), "reading headers")
    source = fp8_files.checkpoint(tmp_path / "in")
    check_steps(ntool("census", source, *JSON), "reading headers", "reading scales")
    done = ntool("convert-fp8", source, "-o", tmp_path / "out", "--verify", *JSON)
    check_steps(done, "reading headers", "planning", "reading scales", "converting", "verifying")
    sizes = {k: v["total"] for k, v in told(done.err).items() if v["unit"] == "B"}
    files = sum(p.stat().st_size for p in (tmp_path / "out").glob("*.safetensors"))
    assert sizes == {"converting": files, "verifying": files}


def test_steps_of_packages(ntool: Callable[..., Ended], demo_package: Path, tmp_path: Path) -> None:
    done = ntool("export-component", "demo:shapes", "-o", tmp_path / "pkg", *JSON)
    check_steps(done, "reading headers", "building graphs", "exporting")
    done = ntool(
        "verify-package", tmp_path / "pkg", "--against", "demo:shapes", "--write-manifest",
        "--compact", tmp_path / "out", "--device", "cpu", *JSON,
    )  # fmt: skip
    loading = [f"loading {c}" for c in ("decoder", "image_gen_denoiser")]
    found = told(done.err)
    assert {"checking", "comparing", "reading", *loading, "hashing", "writing"} <= found.keys()
    assert all(v["done"] == v["total"] for v in found.values() if v["unit"] == "B")
    assert found["checking"]["done"] <= found["checking"]["total"]
    # and of a list of sums
    check_steps(ntool("verify-package", tmp_path / "pkg", "--check", "data.hash", *JSON), "hashing")


def test_steps_of_runs(ntool: Callable[..., Ended], demo_package: Path, tmp_path: Path) -> None:
    done = ntool("run-prefill", demo_package, "--prompt", "x", "--decode", "3", *JSON)
    found = told(done.err)
    assert {"loading embedding", "loading decoder", "prefill"} <= found.keys()
    assert (found["decoding"]["unit"], found["decoding"]["total"]) == ("token", 3)
    done = ntool("sample-image", demo_package, *SAMPLE, "-o", tmp_path / "x.png", *JSON)
    check_steps(done, "loading image_gen_denoiser", "prefill", "sampling")


def test_steps_of_patches(
    ntool: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy_project(tmp_path))
    from ntool import guard

    errors = tmp_path / "err"
    with open(errors, "w") as err:
        monkeypatch.setattr(sys, "stderr", err)
        guard.run(["patchgen", "generate", "--dry-run", *JSON])
    found = told(errors.read_text())
    assert found["building"]["done"] == found["building"]["total"] == found["loading"]["done"] > 0


# -- bars -----------------------------------------------------------------------------------------


def test_a_quick_step_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bar = terminal_bar.TerminalBar(10, "quick", "B")
    bar.update(10)
    bar.label("x")
    bar.close()
    assert capsys.readouterr().err == "" and not terminal_bar.screen.bars


def test_a_step_that_tells_nothing_shows_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal_bar, "DELAY", 0.01)
    monkeypatch.setattr(terminal_bar, "REFRESH", 0.3)
    bar = terminal_bar.TerminalBar(None, "loading decoder", "")
    time.sleep(1.5)
    bar.close()
    frames = capsys.readouterr().err.split("\r")
    assert "loading decoder [00:01]" in [f.strip() for f in frames]


@pytest.mark.parametrize("way", ["always", "plain"])
def test_words_of_a_step_cannot_reach_the_terminal(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of a package may be called anything."""
    monkeypatch.setattr(console, "progress", way)
    monkeypatch.setattr(progress, "INTERVAL", {"json": 0.0, "plain": 0.0})
    with console.bar(2, "loading \x1b[2Jm\nntool: all checks hold", "B") as bar:
        bar.update(1)
        bar.label("\x1b]0;x\x07")
    err = capsys.readouterr().err
    assert "loading" in err and "\x1b" not in err and "\x07" not in err
    assert not any(line.startswith("ntool:") for line in err.splitlines())


def test_lines_and_bars_share_a_terminal(demo_package: Path) -> None:
    """Records and notes stand whole above the bars, and the bars are gone in the end."""
    arguments = ("verify-package", demo_package, "--device", "auto", "--format", "jsonl")
    seen = on_terminal(*arguments, both=True, columns=2000)
    assert seen.code == 0 and re.search(r"checking \d+ of \d+: [a-z]+\.[a-z]+ of ", seen.text)
    notes = [line for line in seen.screen if not line.startswith("{")]
    assert notes == ["ntool verify-package: device: cpu"] or "cuda" in notes[0]
    kinds = [json.loads(line)["kind"] for line in seen.screen if line.startswith("{")]
    assert kinds[0] == "begin" and kinds[-1] == "end" and kinds.count("check") > 50


def test_bars_fit_a_narrow_terminal(demo_package: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    seen = on_terminal("sample-image", demo_package, *SAMPLE, "-o", out, columns=40)
    frames = [f for f in re.split(r"[\r\n]", seen.text) if "sampling" in f]
    assert seen.code == 0 and frames and max(map(len, frames)) <= 40
    assert seen.screen == [] and '"kind":"end"' in seen.out


@pytest.mark.parametrize(
    ("options", "env"),
    [((), {"TERM": "dumb"}), (("-q",), {}), (("--progress", "never"), {})],
    ids=["dumb", "quiet", "never"],
)
def test_no_bars(
    options: tuple[str, ...], env: dict[str, str], demo_package: Path, tmp_path: Path
) -> None:
    given = ("sample-image", demo_package, *SAMPLE, "-o", tmp_path / "x.png", *options)
    assert on_terminal(*given, **env).text == ""


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_colours(env: dict[str, str], demo_package: Path) -> None:
    for arguments in (
        ("verify-package", demo_package, "--no-run"),
        ("doctor",),
        ("census", "--help"),
        ("census", "demo:nope"),
    ):
        seen = on_terminal(*arguments, both=True, **env)
        assert not re.search(r"\x1b\[[0-9;]*m", seen.text)


def test_plain_lines_have_no_carriage_return(
    ntool: Callable[..., Ended], demo_package: Path
) -> None:
    for way in ("plain", "json"):
        done = ntool("verify-package", demo_package, "--no-run", "--progress", way)
        assert "\r" not in done.err and "\x1b" not in done.err


def test_ctrl_c_in_the_middle(demo_package: Path, tmp_path: Path) -> None:
    """130, nothing left on the disk, and the bar taken off the terminal."""
    out = tmp_path / "x.png"
    steps = ["--prompt", "x", "--steps", "5000", "--size", "64x64", "--device", "cpu"]
    seen = on_terminal("sample-image", demo_package, *steps, "-o", out, interrupt="/5000")
    assert seen.code == 130 and os.listdir(tmp_path) == []
    assert seen.screen in ([], ["^C"])
    checks = on_terminal("verify-package", demo_package, "--device", "cpu", interrupt="layout")
    assert checks.code == 128 + signal.SIGINT and checks.screen in ([], ["^C"])


# -- who listens ----------------------------------------------------------------------------------


def test_nobody_listens_by_default() -> None:
    steps.listen(steps.nobody)
    with steps.step(3, "x") as bar:
        bar.update(1)
        bar.label("y")
    assert list(steps.tracked([1, 2], 2, "x", "thing")) == [1, 2]


def test_items_are_done_when_the_next_is_asked_for() -> None:
    done: list[int] = []

    class Kept(steps.NoBar):
        def update(self, n: int = 1) -> None:
            done.append(n)

    from contextlib import nullcontext

    steps.listen(lambda total, what, unit: nullcontext(Kept()))
    try:
        seen = [list(done) for _ in steps.tracked([5, 6], 11, "x", "B", lambda n: n)]
    finally:
        steps.listen(steps.nobody)
    assert seen == [[], [5]] and done == [5, 6]
