"""The builder refuses wrong graphs at the line that writes them, and what it builds is a valid
model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ntool.lib.graph.builder import (
    BFLOAT16,
    BOOL,
    FLOAT,
    FLOAT16,
    INT64,
    MOVES,
    Graph,
    GraphError,
    Value,
)
from ntool.lib.runtime.session import Session


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


# --- arithmetic of 16-bit types, spelled out ------------------------------------------------------

HALVES = [(FLOAT16, np.dtype(np.float16)), (BFLOAT16, np.dtype(ml_dtypes.bfloat16))]
Write = Callable[[Graph, Value, Value], Value]


def computed(write: Write, dtype: int, x: np.ndarray, y: np.ndarray, rounded: bool) -> np.ndarray:
    g = Graph("g", rounded=rounded)
    a, b = (g.input(n, dtype, ["n", 8]) for n in ("a", "b"))
    g.output("y", write(g, a, b))
    model = g.model()
    onnx.checker.check_model(model, full_check=True)
    return Session(model.SerializeToString()).run({"a": x, "b": y})["y"]


@pytest.mark.parametrize(("dtype", "kind"), HALVES, ids=["f16", "bf16"])
def test_rounded_arithmetic_is_that_of_the_type(dtype: int, kind: np.dtype[Any]) -> None:
    """Operator by operator, as NumPy computes with the type; one rounding at the end differs."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((400, 8)).astype(kind) for _ in range(2))

    def product_and_sum(g: Graph, a: Value, b: Value) -> Value:
        return g.Add(g.Mul(g.Mul(a, b), 0.1), b)

    expected = x * y * kind.type(0.1) + y
    assert expected.dtype == kind
    found = computed(product_and_sum, dtype, x, y, rounded=True)
    np.testing.assert_array_equal(found, expected)
    wide = [v.astype(np.float32) for v in (x, y)]
    once = (wide[0] * wide[1] * np.float32(kind.type(0.1)) + wide[1]).astype(kind)
    assert (once != expected).mean() > 0.02


def test_rounded_products_are_summed_in_float32() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((8, 8)).astype(ml_dtypes.bfloat16) for _ in range(2))
    found = computed(lambda g, a, b: g.MatMul(a, b), BFLOAT16, x, y, rounded=True)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    # half a unit in the last place of 8 bits, and a little of float32's own roundings
    assert (np.abs(found.astype(np.float64) - exact) <= 2.0**-8 * np.abs(exact) + 1e-6).all()


def rounded_graph(dtype: int) -> tuple[Graph, Value, Value]:
    g = Graph("g", Claims(), rounded=True)
    return g, g.input("a", dtype, ["n", 8]), g.input("b", dtype, ["n", 8])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_rounded_types_are_those_of_plain_graphs(dtype: int) -> None:
    """Values of 16 bits come out as such, indices and truths as they are."""
    g, a, b = rounded_graph(dtype)
    assert g.Mul(a, b) == Value("Cast_2", dtype, ("n", 8))
    values, indices = g.TopK(a, [2], axis=-1, outputs=2)
    assert (values.dtype, indices.dtype) == (dtype, INT64)
    assert g.Less(a, b).dtype == BOOL
    assert g.at("p").linear(a, "gate", 4).dtype == dtype
    assert g.root.initializers["p.gate.weight"].data_type == dtype
    assert g.Relu(a, shape=["rows", 8]).shape == ("rows", 8)
    named = g.op("Mul", a, b, name="product")
    assert (named.name, named.dtype) == ("product", dtype)
    first, second = g.op("TopK", a, [2], axis=-1, outputs=2, name="best")
    assert (first.name, first.dtype, second.dtype) == ("best", dtype, INT64)


def test_rounded_graphs_move_values_without_casts() -> None:
    g, a, b = rounded_graph(FLOAT16)
    g.Reshape(g.Concat(g.Transpose(a, perm=[0, 1]), b, axis=1), [-1, 4])
    g.Gather(a, [0], axis=0)
    g.output("y", a)
    assert all(n.op_type in MOVES for n in g.nodes)
    assert "Cast" not in {n.op_type for n in g.nodes}


def test_rounded_graphs_leave_float32_alone() -> None:
    plain, spelled = Graph("g"), Graph("g", rounded=True)
    for g in (plain, spelled):
        x = g.input("x", FLOAT, ["n", 8])
        g.output("y", g.Softmax(g.Mul(g.Add(x, 1.0), x), axis=-1))
    assert plain.model() == spelled.model()


def test_bodies_of_rounded_graphs_are_rounded_too() -> None:
    g, a, b = rounded_graph(BFLOAT16)
    flag = g.input("flag", BOOL, [])
    then, other = g.body("then"), g.body("other")
    then.output("product", then.Mul(a, b))  # ONNX Runtime has no Mul of this type
    other.output("same", other.Identity(a))
    g.output("y", g.op("If", flag, then_branch=then, else_branch=other))
    assert [n.op_type for n in then.nodes] == ["Cast", "Cast", "Mul", "Cast", "Identity"]
    x = np.array([[1.0078125] * 8], ml_dtypes.bfloat16)
    run = Session(g.model().SerializeToString()).run
    assert run({"a": x, "b": x, "flag": np.array(True)})["y"][0, 0] == x[0, 0] * x[0, 0]
    assert run({"a": x, "b": x, "flag": np.array(False)})["y"][0, 0] == x[0, 0]
