"""Layers that two families use, one function an equation, written once for all float types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .builder import FLOAT, Graph, Value


def rms_norm(g: Graph, x: Value, name: str, eps: float) -> Value:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; the quotient in float32, then x's
    type."""
    weight = g.parameter(f"{name}.weight", [_size(x.shape[-1])], x.dtype)
    return g.at(name).RMSNormalization(x, weight, axis=-1, epsilon=eps)


def silu(g: Graph, x: Value) -> Value:
    """x * sigmoid(x)."""
    return g.Mul(x, g.Sigmoid(x))


def gated_mlp(g: Graph, x: Value, width: int) -> Value:
    """down(silu(gate(x)) * up(x)) on rows [N, D]."""
    gate = silu(g, g.linear(x, "gate_proj", width))  # [N, I]
    return g.linear(g.Mul(gate, g.linear(x, "up_proj", width)), "down_proj", _size(x.shape[-1]))


def inverse_frequencies(width: int, base: float) -> np.ndarray:
    """base^(-2i/width) for i = 0..width/2-1, float32 [width/2].

    The power is taken in float32, as the published implementations take it.
    """
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return (np.float32(1.0) / np.power(np.float32(base), exponent)).astype(np.float32)


@dataclass(frozen=True)
class Rotation:
    """cos and sin of the angles of one rotary part, [B, S, width/2] each, in the model's type."""

    cos: Value
    sin: Value
    width: int


def rotation(
    g: Graph, positions: Value, width: int, base: float, dtype: int, batch: Value
) -> Rotation:
    """Rotary table for positions [1, S] (float32), the same for all B sequences of a batch.

    Args:
        batch: int64 [1], B.
    """
    frequencies = g.constant(
        inverse_frequencies(width, base),
        f"rotary inverse frequencies, base {base:g}, width {width}",
    )
    angle = g.Mul(g.Unsqueeze(positions, [-1]), frequencies)  # [1, S, width/2]
    extent = g.Concat(batch, [1, 1], axis=0)
    dims = ["batch", positions.shape[-1], width // 2]
    cos = g.Expand(g.Cast(g.Cos(angle), to=dtype), extent, shape=dims)
    sin = g.Expand(g.Cast(g.Sin(angle), to=dtype), extent, shape=dims)
    return Rotation(cos, sin, width)


def rotate(g: Graph, x: Value, r: Rotation, *, interleaved: bool = False) -> Value:
    """Rotary embedding of x [B, H, S, width]: pairs (i, i + width/2), or (2i, 2i+1) if
    interleaved."""
    return g.RotaryEmbedding(x, r.cos, r.sin, interleaved=int(interleaved))


@dataclass(frozen=True)
class Rows:
    """Where the rows [N, D] of a graph come from: B sequences of S, N = B S.

    Attributes:
        batch, sequence: int64 [1].
        names: symbolic names of the two dimensions.
    """

    batch: Value
    sequence: Value
    names: tuple[str, str]


def rows_of(g: Graph, x: Value) -> tuple[Value, Rows]:
    """[B, S, D] as rows [B S, D], and what it takes to undo that."""
    shape = g.Shape(x)
    batch, sequence, _ = g.Split(shape, [1, 1, 1], axis=0, outputs=3)
    names = (str(x.shape[0]), str(x.shape[1]))
    rows = g.Reshape(x, [-1, _size(x.shape[-1])], shape=["rows", x.shape[-1]])
    return rows, Rows(batch, sequence, names)


def unrows(g: Graph, x: Value, rows: Rows, tail: list[int]) -> Value:
    """Rows [B S, ...] as [B, S, *tail]."""
    shape = g.Concat(rows.batch, rows.sequence, tail, axis=0)
    return g.Reshape(x, shape, shape=[*rows.names, *tail])


def attention(
    g: Graph, q: Value, k: Value, v: Value, *, scale: float, sequence: Value, bias: Value | None
) -> Value:
    """softmax(q k^T scale + bias) v with grouped heads; query head h uses key head h div (H/KV).

    The H/KV query heads of one key head are stacked as rows of one matrix product, so keys and
    values are never repeated. Softmax in float32. In 16 bits the scores are rounded before and
    after they are scaled, as the published implementations round them; in float32 the queries are
    scaled, which are fewer.

    Args:
        q: [B, H, S, hd]. k, v: [B, KV, T, hd].
        sequence: int64 [1], S.
        bias: float32, added to the scores: [S, T], or [B, 1, 1, S, T]; or None.
    Returns:
        [B, S, H hd] as rows [B S, H hd].
    """
    H, hd = _size(q.shape[1]), _size(q.shape[3])
    KV, T = _size(k.shape[1]), k.shape[2]
    G = H // KV
    q = g.Mul(q, scale) if q.dtype == FLOAT else q
    grouped = g.Reshape(q, [0, KV, -1, hd], shape=["batch", KV, None, hd])
    scores = g.MatMul(grouped, g.Transpose(k, perm=[0, 1, 3, 2]))  # [B, KV, G S, T]
    if scores.dtype != FLOAT:
        scores = g.Cast(g.Mul(g.Cast(scores, to=FLOAT), scale), to=scores.dtype)
        scores = g.Cast(scores, to=FLOAT)
    if bias is not None:
        split = g.Concat([0, KV, G], sequence, [-1], axis=0)
        scores = g.Reshape(scores, split, shape=["batch", KV, G, q.shape[2], T])
        scores = g.Add(scores, bias)
    weights = g.Softmax(scores, axis=-1)
    if bias is not None:
        merge = g.Concat([0, KV, -1], g.Shape(k, start=2, end=3), axis=0)
        weights = g.Reshape(weights, merge, shape=["batch", KV, None, T])
    weights = g.Cast(weights, to=v.dtype) if v.dtype != FLOAT else weights
    mixed = g.MatMul(weights, v)  # [B, KV, G S, hd]
    mixed = g.Reshape(mixed, [0, H, -1, hd], shape=["batch", H, q.shape[2], hd])
    return g.Reshape(g.Transpose(mixed, perm=[0, 2, 1, 3]), [-1, H * hd], shape=["rows", H * hd])


def block_causal_bias(g: Graph, t: Value, past: Value) -> Value:
    """0 where row i may see column j, -inf elsewhere, float32 [S, P + S].

    All P cached columns are seen. Inside the chunk, j <= i or t[j] == t[i]: text is causal, the
    tokens of one picture (one temporal index) see each other.

    Args:
        t: float32 [1, S], temporal position of each token of the chunk.
        past: int64 [1], P.
    """
    S = t.shape[1]
    same = g.Equal(g.Transpose(t, perm=[1, 0]), t)  # [S, S]
    order = g.Range(
        g.constant(np.int64(0)),
        g.Squeeze(g.Shape(t, start=1, end=2)),
        g.constant(np.int64(1)),
        shape=[S],
    )
    causal = g.GreaterOrEqual(g.Unsqueeze(order, [1]), g.Unsqueeze(order, [0]))
    seen = g.Or(same, causal)
    everything = g.Expand(
        g.constant(np.array(True)),
        g.Concat(g.Shape(t, start=1, end=2), past, axis=0),
        shape=[S, "past_sequence"],
    )
    allowed = g.Concat(everything, seen, axis=1, shape=[S, "total_sequence"])
    return g.Where(allowed, g.constant(np.float32(0)), g.constant(np.float32(-np.inf)))


def _size(dim: object) -> int:
    assert isinstance(dim, int), f"a fixed size is needed, not {dim!r}"
    return dim
