"""ONNX graphs as a SOURCE: one file, a package, a folder of other tools."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint, exit_code
from ntool.lib.errors import SourceNotFound, Unsupported

from .header_files import index, shard
from .onnx_models import adding, tiny, weight

T = TensorProto


def graph(path: Path, *weights: TensorProto) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(adding(*weights).SerializeToString())
    return path


def inline(name: str) -> TensorProto:
    return numpy_helper.from_array(np.zeros(4, np.float32), name)


def stored(checkpoint: Checkpoint) -> dict[str, tuple[str, str | None]]:
    return {key: (t.file, t.component) for key, t in checkpoint.tensors.items()}


def test_one_file(tmp_path: Path) -> None:
    path = graph(tmp_path / "net.onnx", inline("a"), weight("b", location="w.bin", offset="16"))
    (tmp_path / "w.bin").write_bytes(bytes(range(64)))
    got = open_checkpoint(str(path))
    assert (got.format, got.problems) == ("onnx", [])
    assert stored(got) == {"a": ("net.onnx", "net"), "b": ("w.bin", "net")}
    assert got.files == {"net.onnx": path.stat().st_size, "w.bin": 64}
    assert got.file_facts == {
        "net.onnx": {"role": "graph", "component": "net"},
        "w.bin": {"role": "data", "covered": 16},
    }
    assert [(p.name, p.role, p.component) for p in got.ports] == [
        ("x", "input", "net"),
        ("b+", "output", "net"),
    ]
    assert got.bytes_read == path.stat().st_size
    assert b"".join(got.bands(got.tensor("b"))) == bytes(range(16, 32))
    assert b"".join(got.bands(got.tensor("a"))) == bytes(16)


def test_values_in_typed_fields_have_no_bytes(tmp_path: Path) -> None:
    t = helper.make_tensor("w", T.INT32, [2], [1, 2])
    model = helper.make_model(helper.make_graph([], "g", [], [], [t]))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    got = open_checkpoint(str(tmp_path / "m.onnx"))
    assert got.tensor("w").record()["offset"] is None
    with pytest.raises(Unsupported, match="typed fields"):
        list(got.bands(got.tensor("w")))


def test_package(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    for component in ("encoder", "decoder"):
        graph(
            tmp_path / component / "model.onnx",
            weight("w", location="model.safetensors", offset="0"),
            inline(component),
        )
        (tmp_path / component / "model.safetensors").write_bytes(bytes(16))
    (tmp_path / "tokenizer").mkdir()
    got = open_checkpoint(str(tmp_path))
    assert (got.format, got.problems) == ("package", [])
    data = "decoder/model.safetensors", "encoder/model.safetensors"
    assert stored(got) == {
        "decoder/decoder": ("decoder/model.onnx", "decoder"),
        "decoder/w": (data[0], "decoder"),
        "encoder/encoder": ("encoder/model.onnx", "encoder"),
        "encoder/w": (data[1], "encoder"),
    }
    assert got.tensor("encoder/w").name == "w"
    assert got.path(data[1]) == str(tmp_path / data[1])


def test_folder_of_other_tools(tmp_path: Path) -> None:
    """Several graphs in a folder, graphs at the top, one data file for two of them."""
    graph(tmp_path / "onnx" / "encoder.onnx", inline("e"))
    graph(tmp_path / "onnx" / "decoder.onnx", weight("w", location="d.onnx_data"))
    (tmp_path / "onnx" / "d.onnx_data").write_bytes(bytes(16))
    (tmp_path / "onnx" / "old.bin").write_bytes(bytes(16))
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    for name in ("one", "two"):
        graph(tmp_path / f"{name}.ONNX", weight("shared", location="both.bin"), inline("own"))
    (tmp_path / "both.bin").write_bytes(bytes(32))
    (tmp_path / ".cache").mkdir()
    graph(tmp_path / ".cache" / "hidden.onnx", inline("no"))
    graph(tmp_path / "deeper" / "down" / "no.onnx", inline("no"))
    got = open_checkpoint(str(tmp_path))
    assert got.format == "onnx"
    assert got.config == {"model_type": "x"}
    assert stored(got) == {
        "one/own": ("one.ONNX", "one"),
        "one/shared": ("both.bin", "one"),
        "two/own": ("two.ONNX", "two"),
        "two/shared": ("both.bin", "two"),
        "onnx/decoder/w": ("onnx/d.onnx_data", "onnx/decoder"),
        "onnx/encoder/e": ("onnx/encoder.onnx", "onnx/encoder"),
    }
    assert got.file_facts["both.bin"] == {"role": "data", "covered": 16}
    assert got.files["both.bin"] == 32
    assert [(p.code, p.severity, p.file) for p in got.problems] == [
        ("shared", "info", None),
        ("unreferenced-file", "info", "onnx/old.bin"),
    ]
    message = "of one and two, counted in both: 1 tensors: shared"
    assert got.problems[0].message == message


def test_one_broken_graph_of_two(tmp_path: Path) -> None:
    graph(tmp_path / "a" / "model.onnx", inline("w"))
    broken = graph(tmp_path / "b" / "model.onnx", inline("w"), weight("v", location="../a/x"))
    got = open_checkpoint(str(tmp_path))
    assert [(p.code, p.file) for p in got.problems] == [("traversal", "b/model.onnx")]
    assert sorted(got.tensors) == ["a/w", "b/w"]
    broken.write_bytes(b"")
    got = open_checkpoint(str(tmp_path))
    assert [(p.code, p.file) for p in got.problems] == [("empty", "b/model.onnx")]
    assert sorted(got.tensors) == ["a/w"] and exit_code(got.problems) == 3


def test_a_component_that_is_linked_out(tmp_path: Path) -> None:
    graph(tmp_path / "outside" / "model.onnx", inline("secret"))
    package = tmp_path / "pkg"
    graph(package / "a" / "model.onnx", inline("w"))
    (package / "a" / "link.onnx").symlink_to(tmp_path / "outside" / "model.onnx")
    (package / "b").symlink_to(tmp_path / "outside")
    got = open_checkpoint(str(package))
    assert [(p.code, p.file) for p in got.problems] == [("path-escape", "a/link.onnx")]
    assert list(got.tensors) == ["a/model/w"]


def test_which_format_a_folder_has(tmp_path: Path) -> None:
    graph(tmp_path / "m.onnx", inline("w"))
    shard(tmp_path / "s.safetensors", "s")
    assert list(open_checkpoint(str(tmp_path)).tensors) == ["s"]  # weights at the top come first
    index(tmp_path / "model.safetensors.index.json", {"s": "s.safetensors"})
    assert list(open_checkpoint(str(tmp_path)).tensors) == ["s"]
    for name in ("s.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).unlink()
    assert list(open_checkpoint(str(tmp_path)).tensors) == ["m/w"]
    (tmp_path / "m.onnx").rename(tmp_path / "m.txt")
    with pytest.raises(SourceNotFound, match=r"\.onnx"):
        open_checkpoint(str(tmp_path))


def test_from_inside_with_a_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph(tmp_path / "a" / "m.onnx", weight("w", location="w.bin"))
    (tmp_path / "a" / "w.bin").write_bytes(bytes(16))
    monkeypatch.chdir(tmp_path / "a")
    assert [list(open_checkpoint(n).tensors) for n in ("m.onnx", ".")] == [["w"], ["m/w"]]


def test_demo_package_is_what_its_report_says(
    demo_package: Path, ntool: Callable[..., Any]
) -> None:
    report = json.loads((demo_package / "weight-loading-report.json").read_text())
    targets = {
        (t["component"], t["name"]): (t["dtype"], t["file"], t["offset"], t["nbytes"])
        for row in report["tensors"]
        for t in row["targets"]
    }
    listed = ntool("inspect-headers", demo_package)
    rows = [r for r in listed.of("tensor") if r["role"] == "initializer"]
    found = {(r["component"], r["name"]): r for r in rows}
    assert len(found) == len(rows)
    assert {
        key: (r["dtype"], r["file"], r["offset"], r["nbytes"])
        for key, r in found.items()
        if r["file"].endswith(".safetensors")
    } == targets
    assert all(r["file"].endswith(".onnx") for key, r in found.items() if key not in targets)
    assert listed.of("problem") == []
    manifest = json.loads((demo_package / "package.json").read_text())
    for component, entry in manifest["components"].items():
        for role in ("input", "output"):
            of_role = [r for r in listed.of("tensor") if r["role"] == role]
            ports = [r for r in of_role if r["component"] == component]
            assert [(p["name"], p["shape"]) for p in ports] == [
                (p["name"], p["shape"]) for p in entry[f"{role}s"]
            ]
    files = {r["path"]: (r["nbytes"], r["role"]) for r in listed.of("file")}
    assert files == {
        str(p.relative_to(demo_package)): (
            p.stat().st_size,
            "graph" if p.suffix == ".onnx" else "data",
        )
        for p in demo_package.glob("*/model.*")
    }


def test_census_counts_what_is_stored(
    demo_package: Path, ntool: Callable[..., Any], tmp_path: Path
) -> None:
    from .. import conftest

    listed = ntool("inspect-headers", demo_package)
    stored = [r for r in listed.of("tensor") if r["role"] == "initializer"]
    [direct] = ntool("census", demo_package, "--by", "component").of("summary")
    assert direct["tensors"] == len(stored)
    assert direct["nbytes"] == sum(r["nbytes"] for r in stored)
    assert direct["params"] == sum(r["params"] for r in stored)
    assert direct["files"] == 10
    piped = conftest.run_ntool("census", "-", stdin=listed.out)
    assert piped.code == 0
    assert piped.of("summary") == [direct]
    groups = ntool("census", demo_package, "--by", "component").of("group")
    assert sorted(g["key"] for g in groups) == sorted(
        p.name for p in demo_package.iterdir() if (p / "model.onnx").exists()
    )
    [row] = ntool("census", demo_package, "--by", "role").of("group")
    assert row["key"] == "initializer"


def test_include_and_table(tmp_path: Path, ntool: Callable[..., Any]) -> None:
    (tmp_path / "m.onnx").write_bytes(tiny().SerializeToString())
    listed = ntool("inspect-headers", tmp_path / "m.onnx", "--include", "[wx]")
    assert [r["name"] for r in listed.of("tensor")] == ["w", "x"]
    assert "then_branch" not in listed.out
    table = ntool("inspect-headers", tmp_path / "m.onnx", "--format", "table").out
    assert "input" in table and "initializer" in table
    rows = ntool("inspect-headers", tmp_path / "m.onnx", "--format", "csv").out.splitlines()
    assert len(rows) == 5 and rows[0].startswith("name,dtype,shape")


def test_large_package(tmp_path: Path) -> None:
    """Three graphs of 5,000 nodes: 0.2 s on the machine where this was written."""
    for component in "abc":
        nodes, stored, last = [], [], "x"
        for i in range(5000):
            nodes.append(helper.make_node("Add", [last, f"w{i}"], [f"v{i}"], f"layer/{i}/Add"))
            stored.append(weight(f"w{i}", location="w.bin", offset=str(16 * i), length="16"))
            last = f"v{i}"
        ports = [[helper.make_tensor_value_info(n, T.FLOAT, [4])] for n in ("x", last)]
        model = helper.make_model(
            helper.make_graph(nodes, "g", *ports, stored),
            opset_imports=[helper.make_opsetid("", 21)],
            ir_version=10,
        )
        (tmp_path / component).mkdir()
        (tmp_path / component / "m.onnx").write_bytes(model.SerializeToString())
        with open(tmp_path / component / "w.bin", "wb") as f:
            f.truncate(16 * 5000)
    started = time.perf_counter()
    got = open_checkpoint(str(tmp_path))
    assert time.perf_counter() - started < 3
    assert got.problems == [] and len(got.tensors) == 15_000
