from __future__ import annotations

import csv
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntool.lib.checkpoint.folder import LocalFolder
from ntool.lib.checkpoint.tensor import Checkpoint, Tensor
from ntool.lib.inspection import write_records
from ntool.lib.record_formats import JsonLines
from ntool.lib.records import Stream, dumps

NTOOL = [sys.executable, "-m", "ntool"]


def ntool(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NTOOL, *arguments], capture_output=True, text=True, timeout=60, **options
    )


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def shard(path: Path, *names: str) -> Path:
    rows = {
        n: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]}
        for i, n in enumerate(names)
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **rows}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8 * len(names)))
    return path


def test_demo_stream() -> None:
    done = ntool("inspect-headers", "demo:shapes")
    assert (done.returncode, done.stderr) == (0, "")
    out = records(done.stdout)
    kinds = [r["kind"] for r in out]
    assert kinds[0] == "begin" and kinds[-1] == "end"
    assert list(dict.fromkeys(kinds[1:-1])) == ["config", "file", "tensor", "metadata"]
    assert kinds.count("tensor") == 154
    assert out[-1]["count"] == len(out) - 2
    assert out[-1]["requests"] == 0
    headers = sum(r["offset"] for r in out if r["kind"] == "tensor" and r["offset"] < 10_000)
    assert headers > 0
    tensor = next(r for r in out if r["kind"] == "tensor")
    assert list(tensor) == [
        "kind", "name", "dtype", "shape", "file", "offset", "nbytes", "params",
    ]  # fmt: skip
    assert sum(r["nbytes"] for r in out if r["kind"] == "tensor") == 10_760_896


def test_bytes_read_are_headers_and_json(tmp_path: Path) -> None:
    path = shard(tmp_path / "m.safetensors", "a", "b")
    end = records(ntool("inspect-headers", str(path)).stdout)[-1]
    assert end["bytes_read"] == path.stat().st_size - 16


def test_config_keeps_what_decides_layout(tmp_path: Path) -> None:
    shard(tmp_path / "m.safetensors", "a")
    config = {
        "model_type": "x",
        "hidden_size": 8,
        "bos_token": "<s>",
        "text_config": {"num_hidden_layers": 2, "initializer_note": "n"},
        "quantization_config": {
            "weight_block_size": [128, 128],
            "modules_to_not_convert": [f"m{i}" for i in range(2000)],
            "odd": list(range(2000)),
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))

    def values(*options: str) -> dict[str, Any]:
        out = records(ntool("inspect-headers", str(tmp_path), *options).stdout)
        [record] = [r for r in out if r["kind"] == "config"]
        return record["values"]

    short = values()
    assert short["hidden_size"] == 8
    assert "bos_token" not in short
    assert short["text_config"] == {"num_hidden_layers": 2}
    quantization = short["quantization_config"]
    assert quantization["odd"] == {"type": "list", "length": 2000, "head": [0, 1, 2, 3]}
    names = config["quantization_config"]["modules_to_not_convert"]  # type: ignore[index]
    assert quantization["modules_to_not_convert"] == names
    assert values("--full")["quantization_config"] == config["quantization_config"]


def test_include_and_exclude() -> None:
    done = ntool(
        "inspect-headers", "demo:shapes", "--include", "*.layers.0.*", "--exclude", "*gen*"
    )
    names = [r["name"] for r in records(done.stdout) if r["kind"] == "tensor"]
    assert len(names) == 13
    assert all(".layers.0." in n and "gen" not in n for n in names)


def test_one_stream_a_source_and_the_worst_code(tmp_path: Path) -> None:
    good = shard(tmp_path / "good.safetensors", "a")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(good.read_bytes()[:-3])
    done = ntool("inspect-headers", str(good), str(bad), str(good))
    assert done.returncode == 3
    out = records(done.stdout)
    assert [r["source"] for r in out if r["kind"] == "begin"] == [str(good), str(bad), str(good)]
    assert sum(r["kind"] == "end" for r in out) == 3
    assert done.stderr == (
        f"ntool inspect-headers: {bad}: tensor 'a': file is short by 3 bytes: "
        "found 5 bytes of payload, expected 8\n"
    )


def test_sound_tensors_of_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(shard(path, "a", "b", "c").read_bytes()[:-1])
    done = ntool("inspect-headers", str(path))
    assert done.returncode == 3
    out = records(done.stdout)
    assert [r["name"] for r in out if r["kind"] == "tensor"] == ["a", "b"]
    [problem] = [r for r in out if r["kind"] == "problem"]
    assert (problem["code"], problem["severity"]) == ("truncated", "error")
    assert out[-1]["kind"] == "end"


def test_names_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = shard(tmp_path / "m.safetensors", 'x\n\x1b[31m\u202e"\\\x7f\x9b\ud83d\ude00')
    for form in ("jsonl", "table", "csv", "tsv"):
        done = ntool("inspect-headers", str(path), "--format", form)
        assert done.returncode == 0
        for character in "\x1b\u202e\x7f\x9b":
            assert character not in done.stdout, form
    out = records(ntool("inspect-headers", str(path)).stdout)
    assert [r["name"] for r in out if r["kind"] == "tensor"] == ['x\n\x1b[31m\u202e"\\\x7f\x9b😀']


def test_csv(tmp_path: Path) -> None:
    path = shard(tmp_path / "m.safetensors", "a,b")
    rows = list(
        csv.DictReader(io.StringIO(ntool("inspect-headers", str(path), "--format", "csv").stdout))
    )
    assert [(r["name"], r["dtype"], r["shape"]) for r in rows] == [("a,b", "F32", "2")]


@pytest.mark.parametrize(
    "source, code",
    [("/nowhere/m.safetensors", 4), ("owner/name", 6), ("x.gguf", 4), ("demo:x", 4), ("-", 2)],
)
def test_exit_codes(source: str, code: int, tmp_path: Path) -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = ntool("inspect-headers", source, cwd=tmp_path, env=env)
    assert done.returncode == code
    assert done.stderr.startswith("ntool inspect-headers: ")
    last = records(done.stdout)[-1]
    assert (last["kind"], last["code"]) == ("error", code)


def test_max_header_option(tmp_path: Path) -> None:
    path = shard(tmp_path / "m.safetensors", "a")
    for command in ("inspect-headers", "census"):
        assert ntool(command, str(path), "--max-header", "1000").returncode == 0
        done = ntool(command, str(path), "--max-header", "50")
        assert done.returncode == 3
        assert "--max-header" in done.stderr


@pytest.mark.parametrize("unbuffered", [False, True])
def test_reader_that_closes_the_pipe(unbuffered: bool, tmp_path: Path) -> None:
    path = shard(tmp_path / "m.safetensors", *(f"tensor.{i}" for i in range(20_000)))
    environment = {**os.environ, **({"PYTHONUNBUFFERED": "1"} if unbuffered else {})}
    command = f"{sys.executable} -m ntool inspect-headers {path} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=60
    )
    first, status = done.stdout.splitlines()
    assert json.loads(first)["kind"] == "begin"
    assert status == "141"
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["inspect-headers", "census"])
def test_nothing_heavy_is_imported(command: str) -> None:
    code = (
        "import sys; from ntool.guard import run; "
        f"assert run(['{command}', 'demo:shapes']) == 0; print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(done.stderr.split())
    assert "ntool.lib.checkpoint.source" in loaded
    heavy = {"numpy", "onnx", "onnxruntime", "safetensors", "huggingface_hub", "tqdm", "rich"}
    assert not loaded & heavy
    assert not any("fsspec" in m or "ml_dtypes" in m for m in loaded)


NAMES = st.text(max_size=8)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(NAMES, st.lists(st.integers(0, 2**63 - 1), max_size=3), NAMES, st.booleans()),
        max_size=4,
    )
)
def test_quick_lines_are_what_dumps_writes(rows: list[tuple[str, list[int], str, bool]]) -> None:
    tensors = {n: Tensor(n, "F32", tuple(s), f, 1, 2) for n, s, f, _ in rows}
    orphans = [n for n, _, _, orphan in rows if orphan]
    out = io.StringIO()
    stream = Stream(JsonLines(out), source="x")
    write_records(stream, Checkpoint("x", "/", LocalFolder("/"), tensors=tensors, orphans=orphans))
    want = [
        dumps({"kind": "tensor", **t.record(), **({"orphan": True} if n in orphans else {})})
        for n, t in tensors.items()
    ]
    assert out.getvalue().splitlines()[1:] == want
    assert stream.count == len(want)
