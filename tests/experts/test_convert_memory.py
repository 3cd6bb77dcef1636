"""Memory does not grow with the number of experts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from pathlib import Path
import numpy
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.conversion.run import Options, run
from ntool.lib.experts import convert, payload

def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) << 10

source, to, out = sys.argv[1:]
before = peak()
plan = convert.plan(open_checkpoint(source), convert.Wish(to))
with plan.files:
    run(plan, Path(out), Options())
print(peak() - before)
"""
H, I = 512, 512  # noqa: E741
MATRIX = H * I * 2
LIMIT = 2 * MATRIX + (8 << 20)
"""Two matrices of an expert, buffers, what Python needs; 64 experts are 100 MB."""


def sparse(folder: Path, experts: int, layout: str) -> Path:
    """Banks of zeros that take no room on the disk."""
    folder.mkdir()
    group, header, at = "model.layers.0.mlp.experts", {}, 0
    shapes: dict[str, list[int]] = {}
    if layout == "split":
        for j in range(experts):
            for name, shape in (("gate", [I, H]), ("up", [I, H]), ("down", [H, I])):
                shapes[f"{group}.{j}.{name}_proj.weight"] = shape
    else:
        shapes[f"{group}.w13_weight"] = [experts, 2 * I, H]
        shapes[f"{group}.w2_weight"] = [experts, H, I]
    for name, shape in shapes.items():
        end = at
        for n in [1]:
            for side in shape:
                n *= side
            end += 2 * n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(f.tell() + at)
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("layout, to", [("split", "fused-transposed"), ("w13", "split")])
def test_experts_do_not_add_up(layout: str, to: str, tmp_path: Path) -> None:
    peaks = []
    for experts in (8, 64):
        source = sparse(tmp_path / f"{experts}", experts, layout)
        out = tmp_path / f"{experts}-{to}"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, source, to, out],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        peaks.append(int(done.stdout))
    assert max(peaks) < LIMIT, peaks
