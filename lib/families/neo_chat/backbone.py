"""The mixture of transformers: one layer, used with the weights of understanding ("") or
generation.

D hidden size, H/KV query/key heads, hd head size, S tokens, P cached tokens, B sequences.
Source: docs/neo-chat.md, "Backbone".
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.builder import FLOAT, INT64, Dim, Graph, Value
from ...graph.experts import sparse_mlp
from ...graph.layers import (
    Rotation,
    Rows,
    attention,
    block_causal_bias,
    gated_mlp,
    rms_norm,
    rotate,
    rotation,
    rows_of,
    unrows,
)
from .config import Backbone

UNDERSTANDING, GENERATION = "", "_mot_gen"
"""The suffix of a module's name says whose weights it has."""


@dataclass(frozen=True)
class Axes:
    """Rotary tables of the three axes: time on half a head, height and width on a quarter each."""

    t: Rotation
    h: Rotation
    w: Rotation


def axes(g: Graph, positions: Value, c: Backbone, dtype: int, batch: Value) -> tuple[Axes, Value]:
    """Rotary tables for positions [3, S] (time, row, column), and the time row as float32 [1,
    S]."""
    p = g.Cast(positions, to=FLOAT)
    t, h, w = g.Split(p, [1, 1, 1], axis=0, outputs=3)  # [1, S] each
    return Axes(
        rotation(g, t, c.hd // 2, c.rope_theta, dtype, batch),
        rotation(g, h, c.hd // 4, c.rope_theta_hw, dtype, batch),
        rotation(g, w, c.hd // 4, c.rope_theta_hw, dtype, batch),
    ), t


def place(g: Graph, x: Value, name: str, c: Backbone, axes: Axes) -> Value:
    """Norm and rotation of query or key heads x [B, n, S, hd].

    The temporal half is normalised with `NAME`, the spatial half with `NAME_hw`; then each part is
    rotated by its own axis.
    """
    n, S = x.shape[1], x.shape[2]
    suffix = UNDERSTANDING
    if name.endswith(GENERATION):
        name, suffix = name.removesuffix(GENERATION), GENERATION
    T, X = g.Split(x, [c.hd // 2, c.hd // 2], axis=-1, outputs=2)
    T = rotate(g, rms_norm(g, T, f"{name}{suffix}", c.eps), axes.t)
    X = rms_norm(g, X, f"{name}_hw{suffix}", c.eps)
    Y, Z = g.Split(X, [c.hd // 4, c.hd // 4], axis=-1, outputs=2)
    parts = [T, rotate(g, Y, axes.h), rotate(g, Z, axes.w)]
    return g.Concat(*parts, axis=-1, shape=["batch", n, S, c.hd])


def heads(g: Graph, x: Value, name: str, n: int, rows: Rows, c: Backbone) -> Value:
    """A projection of rows [B S, D] to n heads, [B, n, S, hd]."""
    projected = g.linear(x, name, n * c.hd, bias=c.attention_bias)
    return g.Transpose(unrows(g, projected, rows, [n, c.hd]), perm=[0, 2, 1, 3])


def self_attention(
    g: Graph,
    x: Value,
    past: tuple[Value, Value],
    suffix: str,
    c: Backbone,
    axes: Axes,
    rows: Rows,
    bias: Value | None,
) -> tuple[Value, Value, Value]:
    """Attention of rows [B S, D] over the past and themselves; also the grown keys and values."""
    q = place(g, heads(g, x, f"q_proj{suffix}", c.H, rows, c), f"q_norm{suffix}", c, axes)
    k = place(g, heads(g, x, f"k_proj{suffix}", c.KV, rows, c), f"k_norm{suffix}", c, axes)
    v = heads(g, x, f"v_proj{suffix}", c.KV, rows, c)
    grown = ["batch", c.KV, "total_sequence", c.hd]
    k = g.Concat(past[0], k, axis=2, shape=grown)
    v = g.Concat(past[1], v, axis=2, shape=grown)
    mixed = attention(g, q, k, v, scale=c.hd**-0.5, sequence=rows.sequence, bias=bias)
    return g.linear(mixed, f"o_proj{suffix}", c.D, bias=c.attention_bias), k, v


def mlp(g: Graph, x: Value, index: int, suffix: str, c: Backbone) -> Value:
    """The MLP of one side of a layer on rows [B S, D]: dense, or a mixture of experts."""
    g = g.at(f"mlp{suffix}")
    e = c.mixture(index, suffix)
    if e is None:
        return gated_mlp(g, x, c.I)
    return sparse_mlp(g, x, e.E, e.k, e.I, c.renormalise)


def layer(
    g: Graph,
    x: Value,
    past: tuple[Value, Value],
    index: int,
    suffix: str,
    c: Backbone,
    axes: Axes,
    rows: Rows,
    bias: Value | None,
) -> tuple[Value, Value, Value]:
    """x += attention(norm(x)); x += mlp(norm(x)), on rows [B S, D]."""
    normed = rms_norm(g, x, f"input_layernorm{suffix}", c.eps)
    mixed, k, v = self_attention(g.at("self_attn"), normed, past, suffix, c, axes, rows, bias)
    x = g.Add(x, mixed)
    normed = rms_norm(g, x, f"post_attention_layernorm{suffix}", c.eps)
    return g.Add(x, mlp(g, normed, index, suffix, c)), k, v


def stack(
    g: Graph, x: Value, positions: Value, suffix: str, c: Backbone, *, mask: bool
) -> tuple[Value, Rows, list[tuple[Value, Value]]]:
    """All layers and the final norm of one branch, with a past of any length for each layer.

    Adds the inputs `past.I.key`, `past.I.value` [B, KV, P, hd].

    Args:
        x: [B, S, D].
        mask: block-causal inside the chunk; else every token sees every other.
    Returns:
        normalised rows [B S, D]; how to undo the rows; keys and values of each layer, past
        included.
    """
    cached: list[Dim] = ["batch", c.KV, "past_sequence", c.hd]
    pasts = [
        (g.input(f"past.{i}.key", x.dtype, cached), g.input(f"past.{i}.value", x.dtype, cached))
        for i in range(c.Nl)
    ]
    h, rows = rows_of(g, x)
    tables, t = axes(g, positions, c, x.dtype, rows.batch)
    bias = block_causal_bias(g, t, g.Shape(pasts[0][0], start=2, end=3)) if mask else None
    model = g.at("language_model.model")
    grown = []
    for i, past in enumerate(pasts):
        h, k, v = layer(model.at(f"layers.{i}"), h, past, i, suffix, c, tables, rows, bias)
        grown.append((k, v))
    return rms_norm(model, h, f"norm{suffix}", c.eps), rows, grown


def positions_input(g: Graph, sequence: str) -> Value:
    """The input `position_ids` int64 [3, S]: time, row and column of each token."""
    return g.input("position_ids", INT64, [3, sequence])
