"""`inspect-headers SOURCE | census -` says what `census SOURCE` says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint

from ..checkpoint.gguf_files import ARCH, LITTLE, A
from ..checkpoint.header_files import entry, index, shard, write
from ..conftest import Ended, run_ntool

GOLDEN = Path(__file__).parents[1] / "data" / "qwen4-exp" / "gguf"


def both(source: Path, ntool: Any, code: int = 0) -> tuple[Ended, Ended]:
    return ntool("census", source, code=code), run_ntool(
        "census", "-", stdin=run_ntool("inspect-headers", source).out
    )


def same(source: Path, ntool: Any, code: int = 0) -> dict[str, Any]:
    direct, piped = both(source, ntool, code)
    assert piped.code == code
    [a], [b] = direct.of("summary"), piped.of("summary")
    for quantization in filter(None, (a["quantization"], b["quantization"])):
        del quantization["scale_values"]  # a stream has no payload
    assert a == b
    assert direct.of("group") == piped.of("group")

    def told(done: Ended) -> list[tuple[Any, ...]]:
        keys = ("code", "severity", "file", "name")
        return sorted(tuple(str(p[k]) for k in keys) for p in done.of("problem"))

    assert told(direct) == told(piped)
    return a


def test_the_family_of_a_gguf_model(tmp_path: Path, ntool: Any) -> None:
    assert same(GOLDEN, ntool)["family"] == "qwen4_exp"
    for path in GOLDEN.glob("*.gguf"):
        shutil.copyfile(path, tmp_path / path.name)
    lost = next(t for t in open_checkpoint(str(GOLDEN)).tensors.values() if "norm" in t.name)
    path, name = tmp_path / lost.file, lost.name.encode()
    path.write_bytes(path.read_bytes().replace(name, b"x" * len(name)))
    assert same(tmp_path, ntool, code=1)["missing"] == [lost.name]
    pair = LITTLE.pair("general.architecture", 8, "qwen4exp")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "m.gguf").write_bytes(LITTLE.file([pair], [A]))
    same(tmp_path / "one", ntool, code=1)
    (tmp_path / "one" / "m.gguf").write_bytes(LITTLE.file([ARCH], [A]))
    assert same(tmp_path / "one", ntool)["family"] is None


@pytest.mark.parametrize("text, code", [("{}", 0), ("", 3), ("[1]", 3), ("{", 3)])
def test_the_hash_of_an_odd_config(text: str, code: int, tmp_path: Path, ntool: Any) -> None:
    shard(tmp_path / "m.safetensors", "a")
    (tmp_path / "config.json").write_text(text)
    assert same(tmp_path, ntool, code)["config_hash"] is not None


def test_problems_of_experts_have_their_file(tmp_path: Path, ntool: Any) -> None:
    rows, at = {}, 0
    for i in range(2):
        for part in ("gate", "up", "down"):
            rows[f"layers.0.experts.{i}.{part}_proj.weight"] = entry("F8_E4M3", [4, 4], at, at + 16)
            at += 16
    write(tmp_path / "m.safetensors", rows, at)
    direct, _ = both(tmp_path, ntool, code=1)
    same(tmp_path, ntool, code=1)
    assert {p["file"] for p in direct.of("problem")} == {"m.safetensors"}
    stream = run_ntool("inspect-headers", tmp_path)
    assert {p["file"] for p in stream.of("problem")} == {"m.safetensors"}


def test_a_long_skip_list(tmp_path: Path, ntool: Any) -> None:
    names = [f"m{i}" for i in range(1500)]
    shard(tmp_path / "m.safetensors", *(f"{n}.weight" for n in names[:-1]), shape=(2, 2))
    quantization = {"quant_method": "fp8", "modules_to_not_convert": names}
    config = {"text_config": {"quantization_config": quantization}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    got = same(tmp_path, ntool)
    assert got["quantization"]["skip_list"]["unresolved"] == [names[-1]]


def test_missing_orphaned_doubled(tmp_path: Path, ntool: Any) -> None:
    shard(tmp_path / "m.safetensors", "a", "o")
    shard(tmp_path / "n.safetensors", "a", "b")
    weight_map = {"a": "m.safetensors", "b": "n.safetensors", "c": "n.safetensors", "d": "gone"}
    index(tmp_path / "model.safetensors.index.json", weight_map, total_size=5)
    got = same(tmp_path, ntool, code=3)
    assert (sorted(got["missing"]), got["orphans"], got["duplicates"]) == (["c", "d"], ["o"], ["a"])
