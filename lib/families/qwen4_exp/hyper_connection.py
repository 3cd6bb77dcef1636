"""Hyper-connections: N residual streams are read into one, and written back to.

Source: docs/qwen4-exp.md, "Hyper-connections".
"""

from __future__ import annotations

from ...graph.builder import Graph, Value
from .config import Text
from .numerics import flat, narrow, silu, stack, stream_norm, wide


def read(g: Graph, x: Value, c: Text) -> tuple[Value, Value]:
    """Rows of streams [n, N H] -> what a block sees [n, H], and the normed streams [n, N H].

    n = norm of each stream; gate = sigmoid(up(silu(down(n) / N))); the mean over streams of
    gate * n. Products are rounded to T, their sum is taken in float32 and rounded once.
    """
    normed = flat(g, stream_norm(g, stack(g, x, c.N), "hc_norm", c.N, c.eps))
    low = g.Div(g.linear(normed, "input_mix_weight_down", c.r), float(c.N))
    gate = g.Sigmoid(g.linear(silu(g, low), "input_mix_weight_up", c.N * c.H))
    streams = stack(g, g.Mul(gate, normed), c.N)
    h = g.ReduceMean(wide(g, streams), [1], keepdims=0, shape=["rows", c.H])
    return narrow(g, h, x.dtype), normed


def inject(g: Graph, normed: Value, c: Text) -> Value:
    """How much of a block's output each stream takes: 2 sigmoid(inject(n) / N), [n, N, 1]."""
    logits = g.Div(g.linear(normed, "block_inject_weight", c.N), float(c.N))
    return g.Unsqueeze(g.Mul(g.Sigmoid(logits), 2.0), [2])


def write(g: Graph, x: Value, o: Value, share: Value, c: Text) -> Value:
    """x_s + o share_s for each stream s; x is what entered `read`, before its norm."""
    part = g.Mul(g.Unsqueeze(o, [1]), share)  # [n, N, H]
    return g.Add(x, flat(g, part))
