"""The published FP8 repository at full size: 152,089 tensors in 131 files over 185 GB of holes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Ended, run_ntool
from ..sparse_files import CENSUS, write_fp8_full

HASH = json.loads((CENSUS / "schema_hash.json").read_text())["qwen4-exp-fp8-full"]["schema_hash"]
GROUPS = {
    "routed_experts": 73_728,
    "routed_expert_scales": 73_728,
    "ple_shards": 128,
    "ple_scale": 1,
    "mtp": 3_101,
    "visual": 333,
    "text_dense": 1_067,
    "hash_buffers": 3,
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fp8_full(tmp_path_factory.mktemp("full") / "fp8")


@pytest.fixture(scope="module")
def census(repository: Path) -> Ended:
    done = run_ntool("census", repository)
    assert (done.code, done.err) == (0, "")
    return done


def judge(summary: dict[str, Any]) -> None:
    assert (summary["tensors"], summary["files"]) == (152_089, 131)
    assert summary["nbytes"] == 185_502_232_570
    assert summary["schema_hash"] == HASH
    assert summary["family"] == "qwen4_exp"
    parts = ("text", "experts", "scales", "ple", "visual", "mtp")
    assert summary["components"] == dict.fromkeys(parts, True)
    layout = summary["expert_layout"]
    assert (layout["layout"], layout["groups"], layout["E"]) == ("split", 49, 512)
    assert (layout["H"], layout["I"], layout["mixed"]) == (2560, 640, False)
    quantization = summary["quantization"]
    assert (quantization["kind"], quantization["block"]) == ("fp8", [128, 128])
    # 73,728 expert matrices of the text model, 1,536 of mtp, 128 shards
    assert quantization["pairs"] == 73_728 + 1_536 + 128
    assert quantization["forms"] == {"block": 75_264, "tensor": 128}
    [(shared, users)] = quantization["shared_scales"].items()
    assert shared.endswith(".ngram_embedding.weight_scale") and users == 128
    assert quantization["unpaired"] == quantization["orphan_scales"] == []
    skip = quantization["skip_list"]
    assert (skip["listed"], skip["resolved"], skip["unlisted"]) == (943, 943, 0)


def test_counts_are_those_published(census: Ended) -> None:
    assert {g["key"]: g["tensors"] for g in census.of("group")} == GROUPS
    assert census.of("problem") == []
    [summary] = census.of("summary")
    judge(summary)
    assert summary["index_total_size"] == 185_502_232_570
    assert summary["quantization"]["scale_values"]["checked"] == 75_264 + 1


def test_the_same_through_a_pipe(repository: Path, census: Ended, tmp_path: Path) -> None:
    """A stream has no payload: values of scales are not looked at, all else is the same, the list
    of 943 names too."""
    script = f"{sys.executable} -m ntool inspect-headers {repository} | "
    script += f"{sys.executable} -m ntool census -"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    summary = next(r for r in map(json.loads, done.stdout.splitlines()) if r["kind"] == "summary")
    judge(summary)
    assert summary["quantization"]["scale_values"] is None
    [direct] = census.of("summary")
    differ = {k for k in direct if direct[k] != summary[k]}
    assert differ <= {"quantization"}


def test_one_absent_scale_is_found(repository: Path, tmp_path: Path) -> None:
    """The grid of one expert matrix of 75,264, told by name."""
    copy = tmp_path / "copy"
    copy.mkdir()
    name = "model.language_model.layers.30.mlp.experts.77.up_proj.weight_scale_inv"
    index = json.loads((repository / "model.safetensors.index.json").read_text())
    file = index["weight_map"].pop(name)
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    (copy / "config.json").write_text((repository / "config.json").read_text())
    for path in repository.glob("*.safetensors"):
        if path.name != file:
            (copy / path.name).hardlink_to(path)
    with open(repository / file, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(length))
    begin, end = header.pop(name)["data_offsets"]
    for entry in header.values():
        if entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [n - (end - begin) for n in entry["data_offsets"]]
    text = json.dumps(header).encode()
    payload = max(e["data_offsets"][1] for e in header.values())
    with open(copy / file, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + payload)
    done = run_ntool("census", copy)
    assert done.code == 1
    [problem] = [p for p in done.of("problem") if p["severity"] == "error"]
    assert (problem["code"], problem["name"]) == (
        "missing-scale",
        name.removesuffix("_scale_inv"),
    )
    [summary] = done.of("summary")
    assert summary["components"]["scales"] is False
    assert summary["quantization"]["unpaired"] == [problem["name"]]
