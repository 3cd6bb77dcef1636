"""Attention over tokens that an indexer selects, block by block.

Visible keys of a query are counted in blocks of R from the first real token of their row. A block
is scored by its pooled key; a query sees the best budget / R of its full blocks, and the tokens
after them. Attention itself is dense, under the mask of what was selected.

B sequences, S new tokens, P cached ones, T = P + S, m = T div R blocks at most.
Source: docs/qwen4-exp.md, "Sparse attention".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...graph.builder import INT64, Graph, Value
from ...graph.layers import Rotation, attention
from .config import Text
from .numerics import centred_norm, narrow, wide
from .rotary import rotate, rotation

HIDDEN = np.float32(-1e30)
"""Added to scores of what a query does not see; finite, so that a row that sees nothing is."""


@dataclass(frozen=True)
class Scene:
    """What all sparse layers share.

    Attributes:
        batch, length: B and S, int64 [1] each.
        turn: rotation of the new tokens. first_turn: of the first token of each block, [B, m, .].
        visible: bool [B, S, T].
        full: int64 [B, S, 1]: full blocks among the keys that a query sees.
        block: int64 [B, 1, T]: block of each key, by its rank among the real tokens of its row.
        order: int64 [B, m R, 1]: where the j-th real token of a row is.
        count: int64 [1], m.
    """

    batch: Value
    length: Value
    turn: Rotation
    first_turn: Rotation
    visible: Value
    full: Value
    block: Value
    order: Value
    count: Value


def scene(
    g: Graph, mask: Value, positions: Value, history: Value, shape: tuple[Value, Value], c: Text,
    dtype: int,
) -> Scene:  # fmt: skip
    """Masks, blocks and rotations from the mask [B, T] and positions [4, B, S], [4, B, T]."""
    batch, length = shape
    total = g.Shape(mask, start=1, end=2)
    past = g.Sub(total, length)
    real = g.Not(g.Equal(mask, 0))  # [B, T]
    seen = g.CumSum(g.Cast(real, to=INT64), g.constant(np.int64(1)))  # [B, T]
    rank = g.Sub(seen, 1)
    keys = _range(g, total, "total_sequence")
    queries = g.Slice(keys, past, total, [0], shape=["sequence"])
    causal = g.LessOrEqual(g.Unsqueeze(keys, [0]), g.Unsqueeze(queries, [1]))  # [S, T]
    visible = g.And(g.Unsqueeze(real, [1]), causal, shape=["batch", "sequence", "total_sequence"])
    known = g.Slice(seen, past, total, [1], shape=["batch", "sequence"])
    full = g.Div(g.Unsqueeze(known, [2]), c.R)
    # padding goes to a place of its own behind all tokens, which is cut off again
    to = g.Where(real, rank, total)
    blank = g.Expand(
        g.constant(np.int64(0)), g.Concat(batch, g.Add(total, 1), axis=0), shape=["batch", None]
    )
    spread = g.Expand(g.Unsqueeze(keys, [0]), g.Shape(mask), shape=["batch", "total_sequence"])
    order = g.ScatterElements(blank, to, spread, axis=1)
    count = g.Div(total, c.R)
    order = g.Slice(order, [0], g.Mul(count, c.R), [1], shape=["batch", None])
    first = g.Slice(order, [0], [np.iinfo(np.int64).max], [1], [c.R], shape=["batch", "blocks"])
    channels = g.Slice(history, [1], [4], [0], shape=[3, "batch", "total_sequence"])
    first = g.Unsqueeze(first, [0])
    first = g.Expand(first, g.Concat([3], batch, count, axis=0), shape=[3, "batch", "blocks"])
    starts = g.GatherElements(channels, first, axis=2)
    new = g.Slice(positions, [1], [4], [0], shape=[3, "batch", "sequence"])
    block = g.Unsqueeze(g.Max(g.Div(rank, c.R), g.constant(np.int64(0))), [1])
    return Scene(
        batch, length, rotation(g, new, c, dtype), rotation(g, starts, c, dtype),
        visible, full, block, g.Unsqueeze(order, [2]), count,
    )  # fmt: skip


def _range(g: Graph, count: Value, name: str) -> Value:
    """0 .. count-1, int64."""
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    return g.Range(zero, g.Squeeze(count, [0]), one, shape=[name])


def sparse_attention(
    g: Graph, h: Value, past: tuple[Value, Value, Value], s: Scene, c: Text
) -> tuple[Value, Value, Value, Value]:
    """Rows [n, H] -> rows [n, H], and the grown keys, values and raw index keys.

    Args:
        past: keys, values [B, nkv, P, D], raw index keys [B, P, Dx].
    """
    bias = c.attention_bias

    def heads(x: Value, n: int, width: int) -> Value:
        """Rows [n, heads width] as [B, S, heads, width]."""
        to = g.Concat(s.batch, s.length, [n, width], axis=0)
        return g.Reshape(x, to, shape=["batch", "sequence", n, width])

    both = heads(g.linear(h, "q_proj", c.nh * 2 * c.D, bias=bias), c.nh, 2 * c.D)
    q, gate = g.Split(both, [c.D, c.D], axis=3, outputs=2)
    q = _turned(g, centred_norm(g, q, "q_norm", c.eps), s.turn)
    k = heads(g.linear(h, "k_proj", c.nkv * c.D, bias=bias), c.nkv, c.D)
    k = _turned(g, centred_norm(g, k, "k_norm", c.eps), s.turn)
    v = heads(g.linear(h, "v_proj", c.nkv * c.D, bias=bias), c.nkv, c.D)
    grown = ["batch", c.nkv, "total_sequence", c.D]
    k = g.Concat(past[0], k, axis=2, shape=grown)
    v = g.Concat(past[1], g.Transpose(v, perm=[0, 2, 1, 3]), axis=2, shape=grown)
    allowed, raw = selected(g.at("indexer"), h, past[2], s, c)
    hidden = g.Where(g.Unsqueeze(allowed, [1, 2]), g.constant(np.float32(0)), g.constant(HIDDEN))
    mixed = attention(g, q, k, v, scale=c.D**-0.5, sequence=s.length, bias=hidden)
    gate = g.Reshape(gate, [-1, c.nh * c.D], shape=["rows", c.nh * c.D])
    return g.linear(g.Mul(mixed, g.Sigmoid(gate)), "o_proj", c.H, bias=bias), k, v, raw


def _turned(g: Graph, x: Value, r: Rotation) -> Value:
    """[B, S, heads, width] as rotated heads [B, heads, S, width]."""
    return rotate(g, g.Transpose(x, perm=[0, 2, 1, 3]), r)


def selected(g: Graph, h: Value, past: Value, s: Scene, c: Text) -> tuple[Value, Value]:
    """Which keys each query attends to, bool [B, S, T], and the grown raw index keys [B, T, Dx].

    As long as no row can have more blocks than the budget, everything visible is selected, and no
    score is computed.
    """
    width = (c.nx + 1) * c.Dx
    to = g.Concat(s.batch, s.length, [width], axis=0)
    p = g.Reshape(g.linear(h, "index_qk_proj", width), to, shape=["batch", "sequence", width])
    q, key = g.Split(p, [c.nx * c.Dx, c.Dx], axis=2, outputs=2)
    raw = g.Concat(past, key, axis=1, shape=["batch", "total_sequence", c.Dx])
    best = c.budget // c.R
    many = g.Squeeze(g.Greater(s.count, best), [0], shape=[])
    ranked, everything = g.body("ranked"), g.body("everything")
    chosen = _best_blocks(ranked, q, raw, s, c, best)
    ranked.output(f"{g.scope}ranked.allowed", chosen)
    everything.output(f"{g.scope}everything.allowed", everything.Identity(s.visible))
    allowed = g.op("If", many, then_branch=ranked, else_branch=everything)
    return allowed, raw


def _best_blocks(g: Graph, q: Value, raw: Value, s: Scene, c: Text, best: int) -> Value:
    """The `best` blocks of each query by sum over index heads of relu(q . key), ties to the lower
    block, and its tokens that fill no block; bool [B, S, T]."""
    heads = g.Reshape(q, g.Concat(s.batch, s.length, [c.nx, c.Dx], axis=0),
                      shape=["batch", "sequence", c.nx, c.Dx])  # fmt: skip
    q = _turned(g, centred_norm(g, heads, "q_layernorm", c.eps), s.turn)  # [B, nx, S, Dx]
    rows = g.GatherND(raw, s.order, batch_dims=1)  # [B, m R, Dx], real tokens in order
    blocks = g.Reshape(rows, g.Concat(s.batch, s.count, [c.R, c.Dx], axis=0),
                       shape=["batch", "blocks", c.R, c.Dx])  # fmt: skip
    pooled = narrow(g, g.ReduceMean(wide(g, blocks), [2], keepdims=1), q.dtype)
    keys = _turned(g, centred_norm(g, pooled, "k_layernorm", c.eps), s.first_turn)
    scores = g.MatMul(wide(g, q), g.Transpose(wide(g, keys), perm=[0, 1, 3, 2]))
    scores = g.ReduceSum(g.Relu(scores), [1], keepdims=0)  # [B, S, m]
    scores = g.Mul(scores, float(c.Dx**-0.5))
    number = _range(g, s.count, "blocks")
    ready = g.Less(g.Reshape(number, [1, 1, -1]), s.full)  # [B, S, m]
    scores = g.Where(ready, scores, g.constant(np.float32(-1)))  # scores are sums of relus
    _, top = g.TopK(scores, [best], axis=2, outputs=2)  # [B, S, best]
    none = g.Expand(g.constant(np.array(False)), g.Shape(scores), shape=scores.shape)
    yes = g.Expand(g.constant(np.array(True)), g.Shape(top), shape=top.shape)
    taken = g.And(g.ScatterElements(none, top, yes, axis=2), ready)  # [B, S, m]
    last = g.Sub(s.count, 1)  # keys behind the last block of all are in no block
    index = g.Expand(g.Min(s.block, last), g.Shape(s.visible), shape=s.visible.shape)
    inside = g.And(g.GatherElements(taken, index, axis=2), g.Less(s.block, s.full))
    rest = g.GreaterOrEqual(s.block, s.full)
    return g.And(s.visible, g.Or(inside, rest), shape=s.visible.shape)
