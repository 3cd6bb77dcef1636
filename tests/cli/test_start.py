"""The first milliseconds of a process, and a standard error that cannot be written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

NTOOL = [sys.executable, "-m", "ntool"]

EARLY = """
import os, sys
from importlib.abc import MetaPathFinder
number, module = int(sys.argv[1]), sys.argv[2]
class Late(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Late())
from ntool.__main__ import main
sys.argv[1:] = ["census", "demo:shapes"]
main()
"""


@pytest.mark.parametrize("module", ["ntool.guard", "typer", "ntool.app", "ntool.commands.census"])
@pytest.mark.parametrize(("number", "code"), [(1, 129), (2, 130), (15, 143)])
def test_a_signal_while_modules_are_imported_ends_in_silence(
    number: int, code: int, module: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, str(number), module],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """As for a command that a script starts in the background."""
    script = "trap '' INT; exec \"$@\""
    done = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-c", EARLY, "2", "ntool.guard"],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def full(tmp_path: Path) -> Path:
    node = tmp_path / "full"
    if os.geteuid() != 0:
        pytest.skip("mknod needs root")
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    try:
        os.close(os.open(node, os.O_WRONLY))
    except OSError:
        pytest.skip("no device nodes in this folder")
    return node


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["census", "demo:nope"], 4),
        (["nonsense"], 2),
        ([], 2),
        (["census", "demo:nope", "-v"], 4),
        (["export-component", "demo:shapes", "embedding", "--dry-run", "--progress", "always"], 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["full", "closed", "gone"])
def test_the_code_stays_when_nothing_can_be_said(
    full: Path, arguments: list[str], code: int, how: str
) -> None:
    words = {"full": f'"$@" 2>{full}', "closed": '"$@" 2>&-', "gone": '"$@" 2> >(exec true)'}[how]
    if how == "gone":
        words = 'exec 3> >(exec true); sleep 0.3; "$@" 2>&3'
    done = subprocess.run(
        ["bash", "-c", words, "bash", *NTOOL, *arguments], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ["census", "-"],
        ["run-prefill", "demo:shapes", "--prompt-file", "-"],
        ["run-prefill", "demo:shapes", "--messages", "-"],
        ["run-prefill", "demo:shapes", "--tokens", "@-"],
        ["sample-image", "demo:shapes", "--prompts", "-", "-o", "x.png"],
    ],
    ids=str,
)
def test_closed_standard_input_is_told(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *NTOOL, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 6
    assert done.stderr == f"ntool {arguments[0]}: standard input is closed\n"


def test_standard_input_that_cannot_be_read(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" 0>{tmp_path / "w"}', "sh", *NTOOL, "census", "-"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 6 and "standard input: cannot read" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_closed_descriptor_is_not_given_to_an_output(tmp_path: Path) -> None:
    """Else what a library writes to descriptor 2 lands in the file that got the number."""
    code = (
        "import os; from ntool.guard import run; run(['--version']); "
        f"print(os.open({str(tmp_path / 'f')!r}, os.O_CREAT) > 2)"
    )
    done = subprocess.run(
        ["sh", "-c", '"$@" <&- 2>&-', "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "True"
