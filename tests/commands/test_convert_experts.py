"""ntool convert-experts: records, exit codes, and that nothing is left where it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint

from ..conftest import DATA, Ended
from ..experts.moe_files import tensors_of

CASES = DATA / "expert-layouts"
EXPECTED = {p.parent.name: json.loads(p.read_text()) for p in CASES.glob("*/expected.json")}
REFUSED = sorted(
    (name, to, e["codes"])
    for name, case in EXPECTED.items()
    for to, e in case["convert"].items()
    if not e["ok"]
)
Run = Callable[..., Any]


def test_records(ntool: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done: Ended = ntool(
        "convert-experts", CASES / "split-gate-up-down", "-o", out, "--to", "fused", "--verify"
    )
    (file,), (summary,) = done.of("file"), done.of("summary")
    assert file["path"] == "model.safetensors"
    assert file["nbytes"] == (out / "model.safetensors").stat().st_size
    assert summary["counts"] == {"copied": 4, "converted": 24}
    assert summary["verified"] and summary["tensors"] == 8
    assert sorted(p.name for p in out.iterdir()) == [
        "config.json", "expected.json", "model.safetensors", "weight-loading-report.json",
    ]  # fmt: skip
    report = json.loads((out / "weight-loading-report.json").read_text())
    assert report["expert_layout"] == "fused" and report["storage_preserving"]
    assert [g["action"] for g in report["groups"]] == ["converted"] * 2
    assert ntool("convert-experts", CASES / "single-file", "-o", out, "--to", "fused", code=2)
    ntool("convert-experts", CASES / "single-file", "-o", out, "--to", "fused", "--force")
    assert len(open_checkpoint(str(out)).tensors) == 4


@pytest.mark.parametrize("name, to, codes", REFUSED, ids=[f"{n}-{t}" for n, t, _ in REFUSED])
def test_nothing_is_left(name: str, to: str, codes: list[str], ntool: Run, tmp_path: Path) -> None:
    done: Ended = ntool("convert-experts", CASES / name, "-o", tmp_path / "o", "--to", to, code=1)
    errors = [r for r in done.of("problem") if r["severity"] == "error"]
    assert sorted({r["code"] for r in errors}) == codes
    assert done.records[-1]["kind"] == "error" and done.records[-1]["code"] == 1
    assert done.err.count("\n") == 1 and name in done.err
    assert os.listdir(tmp_path) == []


def test_malformed(ntool: Run, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/model.safetensors").write_bytes(b"\x99" * 20)
    ntool("convert-experts", tmp_path / "s", "-o", tmp_path / "o", "--to", "split", code=3)
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["demo:shapes", "-o", "OUT", "--to", "split"], 4),
        (["SOURCE", "-o", "OUT", "--to", "flat"], 2),
        (["SOURCE", "-o", "OUT"], 2),
        (["SOURCE", "--to", "split"], 2),
        (["SOURCE", "-o", "OUT", "--to", "split", "--names", "x"], 2),
        (["SOURCE", "-o", "OUT", "--to", "split", "--gate-up-order", "unknown"], 2),
        (["SOURCE", "-o", "OUT", "--to", "split", "--part", "4/3"], 2),
        (["SOURCE", "-o", "SOURCE/x", "--to", "split"], 2),
        (["SOURCE", "--merge", "OUT"], 2),
        (["--merge", "OUT"], 4),
    ],
)
def test_wrong_use(arguments: list[str], code: int, ntool: Run, tmp_path: Path) -> None:
    places = {"SOURCE": str(CASES / "fused-direct"), "OUT": str(tmp_path / "out")}
    given = [a.replace("SOURCE", places["SOURCE"]).replace("OUT", places["OUT"]) for a in arguments]
    ntool("convert-experts", *given, code=code)
    assert os.listdir(tmp_path) == []


def test_parts_as_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ntool", "convert-experts", str(CASES / "split-w1-w3-w2")]
    common = ["--to", "fused-transposed", "--shard-size", "500"]
    out, whole = str(tmp_path / "parts"), str(tmp_path / "whole")
    running = [
        subprocess.Popen(
            [*command, "-o", out, *common, "--part", f"{i}/3"], stdout=subprocess.DEVNULL
        )
        for i in (1, 2, 3)
    ]
    assert [p.wait(60) for p in running] == [0, 0, 0]
    assert not Path(out).exists()
    subprocess.run([*command[:-1], "--merge", out], stdout=subprocess.DEVNULL, check=True)
    subprocess.run(
        [*command, "-o", whole, *common, "--jobs", "2"], stdout=subprocess.DEVNULL, check=True
    )
    files = {p.name: p.read_bytes() for p in Path(whole).iterdir()}
    assert {p.name: p.read_bytes() for p in Path(out).iterdir()} == files
    assert len(files) > 5


def test_names_and_orders(ntool: Run, tmp_path: Path) -> None:
    case, out = CASES / "fused-direct", tmp_path / "a"
    ntool("convert-experts", case, "-o", out, "--to", "split", "--names", "w1-w3-w2")
    tensors = tensors_of(open_checkpoint(str(out)))
    group = "model.layers.0.mlp.experts"
    assert f"{group}.3.w1.weight" in tensors and f"{group}.3.gate_proj.weight" not in tensors
    ntool("convert-experts", case, "-o", tmp_path / "b", "--to", "split",
          "--names", "w1-w3-w2", "--gate-up-order", "interleaved")  # fmt: skip
    mixed = tensors_of(open_checkpoint(str(tmp_path / "b")))
    width = len(tensors[f"{group}.0.w1.weight"][2]) // tensors[f"{group}.0.w1.weight"][1][0]
    gate, up = tensors[f"{group}.0.w1.weight"][2], tensors[f"{group}.0.w3.weight"][2]
    rows = [(gate + up)[i : i + width] for i in range(0, len(gate + up), width)]
    assert mixed[f"{group}.0.w1.weight"][2] == b"".join(rows[::2])
    assert mixed[f"{group}.0.w3.weight"][2] == b"".join(rows[1::2])


def test_a_plan_needs_headers_alone(tmp_path: Path) -> None:
    """--dry-run writes nothing and loads no NumPy."""
    out = tmp_path / "out"
    program = (
        "import sys; from ntool import guard; code = guard.run(sys.argv[1:]);"
        "sys.exit(code or 'numpy' in sys.modules)"
    )
    given = ["convert-experts", str(CASES / "two-towers"), "-o", str(out), "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-c", program, *given, "--to", "fused-transposed"], capture_output=True
    )
    assert done.returncode == 0, done
    assert json.loads(done.stdout.splitlines()[-2])["dry_run"] is True
    assert os.listdir(tmp_path) == []
