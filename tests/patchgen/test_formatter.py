"""What a formatter may answer; target names and exceptions that nothing can be done with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ntool.lib.errors import EnvironmentProblem, InputError, printable
from ntool.lib.patchgen import formatter as module
from ntool.lib.patchgen.formatter import Formatter
from ntool.lib.patchgen.model import PatchConfig, plan_of


def formatter(code: str, folder: Path) -> Formatter:
    return Formatter([sys.executable, "-c", code], folder)


def test_the_answer_is_taken(tmp_path: Path) -> None:
    same = formatter("import sys; sys.stdout.write(sys.stdin.read())", tmp_path)
    assert same.format("x = 1\n", tmp_path / "a.py") == "x = 1\n"
    assert same.format("# nothing\n", tmp_path / "a.py") == "# nothing\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [("pass", "output is empty"), ("print('def (')", "output is not Python")],
)
def test_an_answer_that_is_no_module(code: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=words):
        formatter(code, tmp_path).format("x = 1\n", tmp_path / "a.py")


def test_an_answer_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept: what is read is bounded, by the text or by a size."""
    assert module.LEAST_OUTPUT == 64 << 20
    monkeypatch.setattr(module, "LEAST_OUTPUT", 1 << 20)
    endless = "import sys\nwhile True: sys.stdout.write('x = 1\\n' * 10000)"
    with pytest.raises(EnvironmentProblem, match="answers with more than 1048576 bytes"):
        formatter(endless, tmp_path).format("x = 1\n", tmp_path / "a.py")
    text = f"x = 1  # {'word ' * 22000}\n"
    twenty = "import sys; sys.stdout.write(sys.stdin.read() * 20)"
    assert len(formatter(twenty, tmp_path).format(text, tmp_path / "a.py")) == 20 * len(text)
    with pytest.raises(EnvironmentProblem, match=f"answers with more than {20 * len(text)} bytes"):
        formatter(twenty.replace("20", "21"), tmp_path).format(text, tmp_path / "a.py")


def test_messages_without_end_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SAID", 100)
    code = "import sys\nfor i in range(10000): print('word', i, file=sys.stderr)\nsys.exit(3)"
    with pytest.raises(EnvironmentProblem, match=r"exit code 3 \(word 9999\)"):
        formatter(code, tmp_path).format("x = 1\n", tmp_path / "a.py")


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "import os, time; os.close(1); os.close(2); time.sleep(60)",
        "import subprocess as s, sys\nc = 'import time; time.sleep(5)'"
        "\ns.Popen([sys.executable, '-c', c])",
    ],
)
def test_no_answer(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one from what it started, which keeps its output open."""
    monkeypatch.setattr(module, "SECONDS", 0.5)
    with pytest.raises(EnvironmentProblem, match=r"no answer in 0\.5 s"):
        formatter(code, tmp_path).format("x = 1\n", tmp_path / "a.py")


@pytest.mark.parametrize("name", ["a" * 300 + ".py", "a\nb.py", "patched", "a/b.py", ""])
def test_a_target_file_that_is_no_name(name: str, tmp_path: Path) -> None:
    config = PatchConfig(source_module="m", target_file=name)
    with pytest.raises(InputError, match="target_file"):
        plan_of(config, tmp_path / "c.py", "c", "config", lambda *_: None)  # type: ignore[arg-type]


def test_an_exception_that_cannot_say_what_it_is() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert printable(Silent()) == "Silent"
