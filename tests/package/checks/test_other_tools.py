"""Folders of graphs that other tools wrote: what applies is checked, and nothing is a false alarm.

Layouts as optimum, onnxruntime-genai and mobius write them, made with the onnx package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from package_faults import false_ids, findings
from safetensors.numpy import save_file

from ntool.lib.package import sums
from ntool.lib.package.checks import graph
from ntool.lib.package.checks.subject import Finding, Subject

FLOAT, FLOAT16, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8
RNG = np.random.default_rng(7)
MANIFEST_ONLY = {
    "layout.schema", "graph.names", "weights.complete", "dtype.policy", "flow.ports",
    "flow.tokens", "run.dynamic", "run.finite", "golden.values",
}  # fmt: skip
Weights = dict[str, np.ndarray]


def matrix(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def save(
    path: Path, nodes: list[onnx.NodeProto], weights: Weights, data: str, *, at: int = 0,
    kind: int = FLOAT, sizes: tuple[int, int] = (64, 32), more: Weights | None = None,
) -> int:  # fmt: skip
    """A graph from `x` to `y` whose weights are in the file `data` from byte `at` on; returns where
    they end."""
    stored = [numpy_helper.from_array(v, k) for k, v in (more or {}).items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / data, "r+b" if at else "wb") as f:
        for name, array in weights.items():
            tensor = numpy_helper.from_array(array, name)
            raw = tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data), ("offset", at), ("length", len(raw))):
                tensor.external_data.add(key=key, value=str(value))
            stored.append(tensor)
            f.seek(at)
            f.write(raw)
            at += len(raw)
    ports = [
        helper.make_tensor_value_info(name, kind, ["batch", size])
        for name, size in zip("xy", sizes, strict=True)
    ]
    made = helper.make_graph(nodes, "main_graph", ports[:1], ports[1:], stored)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path.write_bytes(
        helper.make_model(made, opset_imports=imports, ir_version=10).SerializeToString()
    )
    return at


def linear(name: str) -> list[onnx.NodeProto]:
    return [helper.make_node("MatMul", ["x", name], ["y"], "/linear/MatMul")]


def optimum(root: Path) -> None:
    """Encoder and decoders side by side in a subfolder, `NAME.onnx_data` each."""
    for name in ("encoder_model", "decoder_model", "decoder_with_past_model"):
        weight = f"onnx::MatMul_{len(name)}"
        save(root / "onnx" / f"{name}.onnx", linear(weight), {weight: matrix(64, 32)},
             f"{name}.onnx_data")  # fmt: skip
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "ort_config.json"):
        (root / name).write_text("{}")
    (root / "spiece.model").write_bytes(b"\x0a\x05\x0a\x01a")


def genai(root: Path) -> None:
    """A decoder of contrib operators: int4 weights, float16, and the runtime's own norm, whose
    results have no type in the graph."""
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "norm"], ["n"], "/norm", axis=-1),
        helper.make_node(
            "MatMulNBits", ["n", "q", "scales"], ["m"], "/proj", domain="com.microsoft",
            K=64, N=32, bits=4, block_size=32,
        ),
        helper.make_node("Mul", ["m", "m"], ["y"], "/square"),
    ]  # fmt: skip
    weights = {
        "norm": matrix(64, dtype=np.float16),
        "q": RNG.integers(0, 255, (32, 2, 16)).astype(np.uint8),
        "scales": matrix(64, dtype=np.float16),
    }
    save(root / "model.onnx", nodes, weights, "model.onnx.data", kind=FLOAT16)
    model = {"decoder": {"filename": "model.onnx", "head_size": 8}, "type": "llama"}
    (root / "genai_config.json").write_text(json.dumps({"model": model, "search": {}}))
    for name in ("tokenizer.json", "special_tokens_map.json", "chat_template.jinja"):
        (root / name).write_text("{}")


def mobius(root: Path) -> None:
    """A folder a component, nested."""
    for name in ("text/decoder", "vision/encoder", "embedding"):
        save(root / name / "model.onnx", linear("proj.weight"), {"proj.weight": matrix(64, 32)},
             "model.onnx.data")  # fmt: skip


def common(root: Path) -> None:
    """Two graphs that share a weight and a data file; each has bytes of its own there too."""
    shared = matrix(64, 32)
    end = save(root / "prompt.onnx", linear("w"), {"w": shared}, "weights.bin")
    end = save(root / "next.onnx", linear("v"), {"v": matrix(64, 32)}, "weights.bin", at=end)
    save(root / "last.onnx", [helper.make_node("MatMul", ["x", "w"], ["s"]),
                              helper.make_node("Add", ["s", "b"], ["y"])],
         {"b": matrix(32)}, "weights.bin", at=end, more={"w": shared})  # fmt: skip
    model = onnx.load(root / "last.onnx", load_external_data=False)
    weight = next(t for t in model.graph.initializer if t.name == "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "8192")):
        weight.external_data.add(key=key, value=value)
    (root / "last.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("make", [optimum, genai, mobius, common])
def test_no_false_alarm(make: Any, tmp_path: Path) -> None:
    make(tmp_path)
    found = findings(tmp_path)
    assert false_ids(found) == []
    idle = {i for i, f in found if f.ok is None}
    optional = {"layout.files", "graph.standard", "data.hash", "weights.values", "run.placement"}
    assert idle >= MANIFEST_ONLY and idle <= MANIFEST_ONLY | optional
    assert all(f.message for _, f in found)
    held = {i for i, f in found if f.ok}
    assert held >= {"graph.types", "data.bounds", "data.orphans", "weights.sane", "run.load"}
    warned = {(i, f.reason) for i, f in found if f.warning}
    assert warned == ({("graph.checker", "runtime-operator")} if make is genai else set())


def test_one_graph_of_several_that_share_their_data(tmp_path: Path) -> None:
    common(tmp_path)
    for name in ("prompt", "next", "last"):
        found = findings(tmp_path / f"{name}.onnx")
        assert false_ids(found) == [] and not any(f.warning for _, f in found)
        assert {f.component for i, f in found if i == "data.orphans"} == {f"{name}.onnx"}
    with open(tmp_path / "weights.bin", "ab") as f:
        f.write(b"of no graph")
    found = findings(tmp_path / "next.onnx")
    assert [(i, f.actual) for i, f in found if f.warning] == [("data.orphans", 11)]


def only(found: list[tuple[str, Finding]], check: str) -> Finding:
    (finding,) = [f for i, f in found if i == check and f.ok is False]
    return finding


def test_standard_only_refuses_operators_of_the_runtime(tmp_path: Path) -> None:
    genai(tmp_path)
    found = findings(tmp_path, standard_only=True)
    assert false_ids(found) == ["graph.standard"]
    text = " ".join(f.message for i, f in found if f.ok is False)
    assert "com.microsoft::MatMulNBits" in text and "SimplifiedLayerNormalization" in text


def test_a_value_that_should_have_a_type(tmp_path: Path) -> None:
    """Only what follows an operator that onnx does not know is excused."""
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["lost"]),
        node("FastGelu", ["x"], ["fast"], domain="com.microsoft"),
        node("Relu", ["fast"], ["after"]),
        *linear("w"),
    ]
    path = tmp_path / "m.onnx"
    save(path, nodes, {"w": matrix(64, 32)}, "m.data")
    ((_, finding),) = findings(path, check=("graph.types",))
    assert finding.ok and "2 values have no type" in finding.message
    subject = Subject(str(path))
    (part,) = subject.parts
    part.__dict__["_inferred"] = part.model  # as if nothing had been inferred
    (finding,) = graph.types(subject, part)
    assert finding.ok is False and "'lost' has no type" in finding.message


@pytest.mark.parametrize("name", ["absent.onnx", "../model.onnx", "/etc/hostname"])
def test_a_file_that_the_configuration_names(name: str, tmp_path: Path) -> None:
    genai(tmp_path)
    path = tmp_path / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["vision"] = {"pipeline": [{"v": {"filename": name}}]}
    path.write_text(json.dumps(config))
    finding = only(findings(tmp_path, check=("layout.*",)), "layout.files")
    assert name in finding.message and finding.reason == "missing"
    path.write_text("{")
    finding = only(findings(tmp_path, check=("layout.*",)), "layout.files")
    assert finding.reason == "genai-config"


def test_faults_are_found_there_too(tmp_path: Path) -> None:
    optimum(tmp_path)
    data = tmp_path / "onnx" / "decoder_model.onnx_data"
    data.write_bytes(data.read_bytes()[:-4])
    found = findings(tmp_path)
    assert false_ids(found) == ["data.bounds"]
    assert only(found, "data.bounds").component == "onnx/decoder_model.onnx"


def test_odd_numbers_are_a_warning(tmp_path: Path) -> None:
    """A mask of infinities is an honest tensor of many exports."""
    mask = np.full((64, 32), -np.inf, np.float32)
    save(tmp_path / "m.onnx", linear("mask"), {"mask": mask}, "m.onnx.data")
    found = findings(tmp_path)
    assert false_ids(found) == []
    assert [(i, f.reason) for i, f in found if f.warning] == [("weights.sane", "not-finite")]


def test_sums(tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    mobius(root)
    sums.write(str(root))
    kept = (root / sums.NAME).rename(tmp_path / "list")
    assert [f.ok for i, f in findings(root, manifest=str(kept)) if i == "data.hash"] == [True]
    (root / "embedding" / "model.onnx.data").write_bytes(bytes(64 * 32 * 4))
    found = findings(root, manifest=str(kept))
    assert "embedding/model.onnx.data" in only(found, "data.hash").message


def test_against_a_checkpoint(tmp_path: Path) -> None:
    """By name, with the rule of conversion; weights of other names are counted."""
    root, source = tmp_path / "pkg", tmp_path / "source"
    weight, bias = matrix(64, 32, dtype=np.float16), matrix(32)
    nodes = [
        helper.make_node("MatMul", ["x", "a.weight"], ["s"]),
        helper.make_node("Add", ["s", "fused.bias"], ["y"]),
    ]
    stored = {"a.weight": weight.astype(np.float32), "fused.bias": bias}
    save(root / "m.onnx", nodes, stored, "m.onnx.data")
    source.mkdir()
    (source / "config.json").write_text("{}")
    save_file({"a.weight": weight, "b.weight": weight}, source / "model.safetensors")

    def compared() -> Finding:
        found = findings(root, check=("weights.values",), against=str(source))
        return next(f for i, f in found if i == "weights.values")

    assert (compared().ok, compared().actual) == (True, 64 * 32 * 4)
    assert "1 weights of other names were not compared" in compared().message
    data = root / "m.onnx.data"
    raw = bytearray(data.read_bytes())
    raw[40] ^= 1
    data.write_bytes(raw)
    assert compared().ok is False and "flat index 10" in compared().message
    save_file({"b.weight": weight}, source / "model.safetensors")
    assert compared().ok is None and "no weight has the name" in compared().message
