"""What a formatter may answer; target names and exceptions that nothing can be done with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ntool.lib.errors import EnvironmentProblem, InputError, printable
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
