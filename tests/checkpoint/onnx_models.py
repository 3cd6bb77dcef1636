"""A tiny ONNX model, and one way to break each rule of graphs; all parsers have to see it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ntool.lib.checkpoint.onnx_operators import NEWEST

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


def first(m: ModelProto) -> TensorProto:
    return m.graph.initializer[0]


def branch(m: ModelProto) -> onnx.GraphProto:
    return m.graph.node[2].attribute[0].g


def negative(m: ModelProto) -> None:
    first(m).dims[0] = -2


def overflow(m: ModelProto) -> None:
    first(m).dims[:] = [2**32, 2**32]


def unknown_type(m: ModelProto) -> None:
    first(m).data_type = 99


def undefined_type(m: ModelProto) -> None:
    first(m).data_type = T.UNDEFINED


def raw_size(m: ModelProto) -> None:
    first(m).raw_data += b"\0"


def typed_size(m: ModelProto) -> None:
    first(m).CopyFrom(T(name="w", data_type=T.FLOAT, dims=[2], float_data=[1.0]))


def typed_field(m: ModelProto) -> None:
    first(m).CopyFrom(T(name="w", data_type=T.FLOAT, dims=[2], int64_data=[1, 2]))


def two_fields(m: ModelProto) -> None:
    first(m).float_data.extend([1, 2])


def external_without_location(m: ModelProto) -> None:
    first(m).CopyFrom(T(name="w", data_type=T.FLOAT, dims=[2], data_location=T.EXTERNAL))
    first(m).external_data.add(key="offset", value="0")


def external_key(m: ModelProto) -> None:
    external_without_location(m)
    first(m).external_data.add(key="location", value="w.bin")
    first(m).external_data.add(key="__class__", value="x")


def external_key_twice(m: ModelProto) -> None:
    external_without_location(m)
    first(m).external_data.add(key="location", value="w.bin")
    first(m).external_data.add(key="location", value="v.bin")


def external_and_inline(m: ModelProto) -> None:
    first(m).data_location = T.EXTERNAL
    first(m).external_data.add(key="location", value="w.bin")


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
    m.graph.initializer.append(first(m))


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


def adding(*weights: TensorProto, where: str = "initializer") -> ModelProto:
    """y = x + all weights; with the weights as initializers, constants, or in a branch."""
    x = helper.make_tensor_value_info("x", T.FLOAT, [4])
    nodes, last = [], "x"
    for w in weights:
        if where == "constant":
            nodes.append(helper.make_node("Constant", [], [w.name], f"make {w.name}", value=w))
        nodes.append(helper.make_node("Add", [last, w.name], [f"{w.name}+"], f"add {w.name}"))
        last = f"{w.name}+"
    y = helper.make_tensor_value_info(last, T.FLOAT, [4])
    stored = list(weights) if where != "constant" else []
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    if where == "branch":
        graph.name, inner = "inner", graph
        del inner.input[:]
        other = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["n"])],
            "other",
            [],
            [helper.make_tensor_value_info("n", T.FLOAT, [4])],
        )
        top = helper.make_node("If", ["c"], ["z"], "if", then_branch=inner, else_branch=other)
        c = helper.make_tensor_value_info("c", T.BOOL, [])
        z = helper.make_tensor_value_info("z", T.FLOAT, [4])
        graph = helper.make_graph([top], "g", [x, c], [z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def weight(name: str = "w", **external: str) -> TensorProto:
    """A float32 [4] tensor in another file."""
    t = TensorProto(name=name, data_type=T.FLOAT, dims=[4], data_location=T.EXTERNAL)
    for key, value in external.items():
        t.external_data.add(key=key, value=value)
    return t


LOCATIONS = {
    "../outside.bin": "traversal",
    "sub/../../outside.bin": "traversal",
    "w.bin/..": "traversal",
    "./w.bin": "segment",
    "a//w.bin": "segment",
    "w.bin/": "segment",
    ".": "segment",
    "": "empty",
    "/etc/hostname": "absolute",
    "w.bin\0.txt": "nul",
    "..\\outside.bin": "backslash",
    "C:w.bin": "drive",
    "C:/w.bin": "drive",
    "w.bin:stream": "drive",
    "w\n.bin": "control-character",
    "w\x7f.bin": "control-character",
    "w.bin.": "trailing-dot",
    "w.bin ": "trailing-dot",
    "absent.bin": "missing",
}
"""Locations of external data, and the reason why each is refused."""

NUMBERS = {
    ("abc", None): "bad-number",
    ("-1", None): "bad-number",
    ("+1", None): "bad-number",
    (" 0", None): "bad-number",
    ("0x0", None): "bad-number",
    ("1_0", None): "bad-number",
    ("\u0661", None): "bad-number",
    ("1.0", None): "bad-number",
    ("", None): "bad-number",
    ("9" * 30, None): "bad-number",
    (str(2**63), None): "bad-number",
    ("0", "16 "): "bad-number",
    ("0", "15"): "length",
    ("0", "17"): "length",
    ("1", "16"): "out-of-range",
    ("1", None): "out-of-range",
    (str(2**63 - 1), "16"): "out-of-range",
}
"""Offset and length of 16 bytes in a file of 16, and what is wrong with them."""


def field(number: int, payload: bytes) -> bytes:
    """A byte field as protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """A number as protobuf writes it, in as few bytes as can be."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def nested(levels: int) -> bytes:
    """A model with `levels` graphs inside each other: 1 + 3 levels messages in the model."""
    raw = helper.make_graph([], "leaf", [], []).SerializeToString()
    for _ in range(levels):  # graph.node.attribute.g
        raw = field(1, field(5, field(6, raw)))
    return b"\x08\x0a" + field(7, raw)


def everywhere() -> ModelProto:
    """A tensor in each place that can hold one: t1 to t10, of 1 to 10 elements."""
    numbers = iter(range(1, 11))

    def tensor() -> TensorProto:
        n = next(numbers)
        return numpy_helper.from_array(np.zeros(n, np.float32), f"t{n}")

    m = tiny()
    m.graph.initializer.append(tensor())
    m.graph.node.append(helper.make_node("Constant", [], ["k"], "k", value=tensor()))
    branch(m).initializer.append(tensor())
    s = m.graph.sparse_initializer.add()
    s.values.CopyFrom(tensor())
    s.indices.CopyFrom(numpy_helper.from_array(np.arange(4), ""))
    s.dims[:] = [9]
    body = [helper.make_node("Constant", [], ["k"], value=tensor())]
    own = helper.make_function("own", "F", [], ["k"], body, [helper.make_opsetid("", 21)])
    m.functions.append(own)
    m.training_info.add().initialization.initializer.append(tensor())
    m.training_info[0].algorithm.initializer.append(tensor())
    deep = helper.make_graph(
        [helper.make_node("Constant", [], ["deep"], value=tensor())],
        "deep",
        [],
        [helper.make_tensor_value_info("deep", T.FLOAT, [8])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["y"], ["other"])],
        "other",
        [],
        [helper.make_tensor_value_info("other", T.FLOAT, [2])],
    )
    inner = helper.make_node("If", ["c"], ["r"], "inner", then_branch=deep, else_branch=other)
    branch(m).node.append(inner)
    lists = helper.make_node("Lists", ["y"], ["l"], "lists", domain="own", t=[tensor(), tensor()])
    m.opset_import.append(helper.make_opsetid("own", 1))
    m.graph.node.append(lists)
    return m
