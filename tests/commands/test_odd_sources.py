"""Addresses, names and records that are odd: one clear line, no secret in it, and no bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import InputError, UsageProblem, without_secrets
from ntool.lib.inspection import counted_records
from ntool.lib.record_formats import Delimited

from ..checkpoint.header_files import index, shard
from ..checkpoint.onnx_models import adding, tiny, weight
from ..conftest import run_ntool


@pytest.mark.parametrize("url", ["https://[::1", "http://[", "http://h:99999/x.safetensors"])
@pytest.mark.parametrize("command", ["inspect-headers", "census"])
def test_no_address(url: str, command: str, ntool) -> None:
    done = ntool(command, url, code=2)
    assert "no web address" in done.err and done.records[-1]["code"] == 2


@pytest.mark.parametrize("text, shown", [
    ("http://user:secret@HOST/x?sig=a", "http://HOST/x"),
    ("http://u:p@h/x?sig=abc: no such file", "http://h/x: no such file"),
    ("at https://h:8/x?s=1, and s3://k:s@b/x#f)", "at https://h:8/x, and s3://b/x)"),
    ("'http://u:p@h/a?b'", "'http://h/a'"),
    ("hf://o/n@rev/f", "hf://o/n@rev/f"),
    ("a?b@c", "a?b@c"),
])  # fmt: skip
def test_secrets_of_addresses(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("command", ["inspect-headers", "census"])
@pytest.mark.parametrize("where", ["127.0.0.1:9/x.safetensors", "127.0.0.1:9", "[/x"])
def test_secrets_are_not_written(command: str, where: str) -> None:
    done = run_ntool(command, f"http://user:secret@{where}?sig=word", "-v", timeout=60)
    assert done.code in (2, 5, 6) and "http://" in done.out
    for text in (done.out, done.err):
        assert "secret" not in text and "word" not in text and "user:" not in text
    assert done.records[0]["source"].startswith("http://127" if "127" in where else "http://[")


def row(**fields: Any) -> dict[str, Any]:
    return {"kind": "tensor", "name": "a", "dtype": "F32", "shape": [1], "nbytes": 4, **fields}


@pytest.mark.parametrize("wrong", [
    {"shape": [10**4000]}, {"nbytes": 10**4000}, {"shape": [2**62] * 300, "dtype": "X", "nbytes": 1}
])  # fmt: skip
def test_numbers_that_no_file_has(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="'a'"):
        counted_records([row(**wrong)])


def test_a_name_twice_in_a_stream() -> None:
    begin = {"kind": "begin"}
    got = counted_records([begin, row(), row(), begin, row(), row(component="x")])
    assert [p.code for p in got.problems] == ["duplicate-tensor"]
    assert (got.duplicates, len(got.tensors)) == (["a"], 3)


def test_a_config_with_half_a_character(tmp_path: Path, ntool) -> None:
    half = "\\ud800"
    text = json.dumps(
        {
            "model_type": "H",
            "architectures": ["H"],
            "hidden_size": "H",
            "H_size": 1,
            "quantization_config": {"quant_method": "H", "ignore": ["H", "a"]},
        }
    )
    shard(tmp_path / "m.safetensors", "a.weight")
    (tmp_path / "config.json").write_text(text.replace("H", half))
    for form in ("jsonl", "table", "csv", "tsv"):
        stream = ntool("inspect-headers", tmp_path, "--format", form)
        ntool("census", tmp_path, "--format", form)
    assert stream


def test_capitals(tmp_path: Path) -> None:
    shard(tmp_path / "X.SAFETENSORS", "a")
    for source in (tmp_path, tmp_path / "X.SAFETENSORS"):
        assert list(open_checkpoint(str(source)).tensors) == ["a"]
    with pytest.raises(UsageProblem, match="segment"):
        open_checkpoint("HF://org/model/../x")


@pytest.mark.parametrize("indexed", [True, False])
def test_graphs_beside_a_checkpoint(tmp_path: Path, indexed: bool) -> None:
    shard(tmp_path / "model.safetensors", "a")
    if indexed:
        index(tmp_path / "model.safetensors.index.json", {"a": "model.safetensors"})
    for name in ("model.onnx", "m.gguf"):
        (tmp_path / name).write_bytes(tiny().SerializeToString())
    got = open_checkpoint(str(tmp_path))
    told = [(p.code, p.severity, p.file) for p in got.problems]
    assert told == [("unlisted-file", "info", n) for n in ("m.gguf", "model.onnx")]


@pytest.mark.parametrize("name", ["model.onnx", "hard.bin"])
def test_a_graph_is_not_its_own_data(tmp_path: Path, name: str) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(adding(weight("w", location=name)).SerializeToString() + bytes(0))
    if name != "model.onnx":
        (tmp_path / name).hardlink_to(graph)
    got = open_checkpoint(str(graph))
    assert [p.code for p in got.problems if p.severity == "error"] == ["own-graph"]
    assert got.tensors == {}


def test_cells_of_tsv() -> None:
    import io

    out = io.StringIO()
    sink = Delimited(out, "metadata", "\t", None)
    value = 'a\tb\nc\r"d" \\ \x1b'
    sink.record({"kind": "metadata", "file": value, "key": [1, 2], "value": ['"', "\t"]})
    lines = out.getvalue().split("\n")
    assert lines[0] == "file\tkey\tvalue" and lines[2:] == [""]
    assert lines[1].split("\t") == [r'a\tb\nc\r"d" \\ \x1b', "1,2", r'["\\"","\\t"]']


def test_one_is_no_plural(tmp_path: Path) -> None:
    shard(tmp_path / "m.safetensors", "a", "b")
    index(tmp_path / "model.safetensors.index.json", {"a": "m.safetensors"})
    [problem] = open_checkpoint(str(tmp_path)).problems
    assert problem.message == "1 tensor that the index does not name: b"
