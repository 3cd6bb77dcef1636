"""The hostile and odd ONNX files: right verdict, no traceback, nothing outside is read."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ntool import guard

DATA = Path(__file__).parents[2] / "data" / "hostile"
CASES = {
    c["id"]: c
    for c in json.loads((DATA / "manifest.json").read_text())["cases"]
    if c["format"] == "onnx"
}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hostile")
    with tarfile.open(DATA / "cases.tar.gz") as archive:
        # links that lead out of the folder are what some cases are about, so the filter is ours:
        # plain members below cases/ox-*, nothing else
        for member in archive.getmembers():
            parts = member.name.split("/")
            if len(parts) > 1 and parts[0] == "cases" and parts[1] in CASES and ".." not in parts:
                archive.extract(member, out, filter="fully_trusted")
    return out / "cases"


_watched: list[str] = []
_notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (as long as there are tests)
"""Paths that were opened, one a line: checks run in a copy of this process."""


def _hook(event: str, args: tuple[Any, ...]) -> None:
    """Notes which files below the watched folder Python opens; does nothing at other times."""
    if _watched and event == "open" and isinstance(args[0], str | bytes):
        path = os.path.realpath(os.fsdecode(args[0]))
        if path.startswith(_watched[0]):
            os.write(_notes.fileno(), os.fsencode(path) + b"\n")


sys.addaudithook(_hook)


def run(
    arguments: list[str], cwd: Path, watched: Path
) -> tuple[int, list[dict[str, Any]], str, list[str]]:
    """Exit code, records, messages, and which files under `watched` Python opened."""
    out, messages = io.StringIO(), io.StringIO()
    _notes.seek(0)
    _notes.truncate()
    with redirect_stdout(out), redirect_stderr(messages), chdir(cwd):
        _watched[:] = [os.path.realpath(watched)]
        try:
            code = guard.run(arguments)
        finally:
            _watched.clear()
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    _notes.seek(0)
    opened = os.fsdecode(_notes.read()).splitlines()
    return code, records, messages.getvalue(), opened


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str, unpacked: Path) -> None:
    case = CASES[name]
    main = unpacked / name / case["main"]
    forms = [([str(main)], unpacked)]
    if case["also"]:
        forms.append(([main.name], main.parent))
    for arguments, cwd in forms:
        code, records, messages, opened = run(["verify-package", *arguments], cwd, unpacked)
        assert opened, "the hook sees nothing"
        accepted = case["verdict"].startswith("accept")
        assert code == (0 if accepted else 1), messages
        assert "Traceback" not in messages
        assert records[-1]["kind"] == "end"
        false = [r for r in records if r["kind"] == "check" and r["ok"] is False]
        assert bool(false) is not accepted
        text = messages + json.dumps(records)
        for words in case["must_mention"]:
            assert re.search(words, text), words
        if case["verdict"] == "accept_warn":
            warned = [r for r in records if r.get("severity") == "warning"]
            assert warned and "warning" in messages
            expected = case["expect"].get("orphan_bytes")
            assert expected is None or warned[0]["actual"] == expected
        inside = [os.path.realpath(main.parent)]
        if "models--" in str(main):
            inside = [os.path.realpath(unpacked / name)]
        assert [p for p in opened if not p.startswith(tuple(i + os.sep for i in inside))] == []


def test_every_onnx_case_is_here(unpacked: Path) -> None:
    assert len(CASES) == 20
    assert {p.name for p in unpacked.iterdir()} == set(CASES)
