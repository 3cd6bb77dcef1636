"""Files beside those that a SOURCE names: unlisted safetensors files, a single file's config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ntool.lib import inspection, judgement
from ntool.lib.checkpoint.source import open_checkpoint

from ..checkpoint.header_files import entry, index, shard, write
from ..conftest import run_ntool

INDEX = "model.safetensors.index.json"
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}}


def agree(source: Path, ntool: Any, code: int = 0) -> dict[str, Any]:
    """The summary of a source, which is that of its record stream."""
    done = ntool("census", source, code=code)
    stream = run_ntool("inspect-headers", source)
    piped = run_ntool("census", "-", stdin=stream.out)
    assert piped.code == code
    [direct], [summed] = done.of("summary"), piped.of("summary")
    for quantization in filter(None, (direct["quantization"], summed["quantization"])):
        del quantization["scale_values"]  # a stream has no payload
    assert direct == summed
    key = [(p["code"], p["severity"], p["file"], p["name"]) for p in done.of("problem")]
    assert key == [(p["code"], p["severity"], p["file"], p["name"]) for p in piped.of("problem")]
    return {"codes": key, **direct}


def test_tensors_that_only_an_unlisted_file_has(tmp_path: Path, ntool: Any) -> None:
    shard(tmp_path / "m.safetensors", "a", "b")
    shard(tmp_path / "mtp.safetensors", "a", "mtp.x", "mtp.y")
    index(tmp_path / INDEX, {"a": "m.safetensors", "b": "m.safetensors"})
    got = agree(tmp_path, ntool)
    assert got["codes"] == [("orphan-file", "warning", "mtp.safetensors", None)]
    assert got["unlisted"] == {"mtp.safetensors": ["mtp.x", "mtp.y"]}
    assert (got["tensors"], got["files"], got["orphans"]) == (2, 1, [])
    told = ntool("census", tmp_path).err
    assert "mtp.safetensors: not named by the index; it holds 2 tensors more" in told


@pytest.mark.parametrize("names", [("a", "b"), ("layers.0.a", "tok.b")])
def test_copies_are_information(names: tuple[str, str], tmp_path: Path, ntool: Any) -> None:
    """The same tensors, or all of them under other names, as in a file that is not sharded."""
    shard(tmp_path / "1.safetensors", "a")
    shard(tmp_path / "2.safetensors", "b")
    shard(tmp_path / "consolidated.safetensors", *names)
    index(tmp_path / INDEX, {"a": "1.safetensors", "b": "2.safetensors"})
    got = agree(tmp_path, ntool)
    assert got["codes"] == [("unlisted-file", "info", "consolidated.safetensors", None)]
    assert got["tensors"] == 2


def test_unlisted_files_that_cannot_be_read(tmp_path: Path, ntool: Any) -> None:
    shard(tmp_path / "m.safetensors", "a")
    (tmp_path / "x.safetensors").write_bytes(b"GGUF")
    (tmp_path / "y.safetensors").mkdir()
    index(tmp_path / INDEX, {"a": "m.safetensors"})
    got = agree(tmp_path, ntool)
    assert [c[:3] for c in got["codes"]] == [
        ("unlisted-file", "info", f"{n}.safetensors") for n in "xy"
    ]
    assert got["unlisted"] == {}


@pytest.mark.parametrize("weights", [True, False])
def test_an_index_that_names_nothing(weights: bool, tmp_path: Path, ntool: Any) -> None:
    if weights:
        shard(tmp_path / "m.safetensors", "a")
    index(tmp_path / INDEX, {})
    got = agree(tmp_path, ntool, code=3)
    assert got["codes"] == [("bad-index", "error", INDEX, None)]
    assert got["tensors"] == weights


def fp8(path: Path, *more: str) -> Path:
    """A weight [6, 6] in blocks of 4x4, whose scale is [2, 2]."""
    rows = {"a.weight": entry("F8_E4M3", [6, 6], 0, 36),
            "a.weight_scale_inv": entry("F32", [2, 2], 36, 52)}  # fmt: skip
    rows |= {n: entry("F32", [1], 52 + 4 * i, 56 + 4 * i) for i, n in enumerate(more)}
    return write(path, rows, 52 + 4 * len(more))


def test_the_config_beside_a_single_file(tmp_path: Path, ntool: Any) -> None:
    file = fp8(tmp_path / "model.safetensors")
    assert [c[0] for c in agree(file, ntool, code=1)["codes"]] == ["scale-grid"]
    (tmp_path / "config.json").write_text(json.dumps(BLOCKS))
    got = agree(file, ntool)
    assert got["codes"] == [] and got["quantization"]["block"] == [4, 4]
    assert got["config_hash"] == agree(tmp_path, ntool)["config_hash"]


def test_only_the_named_path_s_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").mkdir()
    fp8(tmp_path / "real" / "model.safetensors")
    (tmp_path / "link" / "model.safetensors").symlink_to("../real/model.safetensors")
    (tmp_path / "real" / "config.json").write_text(json.dumps(BLOCKS))
    there = open_checkpoint(str(tmp_path / "link" / "model.safetensors"), beside=True)
    assert there.config == {} and list(there.tensors)
    here = open_checkpoint(str(tmp_path / "real" / "model.safetensors"))
    assert here.config == {}, "conversions do not ask for it"


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1, "a": 2}'])
def test_a_bad_config_beside_a_file_is_no_error(text: str, tmp_path: Path, ntool: Any) -> None:
    file = shard(tmp_path / "m.safetensors", "a")
    (tmp_path / "config.json").write_text(text)
    got = agree(file, ntool)
    assert {c[1] for c in got["codes"]} == {"warning"} and got["config_hash"] is None


@pytest.mark.parametrize("how", ["index", "number"])
def test_one_of_several_shards_is_not_judged_as_a_whole(how: str, tmp_path: Path) -> None:
    name = "model-00001-of-00002.safetensors" if how == "number" else "one.safetensors"
    experts = [f"layers.0.experts.{i}.{p}_proj.weight" for i in range(2) for p in ("gate", "up")]
    file = fp8(tmp_path / name, *experts)
    if how == "index":
        index(tmp_path / INDEX, {"a.weight": name, "b": "two.safetensors"})
    config: dict[str, Any] = {"model_type": "neo_chat", "num_experts": 8, "hidden_size": 9}
    quantization = {**BLOCKS["quantization_config"], "modules_to_not_convert": ["nowhere"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "llm_config": {
        "num_experts": 8, "quantization_config": quantization}}))  # fmt: skip
    counted = inspection.read(str(file))
    assert counted.partial
    facts = judgement.judge(counted)
    assert (facts["family"], facts["components"]) == ("neo_chat", None)
    assert facts["quantization"]["block"] == [4, 4]
    assert not {p.code for p in counted.problems} & {
        *("count-mismatch", "config-mismatch", "skip-unresolved", "scale-grid", "config-value")
    }
