"""The vision tower (understanding and generation have one each) and the two scalar embedders.

N patches of P x P pixels, T tokens of m x m patches, vh tower width, D hidden size.
Source: docs/neo-chat.md, "Vision tower" and "Generation input".
"""

from __future__ import annotations

import numpy as np

from ...graph.builder import FLOAT, INT64, Graph, Value
from ...graph.layers import rotate, rotation, silu
from .config import NeoChatConfig


def tower(g: Graph, rows: Value, x: Value, y: Value, c: NeoChatConfig) -> Value:
    """Patches to tokens: linear, GELU, 2-D rotary code, then one linear map of each m x m block.

    Args:
        rows: [N, 3 P P], each row (channel, row, column); N = T m m in token order: the m m patches
            of a token, row by row, are consecutive.
        x, y: float32 [1, N], column and row of each patch in its picture.
    Returns:
        [T, D].
    """
    g = g.at("embeddings")
    vh, mm = c.vh, c.m * c.m
    kernel = g.parameter("patch_embedding.weight", [vh, 3, c.P, c.P], rows.dtype)
    flat = g.at("patch_embedding").Reshape(kernel, [vh, 3 * c.P * c.P])
    h = g.Gemm(rows, flat, g.parameter("patch_embedding.bias", [vh], rows.dtype), transB=1)
    h = g.Gelu(h)  # [N, vh], exact erf form
    h = _place(g, h, x, y, c)
    h = g.Reshape(h, [-1, mm, vh], shape=["tokens", mm, vh])
    h = g.Reshape(g.Transpose(h, perm=[0, 2, 1]), [-1, vh * mm], shape=["tokens", vh * mm])
    kernel = g.parameter("dense_embedding.weight", [c.llm.D, vh, c.m, c.m], rows.dtype)
    flat = g.at("dense_embedding").Reshape(kernel, [c.llm.D, vh * mm])
    return g.Gemm(h, flat, g.parameter("dense_embedding.bias", [c.llm.D], rows.dtype), transB=1)


def _place(g: Graph, h: Value, x: Value, y: Value, c: NeoChatConfig) -> Value:
    """2-D rotary code of rows [N, vh]: the first half turns with x, the second with y.

    Interleaved pairs; computed in float32 and cast back.
    """
    one = g.constant(np.array([1], np.int64))
    halves = []
    wide = g.Cast(h, to=FLOAT) if h.dtype != FLOAT else h
    wide = g.Reshape(wide, [1, 1, -1, c.vh], shape=[1, 1, "patches", c.vh])
    for part, positions in zip(
        g.Split(wide, [c.vh // 2, c.vh // 2], axis=-1, outputs=2), (x, y), strict=True
    ):
        table = rotation(g, positions, c.vh // 2, c.rope_theta_vision, FLOAT, one)
        halves.append(rotate(g, part, table, interleaved=True))
    placed = g.Reshape(g.Concat(*halves, axis=-1), [-1, c.vh], shape=["patches", c.vh])
    return g.Cast(placed, to=h.dtype) if h.dtype != FLOAT else placed


def token_order(g: Graph, grid_hw: Value, c: NeoChatConfig) -> tuple[Value, Value, Value]:
    """For pictures with patch grids [images, 2] (rows, columns), patches in token order.

    Input rows come picture after picture, row-major in patches; the tower wants the m m patches of
    a token together. Everything here is integer arithmetic on the position number, so any number of
    pictures of any sizes runs in one graph without a loop.

    Returns:
        source row of each patch, int64 [N]; column x and row y in its picture, float32 [1, N].
    """
    m = c.m
    zero = g.constant(np.int64(0))
    one = g.constant(np.int64(1))
    gh, gw = g.Split(grid_hw, [1, 1], axis=1, outputs=2)  # [images, 1]
    counts = g.Squeeze(g.Mul(gh, gw), [1])  # patches of each picture
    ends = g.CumSum(counts, zero)
    total = g.ReduceSum(counts, keepdims=0)
    k = g.Range(zero, total, one, shape=["patches"])
    after = g.Cast(g.GreaterOrEqual(k, g.Unsqueeze(ends, [1])), to=INT64)  # [images, N]
    image = g.ReduceSum(after, [0], keepdims=0)
    start = g.Gather(g.Sub(ends, counts), image)
    width = g.Gather(g.Squeeze(gw, [1]), image)
    local = g.Sub(k, start)
    token, inside = g.Div(local, m * m), g.Mod(local, m * m)
    tw = g.Div(width, m)
    row = g.Add(g.Mul(g.Div(token, tw), m), g.Div(inside, m))
    column = g.Add(g.Mul(g.Mod(token, tw), m), g.Mod(inside, m))
    source = g.Add(start, g.Add(g.Mul(row, width), column))
    x = g.Unsqueeze(g.Cast(column, to=FLOAT), [0])
    y = g.Unsqueeze(g.Cast(row, to=FLOAT), [0])
    return source, x, y


def patchify(g: Graph, z: Value, c: NeoChatConfig) -> tuple[Value, Value, Value, Value]:
    """A batch of pictures z [B, 3, H, W] as patch rows in token order.

    Returns:
        rows [B L m m, 3 P P] as (channel, row, column); x, y float32 [1, B L m m]; int64 [1] B.
    """
    m, P, F = c.m, c.P, c.F
    shape = g.Shape(z)
    batch, _, H, W = g.Split(shape, [1, 1, 1, 1], axis=0, outputs=4)
    th, tw = g.Div(H, F), g.Div(W, F)
    # F must divide both sides: the Reshape below has no other way to be valid, so a wrong size
    # fails
    blocks = g.Concat(batch, [3], th, [m, P], tw, [m, P], axis=0)
    z = g.Reshape(z, blocks, shape=["batch", 3, "th", m, P, "tw", m, P])
    z = g.Transpose(z, perm=[0, 2, 5, 3, 6, 1, 4, 7])  # [B, th, tw, m, m, 3, P, P]
    rows = g.Reshape(z, [-1, 3 * P * P], shape=["patches", 3 * P * P])
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    tokens = g.Squeeze(g.Mul(th, tw))
    count = g.Mul(g.Mul(tokens, m * m), g.Squeeze(batch))
    k = g.Range(zero, count, one, shape=["patches"])
    token, inside = g.Mod(g.Div(k, m * m), tokens), g.Mod(k, m * m)
    row = g.Add(g.Mul(g.Div(token, tw), m), g.Div(inside, m))
    column = g.Add(g.Mul(g.Mod(token, tw), m), g.Mod(inside, m))
    x = g.Unsqueeze(g.Cast(column, to=FLOAT), [0])
    y = g.Unsqueeze(g.Cast(row, to=FLOAT), [0])
    return rows, x, y, batch


def sinusoid_frequencies(width: int = 256, period: float = 10000.0) -> np.ndarray:
    """exp(-ln(period) k / half) for k = 0..half-1, float32 [half], half = width / 2."""
    half = width // 2
    k = np.arange(half, dtype=np.float32)
    return np.exp(np.float32(-np.log(period)) * k / np.float32(half)).astype(np.float32)


def sinusoid(g: Graph, values: Value) -> Value:
    """[cos(f v), sin(f v)], cosines first: float32 [n] -> [n, 256]. v is used as it is."""
    f = g.constant(sinusoid_frequencies(), "sinusoid frequencies, width 256, period 10000")
    angle = g.Mul(g.Unsqueeze(values, [1]), f)  # [n, 128]
    return g.Concat(g.Cos(angle), g.Sin(angle), axis=-1)


def scalar_embedder(g: Graph, value: Value, c: NeoChatConfig, dtype: int) -> Value:
    """Linear(SiLU(Linear(sinusoid(v)))) of a scalar: float32 [1] -> [1, D]."""
    code = sinusoid(g, value)
    code = g.Cast(code, to=dtype) if dtype != FLOAT else code
    return g.linear(
        silu(g, g.linear(code, "mlp.0", c.llm.D, bias=True)), "mlp.2", c.llm.D, bias=True
    )
