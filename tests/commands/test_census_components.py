"""Components of packages and folders of graphs: tensors of one name are kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ntool.lib import comparison, inspection, judgement
from ntool.lib.census import Counted
from ntool.lib.checkpoint.tensor import Tensor

from ..checkpoint.header_files import shard

T = TensorProto


def graph(path: Path, size: int, name: str = "w") -> None:
    """A graph that stores one tensor of `size` numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = (helper.make_tensor_value_info(n, T.FLOAT, None) for n in "xy")
    w = numpy_helper.from_array(np.zeros(size, np.float32), name)
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y], [w])
    opset = [helper.make_opsetid("", 21)]
    path.write_bytes(
        helper.make_model(body, opset_imports=opset, ir_version=10).SerializeToString()
    )


def found(ours: Path, theirs: Path) -> list[tuple[str, str | None, str]]:
    left, right = (inspection.read(str(p)).tensors for p in (ours, theirs))
    return [(p.code, p.name, p.message) for p in comparison.differences(left, right, "B")]


def test_a_tensor_that_differs_in_one_component(tmp_path: Path) -> None:
    for side, size in (("A", 2), ("B", 3)):
        graph(tmp_path / side / "dec" / "model.onnx", size)
        graph(tmp_path / side / "enc" / "model.onnx", 2)
    a, b = tmp_path / "A", tmp_path / "B"
    assert [(c, n) for c, n, _ in found(a, b)] == [("tensor-reshaped", "w")]
    assert found(a, a) == []


def test_a_component_that_is_not_there(tmp_path: Path) -> None:
    for path in ("A/dec", "A/enc", "C/enc"):
        graph(tmp_path / path / "model.onnx", 2)
    a, c = tmp_path / "A", tmp_path / "C"
    assert [(x, n) for x, n, _ in found(a, c)] == [("tensor-added", "w")]
    [(code, name, message)] = found(c, a)
    assert (code, name) == ("tensor-removed", "w") and "component 'dec'" in message


def test_names_alone_where_one_side_has_no_components(tmp_path: Path) -> None:
    graph(tmp_path / "A" / "dec" / "model.onnx", 2)
    graph(tmp_path / "A" / "enc" / "model.onnx", 3)
    plain = shard(tmp_path / "plain.safetensors", "w", shape=(2,))
    assert [c for c, _, _ in found(tmp_path / "A", plain)] == ["tensor-reshaped"]
    assert [c for c, _, _ in found(plain, tmp_path / "A")] == ["tensor-reshaped"]
    graph(tmp_path / "one.onnx", 2)
    graph(tmp_path / "two.onnx", 2)
    assert found(tmp_path / "one.onnx", tmp_path / "two.onnx") == []


def judged(tensors: list[Any], config: dict[str, Any] | None = None) -> tuple[Any, list[str]]:
    counted = Counted(tensors=tensors, config=config or {})
    facts = judgement.judge(counted)
    return facts, [p.code for p in counted.problems]


def package(root: Path, **components: dict[str, Any]) -> Path:
    root.mkdir()
    (root / "package.json").write_text("{}")
    for component, files in components.items():
        (root / component).mkdir()
        for i, (names, options) in enumerate(files.items()):
            shard(root / component / f"{i}.safetensors", *names.split(), **options)
    return root


@pytest.mark.parametrize("home, wrong", [("one", []), ("two", ["missing-scale", "orphan-scale"])])
def test_a_scale_is_not_that_of_another_component(home: str, wrong: list[str]) -> None:
    weight = Tensor("a.weight", "F8_E4M3", (2, 2), "one/m.safetensors", 0, 4, "one")
    scale = Tensor("a.weight_scale", "F32", (), f"{home}/m.safetensors", 4, 4, home)
    facts, codes = judged([weight, scale])
    assert sorted(codes) == wrong
    assert facts["quantization"]["pairs"] == (0 if wrong else 1)


@pytest.mark.parametrize("names", ["layers.0.experts", "experts"])
def test_experts_of_components_are_apart(names: str, tmp_path: Path) -> None:
    rows = {
        c: [f"{names}.{i}.{p}_proj.weight" for i in e for p in ("gate", "up", "down")]
        for c, e in (("one", (0,)), ("two", (0, 1)))
    }
    files = {c: {" ".join(n): {"shape": (4, 4)}} for c, n in rows.items()}
    read = inspection.read(str(package(tmp_path / "p", **files)))
    facts, codes = judged(read.tensors)
    assert facts["expert_layout"]["groups"] == 2 and facts["expert_layout"]["E"] == [1, 2]
    assert codes == []


def test_a_graph_says_by_its_nodes_which_scale_is_whose(tmp_path: Path) -> None:
    """FP8 by DequantizeLinear, the scale under a name of its own: sound."""
    codes = helper.make_tensor("experts.0.up_proj.weight", T.FLOAT8E4M3FN, [2, 2], bytes(4), True)
    scale = helper.make_tensor("s", T.FLOAT, [], [0.5])
    y = helper.make_tensor_value_info("y", T.FLOAT, [2, 2])
    node = helper.make_node("DequantizeLinear", [codes.name, "s"], ["y"])
    body = helper.make_graph([node], "g", [], [y], [codes, scale])
    opset = [helper.make_opsetid("", 21)]
    model: ModelProto = helper.make_model(body, opset_imports=opset, ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    config = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["x"]}}
    for source in (tmp_path, tmp_path / "model.onnx"):
        read = inspection.read(str(source))
        assert [p for p in read.problems if p.severity == "error"] == []
        facts, found = judged(read.tensors, config)
        assert facts["quantization"] is None
        assert "missing-scale" not in found and "skip-unresolved" not in found
