"""Routed mixture of experts in standard ONNX: its nodes do not grow with the number of experts.

N rows, D model width, E experts, I their width, k experts of a row.

The bank of each projection is one tensor [E, out, in]. Scan walks over the experts; its slices of a
scanned tensor are views, so no weight is copied, and an If skips an expert that no row has chosen.
Measured (onnxruntime 1.31, 2 cores, E 128, I 768, D 2048, k 8): gathering the chosen experts'
matrices and one batched product takes 1.9 to 3 times as long for 1 to 16 rows, because it copies
the matrices; there is therefore no second route for few rows.
"""

from __future__ import annotations

import numpy as np

from .builder import FLOAT, Graph, Value
from .layers import silu


def route(g: Graph, x: Value, experts: int, top: int, renormalise: bool) -> Value:
    """Weight of every expert for every row, zero where it is not chosen: x [N, D] -> [E, N].

    p = softmax(gate(x)) over all experts in float32; the k largest stay; with `renormalise` they
    are divided by their sum.
    """
    logits = g.linear(x, "gate", experts)  # [N, E]
    wide = g.Cast(logits, to=FLOAT) if logits.dtype != FLOAT else logits
    p = g.Softmax(wide, axis=-1)
    weights, chosen = g.TopK(p, [top], axis=-1, outputs=2)  # [N, k] each
    if renormalise:
        weights = g.Div(weights, g.ReduceSum(weights, [-1], keepdims=1))
    none = g.Expand(g.constant(np.float32(0)), g.Shape(p), shape=p.shape)
    dense = g.ScatterElements(none, chosen, weights, axis=1)  # [N, E]
    return g.Transpose(g.Cast(dense, to=x.dtype) if x.dtype != FLOAT else dense, perm=[1, 0])


def sparse_mlp(g: Graph, x: Value, experts: int, top: int, width: int, renormalise: bool) -> Value:
    """sum over the chosen experts e of weight_e down_e(silu(gate_e(x)) * up_e(x)) on rows [N, D].

    The parameters are `gate.weight` [E, D] and the banks `experts.gate_proj.weight`,
    `experts.up_proj.weight` [E, I, D] and `experts.down_proj.weight` [E, D, I].
    """
    D = x.shape[-1]
    assert isinstance(D, int)
    weights = route(g, x, experts, top, renormalise)  # [E, N]
    bank = g.at("experts")
    shapes = {"gate_proj": [width, D], "up_proj": [width, D], "down_proj": [D, width]}
    banks = [
        bank.parameter(f"{name}.weight", [experts, *shape], x.dtype)
        for name, shape in shapes.items()
    ]
    body = bank.body("expert")
    y = body.input(f"{bank.scope}sum_in", FLOAT, ["rows", D])
    gate, up, down = (
        body.input(f"{bank.scope}{name}", x.dtype, shape) for name, shape in shapes.items()
    )
    weight = body.input(f"{bank.scope}weight", x.dtype, ["rows"])
    rows = body.NonZero(weight)  # [1, n]
    count = body.Shape(rows, start=1, end=2)
    some, none = body.body("some"), body.body("none")
    index = some.Squeeze(rows, [0], shape=["n"])
    mine = some.Gather(x, index)  # [n, D]
    h = some.Mul(silu(some, some.Gemm(mine, gate, transB=1)), some.Gemm(mine, up, transB=1))
    share = some.Unsqueeze(some.Gather(weight, index), [1])  # [n, 1]
    part = some.Mul(some.Gemm(h, down, transB=1), share)
    part = some.Cast(part, to=FLOAT) if part.dtype != FLOAT else part
    grown = some.ScatterND(y, some.Unsqueeze(index, [1]), part, reduction="add")
    some.output(f"{bank.scope}sum_some", grown)
    none.output(f"{bank.scope}sum_none", none.Identity(y))
    chosen = body.Squeeze(body.Greater(count, 0), [0], shape=[])
    total = body.op("If", chosen, then_branch=some, else_branch=none)
    body.output(f"{bank.scope}sum_out", total)
    # summed in float32: 16-bit sums lose digits, and have no kernel on every provider
    start = g.Expand(g.constant(np.float32(0)), g.Shape(x), shape=["rows", D])
    total = g.op("Scan", start, *banks, weights, body=body, num_scan_inputs=4)
    return g.Cast(total, to=x.dtype) if x.dtype != FLOAT else total
