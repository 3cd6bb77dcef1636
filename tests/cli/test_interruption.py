"""Ctrl-C at the worst moment: in an import, in a destructor, in code that takes all exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ntool import failure, interruption
from ntool.guard import report

RUN = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from ntool import guard
from ntool.lib import doctor

def work():
    os.environ["PARENT"] = str(os.getpid())
    {body}

doctor.facts = work
sys.exit(guard.run(["doctor", "-q"]))
"""
# as NumPy does with whatever ends its import
TAKES_ALL = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGNAL)
    time.sleep(0.01)
    done = True
except BaseException as e:
    raise ImportError("a broken installation?") from e
"""
DESTRUCTOR = """
import os, signal, time
class Odd:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGNAL)
        time.sleep(0.01)
def work():
    Odd()
    time.sleep(10)
    return []
"""
ENDLESS = """
import os, signal, time
os.kill(os.getpid(), signal.SIGNAL)
time.sleep(60)
"""


def ended(folder: Path, body: str, module: str, name: str) -> tuple[int, str, float]:
    (folder / "odd_module.py").write_text(module.replace("SIGNAL", name))
    code = RUN.format(folder=str(folder), body=body)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return done.returncode, done.stderr, time.monotonic() - started


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize(
    ("body", "module"),
    [
        # the import ends first, then what waited comes
        ("import odd_module, time; assert odd_module.done; time.sleep(10)", TAKES_ALL),
        ("import odd_module; return odd_module.work()", DESTRUCTOR),
        ("import odd_module", ENDLESS),
    ],
    ids=["import", "destructor", "endless"],
)
def test_a_signal_ends_the_command_in_silence(
    name: str, code: int, body: str, module: str, tmp_path: Path
) -> None:
    found, err, seconds = ended(tmp_path, body, module, name)
    assert (found, err) == (code, "") and seconds < 9


def test_code_that_takes_all_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    error: BaseException
    try:
        try:
            raise KeyboardInterrupt
        except BaseException as e:
            raise ImportError("a broken installation?") from e
    except ImportError as e:
        error = e
    assert report(error) == failure.INTERRUPTED
    try:
        try:
            raise SystemExit(143)
        except BaseException:
            raise RuntimeError("while cleaning up") from None
    except RuntimeError as e:
        error = e
    assert report(error) == 143
    assert capsys.readouterr().err == ""
    assert interruption.behind(ValueError("x")) is None
    assert interruption.behind(SystemExit(2)) is None
