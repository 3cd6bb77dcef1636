"""Small odd files through both commands in real processes; their verdicts are in manifest.json."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data" / "hostile"
FORMATS = ("safetensors", "index", "config", "fp8", "gguf", "onnx")
ALL = json.loads((DATA / "manifest.json").read_text())["cases"]
CASES = [c for c in ALL if c["format"] in FORMATS]
COMMANDS = ("inspect-headers", "census")
AUDITED = str(Path(__file__).parents[1] / "audited.py")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    with tarfile.open(DATA / "cases.tar.gz") as archive:
        archive.extractall(folder, filter="fully_trusted")  # holds dangling links on purpose
    return folder / "cases"


def run(
    command: str, source: str, folder: Path, inside: Path
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, records, and all output of one run, after the checks that every case shares:
    under ten seconds and half a gigabyte, nothing opened outside the case, nothing executed."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, AUDITED, str(inside), command, source, "--format", "jsonl"],
        cwd=folder,
        capture_output=True,
        timeout=60,
    )
    assert time.monotonic() - started < 10
    out = done.stdout.decode()
    err, _, report = done.stderr.decode().rstrip("\n").rpartition("\n")
    watched = json.loads(report)
    assert watched["opened"] == watched["events"] == []
    assert watched["rss"] < 512 << 20
    assert "Traceback" not in err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", out + err)
    assert "NaN" not in out.replace('"NaN', "") and "Infinity}" not in out
    return done.returncode, [json.loads(line) for line in out.splitlines()], out + err


def judge(case: dict[str, Any], command: str, source: str, folder: Path, cases: Path) -> None:
    code, records, output = run(command, source, folder, cases / case["id"])
    problems = [r for r in records if r["kind"] == "problem"]
    verdict = case["verdict"] if command in case["subcommands"] else "either"
    if verdict == "accept":
        assert code == 0
        assert all(p["severity"] == "info" for p in problems)
    elif verdict == "accept_warn":
        assert code == 0
        assert any(p["severity"] == "warning" for p in problems)
    elif verdict == "warn_or_reject":
        assert code in (1, 3) or (code == 0 and problems)
    elif verdict == "reject":
        # what detection finds in sound files is a difference, not a malformed file
        sound = case["reason"] == "missing-tensor" or case["id"] in ("fp-bad-grid-floor",)
        assert code == (1 if sound else 3)
    else:
        assert code in (0, 1, 3)
    if code:
        assert any(p["severity"] == "error" for p in problems)
        assert output.splitlines()[-1].startswith(f"ntool {command}: ")
    for words in case["must_mention"]:
        assert re.search(words, output)
    assert records[-1]["kind"] == "end"
    if case["subcommands"] != ["verify-package"]:
        expected(case, command, records)


def expected(case: dict[str, Any], command: str, records: list[dict[str, Any]]) -> None:
    counted = ("tensors", "params", "bytes", "missing")
    want = {k: v for k, v in case["expect"].items() if k in counted}
    if command == "census":
        summary = next(r for r in records if r["kind"] == "summary")
        got = {**summary, "bytes": summary["nbytes"]}
    else:
        tensors = [r for r in records if r["kind"] == "tensor"]
        got = {
            "tensors": len(tensors),
            "params": sum(t["params"] for t in tensors),
            "bytes": sum(t["nbytes"] for t in tensors),
            "missing": [
                r["name"] for r in records if r["kind"] == "problem" and "missing" in r["code"]
            ],
        }
    assert {k: got[k] for k in want} == want


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_case(case: dict[str, Any], command: str, cases: Path) -> None:
    judge(case, command, str(cases / case["id"] / case["main"]), cases, cases)


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_from_inside_with_a_bare_name(case: dict[str, Any], cases: Path) -> None:
    main = cases / case["id"] / case["main"]
    folder, name = (main, ".") if main.is_dir() else (main.parent, main.name)
    command = "inspect-headers" if case["format"] == "onnx" else "census"
    judge(case, command, name, folder, cases)


def test_all_formats_of_this_page_have_cases() -> None:
    assert {c["format"] for c in CASES} == set(FORMATS)
    assert len(CASES) == 80
