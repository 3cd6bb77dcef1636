"""Routed experts and the shared one: silu(gate) * up, down, weighted and summed.

n rows, E experts of width I, k of them for a row. Two routes give the same numbers:

    standard  operators of the standard domain: a Scan walks over the experts' matrices, an If skips
              an expert that no row has chosen. Nodes do not grow with E. The matrices are scanned,
              not gathered: what Scan hands to its body is a view, a Gather would copy them.
    fused     MoE of the domain com.microsoft, one node, for providers that have it.

Source: docs/qwen4-exp.md, "Mixture of experts".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ...graph.builder import BFLOAT16, FLOAT, Graph, Value
from .config import Text
from .numerics import exact_silu, narrow, silu, wide

FP8 = TensorProto.FLOAT8E4M3FN
BLOCK = 128
"""Rows and columns that share a scale."""


@dataclass(frozen=True)
class Route:
    """How experts are computed and stored.

    Attributes:
        fused: the fused operator; only for weights of the model's type.
        fp8: the banks are FP8 codes with BF16 scales, which stay as they are.
        reading: of the scales, `exact` or `bf16` (graph/fp8.py).
    """

    fused: bool = False
    fp8: bool = False
    reading: str = "exact"


def mixture(g: Graph, h: Value, route: Route, c: Text) -> Value:
    """Routed plus shared experts on rows [n, H], with the parameters of `mlp`."""
    logits = g.linear(h, "gate", c.E)  # [n, E]
    bank = g.at("experts")
    if route.fused:
        routed = fused(bank, h, logits, c)
        h = _kept(g, h, routed)
    else:
        routed = standard(bank, h, logits, route, c)
    return g.Add(routed, shared(g, h, c))


def _kept(g: Graph, h: Value, routed: Value) -> Value:
    """h again, as a node that waits for `routed`: until then a runtime cannot reuse its memory.

    MoE of ONNX Runtime 1.31 on CPU may be given the memory of its input for its output, which it
    clears before it reads the input, unless weights are renormalised: all zeros, without an error.
    """
    return g.Reshape(h, g.Shape(routed), shape=h.shape)


def shared(g: Graph, h: Value, c: Text) -> Value:
    """sigmoid(shared_expert_gate(h)) * MLP(h)."""
    e = g.at("shared_expert")
    inner = e.Mul(silu(e, e.linear(h, "gate_proj", c.Is)), e.linear(h, "up_proj", c.Is))
    share = g.Sigmoid(g.linear(h, "shared_expert_gate", 1))  # [n, 1]
    return g.Mul(share, e.linear(inner, "down_proj", c.H))


def choose(g: Graph, logits: Value, c: Text) -> Value:
    """Weight of every expert for every row, 0 where it is not chosen: [E, n] in T.

    Softmax over all experts in float32; the k largest stay; with `renormalise` they are divided by
    their sum.
    """
    p = g.Softmax(wide(g, logits), axis=-1)
    weights, chosen = g.TopK(p, [c.k], axis=-1, outputs=2)  # [n, k] each
    if c.renormalise:
        weights = g.Div(weights, g.ReduceSum(weights, [-1], keepdims=1))
    none = g.Expand(g.constant(np.float32(0)), g.Shape(p), shape=p.shape)
    dense = g.ScatterElements(none, chosen, weights, axis=1)  # [n, E]
    return g.Transpose(narrow(g, dense, logits.dtype), perm=[1, 0])


def standard(g: Graph, h: Value, logits: Value, route: Route, c: Text) -> Value:
    """The routed experts in ascending order, added up row by row in T: [n, H]."""
    weights = choose(g, logits, c)
    shapes = {"gate_up_proj": [2 * c.I, c.H], "down_proj": [c.H, c.I]}
    stored = FP8 if route.fp8 else h.dtype
    banks = {n: g.parameter(n, [c.E, *s], stored) for n, s in shapes.items()}
    scanned = list(banks.values())
    if route.fp8:
        grids = {"gate_up_proj": [2 * _blocks(c.I), _blocks(c.H)],
                 "down_proj": [_blocks(c.H), _blocks(c.I)]}  # fmt: skip
        scanned += [g.parameter(f"{n}_scale_inv", [c.E, *s], BFLOAT16) for n, s in grids.items()]
    body = g.body("expert")
    at = body.scope
    total = body.input(f"{at}sum_in", h.dtype, ["rows", c.H])
    matrices = {n: body.input(f"{at}{n}.matrix", stored, s) for n, s in shapes.items()}
    scales = {}
    if route.fp8:
        scales = {n: body.input(f"{at}{n}.scale", BFLOAT16, s) for n, s in grids.items()}
    weight = body.input(f"{at}weight", h.dtype, ["rows"])
    chosen = body.NonZero(weight)  # [1, m]
    some, none = body.body("some"), body.body("none")
    if route.fp8:
        for name, codes in matrices.items():
            parts = 2 if name == "gate_up_proj" else 1
            dense = _dense(some, codes, scales[name], parts, route.reading)
            matrices[name] = narrow(some, dense, h.dtype)
    some.output(f"{at}sum_some", _expert(some, h, total, weight, chosen, matrices, c))
    none.output(f"{at}sum_none", none.Identity(total))
    any_row = body.Squeeze(body.Greater(body.Shape(chosen, start=1, end=2), 0), [0], shape=[])
    body.output(f"{at}sum_out", body.op("If", any_row, then_branch=some, else_branch=none))
    start = g.ConstantOfShape(g.Shape(h), value=_zero(h.dtype))
    return g.op("Scan", start, *scanned, weights, body=body, num_scan_inputs=len(scanned) + 1,
                shape=["rows", c.H])  # fmt: skip


def _zero(dtype: int) -> TensorProto:
    return TensorProto(data_type=dtype, dims=[1], raw_data=b"\0" * (4 if dtype == FLOAT else 2))


def _blocks(size: int) -> int:
    return math.ceil(size / BLOCK)


def _expert(
    g: Graph, h: Value, total: Value, weight: Value, chosen: Value, m: dict[str, Value], c: Text
) -> Value:
    """The rows of one expert, with its weighted output added: [n, H]."""
    index = g.Squeeze(chosen, [0], shape=["expert_rows"])
    mine = g.Gather(h, index, axis=0)  # [m, H]
    both = g.MatMul(mine, g.Transpose(m["gate_up_proj"], perm=[1, 0]))
    gate, up = g.Split(both, [c.I, c.I], axis=1, outputs=2)
    inner = g.Mul(exact_silu(g, gate), up)
    out = g.MatMul(inner, g.Transpose(m["down_proj"], perm=[1, 0]))
    part = g.Mul(out, g.Unsqueeze(g.Gather(weight, index, axis=0), [1]))
    old = g.Gather(total, index, axis=0)
    return g.ScatterND(total, g.Unsqueeze(index, [1]), g.Add(old, part))


def _dense(g: Graph, codes: Value, scale: Value, parts: int, reading: str) -> Value:
    """codes [R, C] times the scale of their block: float32, or BF16 when read so.

    A bank of gate and up has the blocks of each by itself: the rows of the grid that rows of codes
    take start anew with the second matrix.
    """
    rows = codes.shape[0]
    assert isinstance(rows, int)
    height = rows // parts
    owner = np.arange(height) // BLOCK
    owners = np.concatenate([owner + p * _blocks(height) for p in range(parts)]).astype(np.int32)
    s = g.Gather(g.Cast(scale, to=FLOAT), g.constant(owners, "row of blocks of each row"), axis=0)
    dense = g.DequantizeLinear(codes, s, axis=1, block_size=BLOCK)
    return g.Cast(dense, to=BFLOAT16) if reading == "bf16" else dense


def fused(g: Graph, h: Value, logits: Value, c: Text) -> Value:
    """The routed experts as one MoE node: [n, H].

    It takes logits, and gate and up rows in turn (the form that its CPU and CUDA kernels share), so
    the bank's rows are interleaved by nodes on the parameter, which a runtime folds at load.
    """
    bank = g.parameter("gate_up_proj", [c.E, 2 * c.I, c.H], h.dtype)
    bank = g.Reshape(bank, [c.E, 2, c.I, c.H])
    bank = g.Reshape(g.Transpose(bank, perm=[0, 2, 1, 3]), [c.E, 2 * c.I, c.H])
    down = g.parameter("down_proj", [c.E, c.H, c.I], h.dtype)
    return g.op(
        "MoE", h, logits, bank, None, down, domain="com.microsoft", shape=["rows", c.H],
        k=c.k, normalize_routing_weights=int(c.renormalise), activation_type="swiglu",
        swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0,
    )  # fmt: skip
