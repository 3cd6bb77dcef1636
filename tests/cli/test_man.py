"""Manual pages: fresh, whole, and without a warning of groff."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ntool import completion, man
from ntool.commands import COMMANDS
from ntool.exit_codes import MEANINGS

ROOT = Path(__file__).parents[2]
MAN = ROOT / "man"
PAGES = man.pages()


def plain(page: str) -> str:
    """The text of a page, without fonts and escapes."""
    text = re.sub(r"\\f[A-Z]", "", page).replace("\\-", "-").replace("\\&", "")
    text = text.replace("\\(aq", "'").replace("\\(ga", "`").replace("\\(ti", "~")
    return text.replace("\\e", "\\")


def test_committed_pages_are_fresh() -> None:
    committed = {p.name: p.read_text(encoding="utf-8") for p in MAN.iterdir()}
    assert committed == PAGES, "run `make man`"


def test_a_page_for_each_command() -> None:
    assert set(PAGES) == {"ntool.1", *(f"ntool-{name}.1" for name in COMMANDS)}
    for name in COMMANDS:
        assert f"ntool-{name}(1)" in plain(PAGES["ntool.1"])


@pytest.mark.parametrize("command", completion.tree().commands, ids=lambda c: c.name)
def test_options_and_their_help(command: completion.Command) -> None:
    text = plain(PAGES[f"ntool-{command.name}.1"])
    for each in command.commands or (command,):
        for option in each.options:
            for name in option.names:
                assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name
            assert " ".join(option.help.split()) in text, option.names
        for argument in each.arguments:
            assert argument.value.label.strip("[].") in text
        assert each.help in text
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"):
        assert f".SH {section}\n" in text


def test_exit_codes_are_those_of_the_docs() -> None:
    """The man page, the code and docs/exit-codes.md have one table."""
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*?) \| [^|]*\|$", text, re.M)
    assert {int(code): words.replace("\\|", "|") for code, words in rows} == MEANINGS
    page = plain(PAGES["ntool.1"]).split(".SH EXIT STATUS")[1]
    assert [int(n) for n in re.findall(r"^\.TP\n(\d+)$", page, re.M)] == list(MEANINGS)


def test_the_variables_are_read_and_documented() -> None:
    docs = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("*.md"))
    code = "".join(
        p.read_text(encoding="utf-8") for top in ("cli", "lib") for p in (ROOT / top).rglob("*.py")
        if p.name != "man.py"
    )  # fmt: skip
    for name in man.ENVIRONMENT:
        assert name in (code if name == "TERM" else docs), name
    read = set(re.findall(r'environ(?:\.get)?[\[(]"([A-Z_]+)"', code))
    assert "NTOOL_CACHE" in read
    assert read - set(man.ENVIRONMENT) <= {"XDG_CACHE_HOME", "HUGGING_FACE_HUB_TOKEN"}


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (".so x", "\\&.so x"),
        ("a\n.b", "a\n\\&.b"),
        ("'x'", "\\(aqx\\(aq"),
        ("a\\n --b", "a\\en \\-\\-b"),
    ],
)
def test_text_of_a_help_is_no_request(text: str, source: str) -> None:
    assert man.escaped(text) == source


def test_groff_takes_them_without_a_word() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-z", *map(str, sorted(MAN.iterdir()))],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_writing_takes_old_pages_away(tmp_path: Path) -> None:
    (tmp_path / "ntool-gone.1").write_text("x")
    (tmp_path / "other.1").write_text("x")
    done = subprocess.run(
        [sys.executable, "-m", "ntool.man", "--write", str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {Path(line).name for line in done.stdout.splitlines()} == set(PAGES)
    assert {p.name for p in tmp_path.iterdir()} == {*PAGES, "other.1"}
    for name, text in PAGES.items():
        assert (tmp_path / name).read_text(encoding="utf-8") == text
