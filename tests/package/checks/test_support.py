"""run.support names every kind of node without a kernel; run.placement counts nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from package_faults import edit_graph, false_ids, findings, insert

from ntool.lib.package.checks import kernels, run
from ntool.lib.package.checks.subject import Finding, Part, Subject
from ntool.lib.runtime import session
from ntool.lib.runtime.session import Session, Settings

FLOAT, BFLOAT16, BOOL = TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.BOOL
CPU = ("cpu", 0)


def value(name: str, kind: int = BFLOAT16, shape: tuple[str | int, ...] = ("n",)) -> object:
    return helper.make_tensor_value_info(name, kind, list(shape))


def written(path: Path, nodes: list[onnx.NodeProto], *, functions: tuple[object, ...] = (),
            tensors: tuple[onnx.TensorProto, ...] = (), result: object = None) -> Path:  # fmt: skip
    """A model that reads `x` of bfloat16 [n] and a flag `c`."""
    graph = helper.make_graph(
        nodes, "g", [value("x"), value("c", BOOL, ())], [result or value("y")], tensors
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", 20), ("own", 1), ("com.vendor", 1))]
    model = helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def asked(path: Path) -> list[Finding]:
    (part,) = Subject(str(path)).parts
    return kernels.support(part, CPU)


def test_all_kinds_wherever_they_stand(tmp_path: Path) -> None:
    """In the main graph, a branch and a function; each once, with the first node and the count."""
    node = helper.make_node
    then = helper.make_graph([node("Sub", ["x", "x"], ["t"], "inner")], "t", [], [value("t")])
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "e", [], [value("e")])
    soft = helper.make_function("own", "Soft", ["a"], ["b"], [node("Mul", ["a", "a"], ["b"])],
                                [helper.make_opsetid("", 20)])  # fmt: skip
    path = written(
        tmp_path / "m.onnx",
        [
            node("Add", ["x", "x"], ["a"], "first sum"),
            node("Add", ["a", "x"], ["b"], "second sum"),
            node("If", ["c"], ["i"], "choice", then_branch=then, else_branch=other),
            node("Soft", ["b"], ["s"], domain="own"),
            node("Cast", ["s"], ["f"], to=FLOAT),
            node("Add", ["f", "f"], ["f2"]),
            node("Cast", ["f2"], ["g"], to=BFLOAT16),
            node("Max", ["g", "i"], ["y"]),
        ],
        functions=(soft,),
    )
    found = asked(path)
    assert {f.actual for f in found} == {
        f"{op}(bfloat16, bfloat16)" for op in ("Add", "Sub", "Mul", "Max")
    }
    assert all(f.ok is False and f.reason == "no-kernel" for f in found)
    assert found[0].message == (
        "m.onnx: no kernel for Add(bfloat16, bfloat16): 2 nodes, the first: node first sum (Add)"
    )
    (inner,) = [f for f in found if str(f.actual).startswith("Sub")]
    assert "node choice (If).then_branch: node inner (Sub)" in inner.message


def test_operators_that_nobody_knows(tmp_path: Path) -> None:
    """Also where their types cannot be known; what they feed is not guessed at."""
    nodes = [
        helper.make_node("Twist", ["x"], ["a"], "t", domain="com.vendor"),
        helper.make_node("Add", ["a", "a"], ["y"]),
        helper.make_node("Sub", ["x", "x"], ["z"]),
    ]
    found = asked(written(tmp_path / "m.onnx", nodes))
    assert {(f.actual, f.reason) for f in found} == {
        ("com.vendor::Twist(bfloat16)", "unknown-operator"),
        ("Sub(bfloat16, bfloat16)", "no-kernel"),
    }
    assert all("1 nodes of unknown types were not looked at" in f.message for f in found)


def test_no_weights_are_read(tmp_path: Path) -> None:
    """The data file is not even there."""
    weight = numpy_helper.from_array(np.zeros((8, 8), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="absent.bin")
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
        helper.make_node("Unsqueeze", ["f", "axis"], ["g"]),
        helper.make_node("Expand", ["g", "shape"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    small = (
        numpy_helper.from_array(np.array([1]), "axis"),
        numpy_helper.from_array(np.array([1, 8]), "shape"),
    )
    path = written(
        tmp_path / "m.onnx", nodes, tensors=(weight, *small), result=value("y", FLOAT, ("n", 8))
    )
    assert [(f.ok, f.actual) for f in asked(path)] == [(True, 4)]
    found = findings(path, check=("run.support", "run.load"))
    assert {i: f.ok for i, f in found if i.startswith("run")} == {
        "run.load": None, "run.support": True
    }  # fmt: skip


def test_every_component_of_a_package(good_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is made from a file."""
    loaded: list[object] = []
    make = session.Session.__init__

    def note(self: Session, model: object, *more: object, **options: object) -> None:
        loaded.append(model)
        make(self, model, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(session.Session, "__init__", note)
    found = findings(good_package, check=("run.support",))
    assert len(found) == 5 and all(f.ok for _, f in found)
    assert len(loaded) == 5
    assert all(isinstance(m, bytes) and len(m) < 1 << 20 for m in loaded)


def test_load_and_support_agree(package: Path) -> None:
    with edit_graph(package, "vision_encoder") as m:
        chain = [("Cast", {"to": BFLOAT16}), ("Neg", {}), ("Abs", {}), ("Cast", {"to": FLOAT})]
        insert(m, "pixel_values", *chain)
    found = findings(package, check=("run.load", "run.support"))
    assert false_ids(found) == ["run.load", "run.support"]
    kinds = [f.actual for i, f in found if i == "run.support" and f.ok is False]
    (first,) = [f.message for i, f in found if i == "run.load" and f.ok is False]
    assert kinds[0] in ("Neg(bfloat16)", "Abs(bfloat16)") and "no kernel for Neg" in first
    expected = {"Neg(bfloat16)", "Abs(bfloat16)"}
    assert set(kinds) == expected - _here(expected)


def _here(kinds: set[str]) -> set[str]:
    """Those that this ONNX Runtime has a kernel for, asked one at a time."""
    import onnxruntime as ort

    found = set()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for kind in kinds:
        node = helper.make_node(kind.split("(")[0], ["x"], ["y"])
        graph = helper.make_graph([node], "g", [value("x")], [value("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        try:
            ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as e:  # onnxruntime raises pybind classes of no common base
            assert type(e).__name__ == "NotImplemented"
        else:
            found.add(kind)
    return found


# -- placement -------------------------------------------------------------------------------------


def test_a_session_says_where_nodes_run(good_package: Path) -> None:
    loaded = Session(good_package / "embedding" / "model.onnx", Settings(placed=True))
    found = loaded.placement()
    assert found is not None and set(found) == {"CPUExecutionProvider"}
    assert found["CPUExecutionProvider"]["Gather"] == 1
    assert Session(good_package / "embedding" / "model.onnx").placement() is None


def test_what_placement_says() -> None:
    part = Part("decoder", "decoder/model.onnx", None, "")
    gpu, cpu = "CUDAExecutionProvider", "CPUExecutionProvider"
    shared = run.placed(part, {gpu: Counter(MatMul=6), cpu: Counter(Shape=1, Gather=1)}, gpu)
    assert (shared.ok, shared.actual, shared.component) == (True, 0.75, "decoder")
    assert "6 of 8 nodes" in shared.message and "Shape 1" in shared.message
    none = run.placed(part, {cpu: Counter(MatMul=6)}, gpu)
    assert (none.ok, none.actual, none.reason) == (False, 0.0, "not-placed")
    assert run.placed(part, None, gpu).ok is None


def test_placement_does_not_apply_to_a_cpu(good_package: Path) -> None:
    ((_, finding),) = findings(good_package, check=("run.placement",))
    assert finding.ok is None and "CPU" in finding.message
