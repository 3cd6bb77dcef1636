"""graph.parse: each rule on a tiny model that breaks nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ntool.lib.checkpoint.onnx_operators import NEWEST
from ntool.lib.checkpoint.onnx_types import bits
from ntool.lib.package.checks.parse import read_model

T = TensorProto


def tiny() -> ModelProto:
    """y = Relu(x + w), with a condition on top: If(c) Neg(y) else Abs(y)."""
    x = helper.make_tensor_value_info("x", T.FLOAT, [2])
    c = helper.make_tensor_value_info("c", T.BOOL, [])
    z = helper.make_tensor_value_info("z", T.FLOAT, [2])
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["y"], [op], op)],
            name,
            [],
            [helper.make_tensor_value_info(op, T.FLOAT, [2])],
        )
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    nodes = [
        helper.make_node("Add", ["x", "w"], ["s"], "add"),
        helper.make_node("Relu", ["s"], ["y"], "relu"),
        helper.make_node("If", ["c"], ["z"], "if", **branches),
    ]
    w = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x, c], [z], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def weight(m: ModelProto) -> TensorProto:
    return m.graph.initializer[0]


def branch(m: ModelProto) -> onnx.GraphProto:
    return m.graph.node[2].attribute[0].g


def negative(m: ModelProto) -> None:
    weight(m).dims[0] = -2


def overflow(m: ModelProto) -> None:
    weight(m).dims[:] = [2**32, 2**32]


def unknown_type(m: ModelProto) -> None:
    weight(m).data_type = 99


def undefined_type(m: ModelProto) -> None:
    weight(m).data_type = T.UNDEFINED


def raw_size(m: ModelProto) -> None:
    weight(m).raw_data += b"\0"


def typed_size(m: ModelProto) -> None:
    weight(m).CopyFrom(T(name="w", data_type=T.FLOAT, dims=[2], float_data=[1.0]))


def typed_field(m: ModelProto) -> None:
    weight(m).CopyFrom(T(name="w", data_type=T.FLOAT, dims=[2], int64_data=[1, 2]))


def two_fields(m: ModelProto) -> None:
    weight(m).float_data.extend([1, 2])


def external_without_location(m: ModelProto) -> None:
    weight(m).CopyFrom(T(name="w", data_type=T.FLOAT, dims=[2], data_location=T.EXTERNAL))
    weight(m).external_data.add(key="offset", value="0")


def external_key(m: ModelProto) -> None:
    external_without_location(m)
    weight(m).external_data.add(key="location", value="w.bin")
    weight(m).external_data.add(key="__class__", value="x")


def external_key_twice(m: ModelProto) -> None:
    external_without_location(m)
    weight(m).external_data.add(key="location", value="w.bin")
    weight(m).external_data.add(key="location", value="v.bin")


def external_and_inline(m: ModelProto) -> None:
    weight(m).data_location = T.EXTERNAL
    weight(m).external_data.add(key="location", value="w.bin")


def in_a_constant(m: ModelProto) -> None:
    value = numpy_helper.from_array(np.zeros(2, np.float32))
    value.raw_data = value.raw_data[:-1]
    m.graph.node.insert(0, helper.make_node("Constant", [], ["k"], "k", value=value))


def in_a_branch(m: ModelProto) -> None:
    bad = numpy_helper.from_array(np.zeros(2, np.float32), "inner")
    bad.raw_data = b""
    branch(m).initializer.append(bad)


def in_a_function(m: ModelProto) -> None:
    value = numpy_helper.from_array(np.zeros(2, np.float32))
    value.dims[0] = -1
    body = [helper.make_node("Constant", [], ["k"], value=value)]
    own = helper.make_function("own", "F", [], ["k"], body, [helper.make_opsetid("", 21)])
    m.functions.append(own)


def sparse(m: ModelProto) -> None:
    s = m.graph.sparse_initializer.add()
    s.values.CopyFrom(numpy_helper.from_array(np.zeros(2, np.float32), "sparse"))
    s.indices.CopyFrom(numpy_helper.from_array(np.zeros(2, np.int64)))
    s.indices.raw_data = b"123"
    s.dims[:] = [9]


def training(m: ModelProto) -> None:
    m.training_info.add().initialization.initializer.add(name="t", data_type=77)


def ir_version(m: ModelProto) -> None:
    m.ir_version = onnx.IR_VERSION + 1


def opset(m: ModelProto) -> None:
    m.opset_import[0].version = 999


def opset_twice(m: ModelProto) -> None:
    m.opset_import.append(helper.make_opsetid("ai.onnx", 20))


def no_opset(m: ModelProto) -> None:
    del m.opset_import[:]


def initializer_twice(m: ModelProto) -> None:
    m.graph.initializer.append(weight(m))


def value_twice(m: ModelProto) -> None:
    m.graph.node[1].output[0] = "s"
    m.graph.node[1].input[0] = "x"


def value_of_the_outer_graph_again(m: ModelProto) -> None:
    branch(m).node[0].output[0] = "s"
    branch(m).output[0].name = "s"


def unsorted(m: ModelProto) -> None:
    first, second = m.graph.node[1], m.graph.node[0]
    nodes = [onnx.NodeProto(), onnx.NodeProto(), m.graph.node[2]]
    nodes[0].CopyFrom(first)
    nodes[1].CopyFrom(second)
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del m.graph.node[:]
    m.graph.node.extend(kept)


def cycle(m: ModelProto) -> None:
    m.graph.node[0].input[1] = "y"


def unsorted_in_a_branch(m: ModelProto) -> None:
    branch(m).node[0].input[0] = "later"
    branch(m).node.append(helper.make_node("Neg", ["y"], ["later"], "later"))


def made_by_nobody(m: ModelProto) -> None:
    m.graph.node[1].input[0] = "ghost"


def output_made_by_nobody(m: ModelProto) -> None:
    m.graph.output[0].name = "ghost"


def unknown_operator(m: ModelProto) -> None:
    m.graph.node[1].op_type = "Frobnicate"


def unknown_operator_in_a_branch(m: ModelProto) -> None:
    branch(m).node[0].op_type = "Frobnicate"


def domain_not_imported(m: ModelProto) -> None:
    m.graph.node[1].domain = "com.example"


def recursion(m: ModelProto) -> None:
    imports = [helper.make_opsetid("own", 1)]
    m.opset_import.append(imports[0])
    for name, other in (("F", "G"), ("G", "F")):
        body = [helper.make_node(other, ["a"], ["b"], domain="own")]
        m.functions.append(helper.make_function("own", name, ["a"], ["b"], body, imports))


def value_info_type(m: ModelProto) -> None:
    m.graph.input[0].type.tensor_type.elem_type = 99


def value_info_dim(m: ModelProto) -> None:
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1


RULES: list[tuple[Callable[[ModelProto], None], str, str]] = [
    (negative, "negative-dim", "initializer 'w'"),
    (overflow, "overflow", "initializer 'w'"),
    (unknown_type, "element-type", "initializer 'w'"),
    (undefined_type, "element-type", "initializer 'w'"),
    (raw_size, "raw-size", "initializer 'w'"),
    (typed_size, "data-size", "initializer 'w'"),
    (typed_field, "storage", "int64_data"),
    (two_fields, "storage", "initializer 'w'"),
    (external_without_location, "no-location", "initializer 'w'"),
    (external_key, "external-key", "__class__"),
    (external_key_twice, "duplicate-key", "'location' twice"),
    (external_and_inline, "storage", "inside the graph too"),
    (in_a_constant, "raw-size", "node k (Constant).value"),
    (in_a_branch, "raw-size", "initializer 'inner'"),
    (in_a_function, "negative-dim", "function own::F"),
    (sparse, "raw-size", "sparse initializer 'sparse'.indices"),
    (training, "element-type", "training_info[0].initialization"),
    (ir_version, "ir-version", str(onnx.IR_VERSION + 1)),
    (opset, "opset", f"999, newest known {NEWEST['']}"),
    (opset_twice, "opset", "twice"),
    (no_opset, "opset", "no opset import"),
    (initializer_twice, "duplicate-name", "initializer 'w' twice"),
    (value_twice, "duplicate-name", "node relu (Relu): makes 's'"),
    (value_of_the_outer_graph_again, "duplicate-name", "makes 's'"),
    (unsorted, "not-sorted", "node relu (Relu): input 's' is made later, by node add (Add)"),
    (cycle, "not-sorted", "node add (Add): input 'y'"),
    (unsorted_in_a_branch, "not-sorted", "input 'later'"),
    (made_by_nobody, "undefined-value", "input 'ghost'"),
    (output_made_by_nobody, "undefined-value", "output 'ghost'"),
    (unknown_operator, "unknown-operator", "Frobnicate"),
    (unknown_operator_in_a_branch, "unknown-operator", "Frobnicate"),
    (domain_not_imported, "unknown-domain", "com.example"),
    (recursion, "recursion", "calls itself"),
    (value_info_type, "element-type", "value 'x'"),
    (value_info_dim, "negative-dim", "value 'x'"),
]


def read(tmp_path: Path, raw: bytes) -> tuple[ModelProto | None, list[str | None], str]:
    path = tmp_path / "m.onnx"
    path.write_bytes(raw)
    reading = read_model(str(path), "m.onnx")
    findings = reading.findings
    assert all(f.ok is False and f.message.startswith("m.onnx: ") for f in findings)
    return reading.model, [f.reason for f in findings], "\n".join(f.message for f in findings)


def test_the_tiny_model_is_sound(tmp_path: Path) -> None:
    model, reasons, _ = read(tmp_path, tiny().SerializeToString())
    assert model is not None and reasons == []
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize(
    ("change", "reason", "words"), RULES, ids=lambda v: getattr(v, "__name__", "")
)
def test_rule(
    change: Callable[[ModelProto], None], reason: str, words: str, tmp_path: Path
) -> None:
    model = tiny()
    change(model)
    _, reasons, text = read(tmp_path, model.SerializeToString())
    assert set(reasons) >= {reason}
    assert words in text
    others = set(reasons) - {reason}
    # a node that breaks leaves what it makes undefined, and no import means no known domain
    assert others <= {"undefined-value", "unknown-domain", "unknown-operator"}, text


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "not-onnx"),
        (b"<!DOCTYPE html><html></html>", "not-onnx"),
        (b"PK\x03\x04" + bytes(60), "not-onnx"),
        (b"\x08\x0a", "no-graph"),
        (tiny().SerializeToString()[:-3], "malformed"),
        (b"\xff" * 40, "malformed"),
    ],
)
def test_not_a_model(raw: bytes, reason: str, tmp_path: Path) -> None:
    _, reasons, _ = read(tmp_path, raw)
    assert reasons == [reason]


def test_deep_nesting_is_refused_without_recursion_error(tmp_path: Path) -> None:
    graph = helper.make_graph([], "leaf", [], [])
    raw = graph.SerializeToString()

    def field(number: int, payload: bytes) -> bytes:
        n, size = len(payload), b""
        while True:
            size += bytes([n & 127 | (128 if n > 127 else 0)])
            n >>= 7
            if not n:
                return bytes([number << 3 | 2]) + size + payload

    for _ in range(200):  # graph.node.attribute.g
        raw = field(1, field(5, field(6, raw)))
    _, reasons, _ = read(tmp_path, b"\x08\x0a" + field(7, raw))
    assert reasons == ["malformed"]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    raw = tiny().SerializeToString().replace(b"relu", b"re\xff\xfe")
    _, reasons, _ = read(tmp_path, raw)
    assert reasons == ["not-utf-8"]


def test_sparse_file_larger_than_protobuf_allows(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with open(path, "wb") as f:
        f.write(b"\x08\x0a\x12\x00")
        f.truncate(2**31)
    assert [f.reason for f in read_model(str(path), "m.onnx").findings] == ["too-large"]


def test_many_faults_are_counted_not_listed(tmp_path: Path) -> None:
    model = tiny()
    for i in range(50):
        model.graph.initializer.append(T(name=f"w{i}", data_type=99, dims=[1]))
    _, reasons, text = read(tmp_path, model.SerializeToString())
    assert len(reasons) == 21 and "and 30 more" in text


def test_sizes_of_all_element_types() -> None:
    """Against the widths that onnx's own tables give."""
    for name, code in T.DataType.items():
        if code in (T.UNDEFINED, T.STRING):
            assert bits(code) is None
            continue
        dtype = helper.tensor_dtype_to_np_dtype(code)
        packed = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
        packed |= {"FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
        assert bits(code) == packed.get(name, dtype.itemsize * 8), name
