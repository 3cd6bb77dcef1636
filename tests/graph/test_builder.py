"""The builder refuses wrong graphs at the line that writes them, and what it builds is a valid
model."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ntool.lib.graph.builder import BOOL, FLOAT, INT64, Graph, GraphError


class Claims:
    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[int, ...], int]] = []

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        self.seen.append((name, shape, dtype))
        return "model.safetensors"


def session(g: Graph) -> ort.InferenceSession:
    model = g.model()
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_scopes_spell_parameter_names_and_shapes_flow() -> None:
    claims = Claims()
    g = Graph("g", claims)
    x = g.input("x", FLOAT, ["rows", 8])
    y = g.at("layers.3").at("mlp").linear(x, "gate_proj", 16, bias=True)
    assert y.shape == ("rows", 16) and y.dtype == FLOAT
    assert claims.seen == [
        ("layers.3.mlp.gate_proj.weight", (16, 8), FLOAT),
        ("layers.3.mlp.gate_proj.bias", (16,), FLOAT),
    ]
    assert g.nodes[-1].op_type == "Gemm" and g.nodes[-1].name.startswith("layers.3.mlp.gate_proj.")


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda g, x: g.MatMull(x, x), "no operator"),
        (lambda g, x: g.MatMul(x, g.constant(np.ones((5, 2), np.float32))), "layers.0.MatMul"),
        (lambda g, x: g.Add(x, g.constant(np.ones(8, np.int64))), "layers.0.Add"),
        (lambda g, x: g.Softmax(x, axiss=1), "no attribute 'axiss'"),
        (lambda g, x: g.Reshape(x, [2, 4], shape=[2, 5]), "declared [2, 5]"),
        (lambda g, x: g.linear(g.Reshape(x, [1, -1, 8]), "p", 4), "wants [N, in]"),
        (lambda g, x: g.Concat(x, axis=None), "Concat"),
        (lambda g, x: g.Relu(x, x), "Relu"),
        (lambda g, x: g.input("x", FLOAT, [1]), "two values named 'x'"),
    ],
)
def test_a_wrong_line_fails_there(write, says: str) -> None:
    g = Graph("g", Claims())
    x = g.input("x", FLOAT, ["rows", 8])
    with pytest.raises((GraphError, ValueError), match=None) as caught:
        write(g.at("layers.0"), x)
    assert says in str(caught.value)


def test_constants_are_shared_and_say_their_origin() -> None:
    g = Graph("g")
    a, b = g.constant(np.float32(2)), g.constant(np.float32(2))
    assert a is b and len(g.initializers) == 1
    (tensor,) = g.initializers.values()
    assert tensor.metadata_props[0].key == "ntool.origin"


def test_if_scan_and_loop_bodies_run() -> None:
    g = Graph("g")
    x = g.input("x", FLOAT, ["steps", 4])
    flag = g.input("flag", BOOL, [])
    then, other = g.body("then"), g.body("other")
    then.output("doubled", then.Mul(x, 2.0))  # reads the outer value
    other.output("halved", other.Mul(x, 0.5))
    chosen = g.op("If", flag, then_branch=then, else_branch=other)
    assert chosen.shape == ("steps", 4)

    body = g.body("sum")
    state = body.input("state", FLOAT, [4])
    row = body.input("row", FLOAT, [4])
    total = body.Add(state, row)
    body.output("state_out", total)
    body.output("partial", total)
    zero = g.constant(np.zeros(4, np.float32))
    last, partial = g.op("Scan", zero, chosen, outputs=2, body=body, num_scan_inputs=1)
    assert last.shape == (4,) and partial.shape == ("steps", 4)

    loop = g.body("loop")
    loop.input("i", INT64, [])
    keep = loop.input("keep", BOOL, [])
    acc = loop.input("acc", FLOAT, [4])
    loop.output("keep_out", keep)
    loop.output("acc_out", loop.Add(acc, 1.0))
    added = g.op("Loop", g.constant(np.int64(3)), None, last, body=loop)
    g.output("y", added)
    g.output("partials", partial)
    got = session(g).run(None, {"x": np.ones((2, 4), np.float32), "flag": np.array(True)})
    assert got[0].tolist() == [7.0] * 4
    assert got[1].tolist() == [[2.0] * 4, [4.0] * 4]


def test_branches_of_if_must_agree() -> None:
    g = Graph("g")
    x = g.input("x", FLOAT, [4])
    flag = g.input("flag", BOOL, [])
    then, other = g.body("then"), g.body("other")
    then.output("a", then.Identity(x))
    other.output("b", other.Cast(x, to=INT64))
    with pytest.raises(GraphError, match="If"):
        g.op("If", flag, then_branch=then, else_branch=other)


def test_every_value_has_a_type() -> None:
    g = Graph("g")
    x = g.input("x", FLOAT, ["a", 4])
    g.output("y", g.Relu(g.Add(x, 1.0)))
    proto = g.proto()
    typed = {v.name for v in (*proto.input, *proto.output, *proto.value_info)}
    assert {o for n in proto.node for o in n.output} <= typed
