"""The vision tower: patches of pictures to features of image tokens.

N patches, C width of the tower, F of its MLP, d = C / heads, m patches on a side of a merge block,
side: rows and columns of the table of positions. A frame is one time step of one picture; patches
attend within their frame. Rows come frame after frame, and inside a frame in merge blocks: m x m
patches in raster order, the blocks in raster order too.

Attention walks over tiles: up to `tile` queries of one frame against all keys of that frame. No
score between two frames is ever computed, and a tile holds at most TILE_SCORES of them for one
head, so that memory grows with the patches and not with their square. Measured (onnxruntime 1.31,
float32, one block of the published width, peak over what the model itself takes) against all
scores under a bias [N, N]: one picture of 4096 patches 1.2 s and 0.9 GiB, not 1.5 s and 4.4 GiB;
16 pictures of 256 patches 0.7 s and 33 MiB, not 1.3 s and 4.4 GiB; one of 16,384 patches 14 s and
1.1 GiB, where scores and bias alone would be 17 GiB. Smaller tiles take longer (19 s for a quarter
of TILE_SCORES).
Source: docs/qwen4-exp.md, "Vision tower".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...graph.builder import FLOAT, INT64, Graph, Value, WeightSource
from ...graph.layers import Rotation, attention, rotate, rotation

if TYPE_CHECKING:
    from .config import Vision

NORM_EPS = 1e-6
COLOURS = 3
TILE_SCORES = 1 << 22
"""Scores of a tile for one head: 16 MiB in float32, 256 queries of a picture of 2048 x 2048."""


def vision_encoder(
    c: Vision, H: int, weights: WeightSource, dtype: int, *, rounded: bool = False
) -> Graph:
    """pixel_values [N, 3 frames P P], image_grid_thw [images, 3] -> image_features [N / m^2, H].

    Grids are (frames, rows, columns) in patches. Rows of another number than the grids say, or
    sides that m does not divide, fail in the graph.

    Args:
        rounded: 16-bit arithmetic is spelled out for runtimes that have none (graph/builder.py).
    """
    g = Graph("vision_encoder", weights, rounded=rounded)
    width = COLOURS * c.frames * c.P * c.P
    pixels = g.input("pixel_values", dtype, ["patches", width])
    grids = g.input("image_grid_thw", INT64, ["images", 3])
    v = g.at("model.visual")
    places = token_order(v, grids, c)
    x = patch_embedding(v, rows_of(v, pixels, places), c)
    x = v.Add(x, table_positions(v, places, c, dtype))  # [N, C]
    r = rotary(v, places, c)
    tiles = tiling(v, places)
    for i in range(c.depth):
        b = v.at(f"blocks.{i}")
        x = b.Add(x, attend(b.at("attn"), layer_norm(b, x, "norm1"), r, tiles, c))
        x = b.Add(x, mlp(b.at("mlp"), layer_norm(b, x, "norm2"), c))
    g.output("image_features", merger(v.at("merger"), x, c, H), ["image_tokens", H])
    return g


@dataclass(frozen=True)
class Places:
    """Where each patch is.

    Attributes:
        frame: number of its frame among all frames, int64 [N].
        within: its number in its frame, int64 [N].
        lengths: patches of each frame, int64 [frames].
        row, column: its place in its picture, int64 [N].
        height, width: the sides of its picture in patches, int64 [N].
    """

    frame: Value
    within: Value
    lengths: Value
    row: Value
    column: Value
    height: Value
    width: Value


def runs(g: Graph, lengths: Value, name: str) -> tuple[Value, Value, Value]:
    """For runs of given lengths (all > 0), laid end to end: whose each element is.

    Returns:
        number of the run of each element and its number in that run, int64 [total]; the first
        element of each run, int64 [runs].
    """
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    starts = g.CumSum(lengths, zero, exclusive=1)
    total = g.ReduceSum(lengths, keepdims=1)  # [1]
    nothing = g.Expand(zero, total, shape=[name])
    marks = g.ScatterElements(nothing, starts, g.Expand(one, g.Shape(starts), shape=starts.shape))
    owner = g.Sub(g.CumSum(marks, zero), one)
    place = g.Range(zero, g.Squeeze(total, [0]), one, shape=[name])
    return owner, g.Sub(place, g.Gather(starts, owner)), starts


def token_order(g: Graph, grids: Value, c: Vision) -> Places:
    """The place of each patch, by integer arithmetic on its number: no loop over pictures.

    Patches are counted in merge blocks: a side that m does not divide gives fewer places than the
    picture has rows, which `rows_of` then refuses.
    """
    m = c.merge
    t, h, w = g.Split(grids, [1, 1, 1], axis=1, outputs=3)  # [images, 1]
    t, h, w = (g.Squeeze(n, [1]) for n in (t, h, w))
    picture, _, _ = runs(g, t, "frames")
    blocks = g.Mul(g.Div(h, m), g.Div(w, m))
    lengths = g.Gather(g.Mul(blocks, m * m), picture)  # [frames]
    frame, within, _ = runs(g, lengths, "rows")
    picture = g.Gather(picture, frame)  # [N]
    height, width = g.Gather(h, picture), g.Gather(w, picture)
    block, inside = g.Div(within, m * m), g.Mod(within, m * m)
    across = g.Div(width, m)
    row = g.Add(g.Mul(g.Div(block, across), m), g.Div(inside, m))
    column = g.Add(g.Mul(g.Mod(block, across), m), g.Mod(inside, m))
    return Places(frame, within, lengths, row, column, height, width)


def rows_of(g: Graph, pixels: Value, p: Places) -> Value:
    """The rows, whose number must be that of the places: this Reshape fails, and says both.

    With allowzero 0 the optimiser of onnxruntime 1.31 turns the one size that is not a constant
    into -1, and the Reshape takes any number.
    """
    width = pixels.shape[1]
    shape = g.Concat(g.Shape(p.frame), [width], axis=0)
    guard = g.at("patches_of_the_grids")
    return guard.Reshape(pixels, shape, allowzero=1, shape=["rows", width])


def patch_embedding(g: Graph, pixels: Value, c: Vision) -> Value:
    """W x + b with the flattened kernel [C, 3, frames, P, P]: [N, 3 frames P P] -> [N, C]."""
    g = g.at("patch_embed.proj")
    kernel = g.parameter("weight", [c.C, COLOURS, c.frames, c.P, c.P], pixels.dtype)
    flat = g.Reshape(kernel, [c.C, COLOURS * c.frames * c.P * c.P])
    return g.Gemm(pixels, flat, g.parameter("bias", [c.C], pixels.dtype), transB=1)


def table_positions(g: Graph, p: Places, c: Vision, dtype: int) -> Value:
    """The table of side x side learned positions, stretched over each picture: [N, C].

    Row i of h is at i (side - 1) / (h - 1) of the table, so that the corners meet; between the rows
    around it the weights are linear, in float32. The place is split into whole and fraction by
    integer division, which has no rounding. Columns alike.
    """
    g = g.at("pos_embed")
    table = g.parameter("weight", [c.side * c.side, c.C], dtype)
    rows, columns = along(g, p.row, p.height, c), along(g, p.column, p.width, c)
    total = None
    for row, row_share in rows:
        for column, column_share in columns:
            corner = g.Gather(table, g.Add(g.Mul(row, c.side), column), axis=0)  # [N, C]
            share = g.Unsqueeze(g.Mul(row_share, column_share), [1])
            part = g.Mul(_wide(g, corner), share)
            total = part if total is None else g.Add(total, part)
    assert total is not None
    return _narrow(g, total, dtype)


def along(g: Graph, at: Value, count: Value, c: Vision) -> list[tuple[Value, Value]]:
    """The two lines of the table around line `at` of `count`, and the share of each, float32."""
    steps = g.Max(g.Sub(count, 1), g.constant(np.int64(1)))
    scaled = g.Mul(at, c.side - 1)
    low = g.Div(scaled, steps)
    high = g.Min(g.Add(low, 1), g.constant(np.int64(c.side - 1)))
    share = g.Div(g.Cast(g.Mod(scaled, steps), to=FLOAT), g.Cast(steps, to=FLOAT))
    return [(low, g.Sub(g.constant(np.float32(1)), share)), (high, share)]


def rotary(g: Graph, p: Places, c: Vision) -> Rotation:
    """Angles of a head of d: d/4 frequencies of the row, then as many of the column, [1, N, d/2].

    inv_freq_j = theta^(-2j / (d/2)), float32.
    """
    d = c.C // c.heads
    one = g.constant(np.array([1], np.int64))
    row, column = (
        rotation(g, g.Unsqueeze(g.Cast(n, to=FLOAT), [0]), d // 2, c.theta, FLOAT, one)
        for n in (p.row, p.column)
    )
    cos, sin = g.Concat(row.cos, column.cos, axis=-1), g.Concat(row.sin, column.sin, axis=-1)
    return Rotation(cos, sin, d)


@dataclass(frozen=True)
class Tiles:
    """Runs of queries that are answered together.

    Attributes:
        queries: how many a tile has, int64 [].
        first: first query of each tile, [tiles, 1].
        start, end: the keys of its frame, [tiles, 1] each.
        slot: number of each patch among the queries of all tiles, [N].
    """

    queries: Value
    first: Value
    start: Value
    end: Value
    slot: Value


def tiling(g: Graph, p: Places) -> Tiles:
    """Frames cut into tiles of one size, the last one of a frame filled up.

    A frame is one tile unless its scores are more than TILE_SCORES.
    """
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    longest = g.ReduceMax(p.lengths, keepdims=0)
    fits = g.Div(g.constant(np.int64(TILE_SCORES)), longest)
    queries = g.Min(longest, g.Max(fits, one))
    counts = g.Div(g.Sub(g.Add(p.lengths, queries), one), queries)  # [frames], rounded up
    frame, within, first_tile = runs(g, counts, "tiles")
    starts = g.CumSum(p.lengths, zero, exclusive=1)
    start = g.Gather(starts, frame)
    first = g.Add(start, g.Mul(within, queries))
    end = g.Add(start, g.Gather(p.lengths, frame))
    slot = g.Add(g.Mul(g.Gather(first_tile, p.frame), queries), p.within)
    first, start, end = (g.Unsqueeze(n, [1]) for n in (first, start, end))
    return Tiles(queries, first, start, end, slot)


def attend(g: Graph, x: Value, r: Rotation, tiles: Tiles, c: Vision) -> Value:
    """proj(softmax(q k^T / sqrt(d)) v), each patch over its own frame: [N, C] -> [N, C]."""
    d = c.C // c.heads
    qkv = g.linear(x, "qkv", 3 * c.C, bias=True)  # rows: all q, all k, all v
    qkv = g.Reshape(qkv, [1, -1, 3, c.heads, d], shape=[1, "rows", 3, c.heads, d])
    qkv = g.Transpose(qkv, perm=[2, 0, 3, 1, 4])  # [3, 1, heads, N, d]
    q, k, v = (
        g.Squeeze(part, [0], shape=[1, c.heads, "rows", d])
        for part in g.Split(qkv, [1, 1, 1], axis=0, outputs=3)
    )
    q, k = (_narrow(g, rotate(g, _wide(g, n), r), x.dtype) for n in (q, k))
    body = g.body("tile")
    first, start, end = (body.input(f"{g.scope}{n}", INT64, [1]) for n in ("first", "start", "end"))
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    order = body.Range(zero, tiles.queries, one, shape=["queries"])
    # what fills up the last tile of a frame is not read; it has to be a row that exists
    last = body.Sub(body.Shape(q, start=2, end=3), one)
    mine = body.Gather(q, body.Min(body.Add(order, first), last), axis=2)  # [1, heads, queries, d]
    keys, values = (body.Slice(n, start, end, [2], shape=[1, c.heads, "frame", d]) for n in (k, v))
    sequence = body.Unsqueeze(tiles.queries, [0])
    mixed = attention(
        body, mine, keys, values, scale=d**-0.5, sequence=sequence, bias=None
    )  # [queries, C]
    body.output(f"{g.scope}mixed", mixed, ["queries", c.C])
    y = g.op("Scan", tiles.first, tiles.start, tiles.end, body=body, num_scan_inputs=3)
    y = g.Gather(g.Reshape(y, [-1, c.C], shape=["slots", c.C]), tiles.slot, axis=0)  # [N, C]
    return g.linear(y, "proj", c.C, bias=True)


def mlp(g: Graph, x: Value, c: Vision) -> Value:
    """fc2(gelu(fc1(x))), gelu in its tanh form."""
    h = gelu(g, g.linear(x, "linear_fc1", c.F, bias=True), "tanh")  # [N, F]
    return g.linear(h, "linear_fc2", c.C, bias=True)


def merger(g: Graph, x: Value, c: Vision, H: int) -> Value:
    """fc2(gelu(fc1(m^2 consecutive patches beside each other))), gelu exact: -> [N / m^2, H]."""
    width = c.C * c.merge * c.merge
    x = layer_norm(g, x, "norm")
    x = g.Reshape(x, [-1, width], shape=["image_tokens", width])
    h = gelu(g, g.linear(x, "linear_fc1", width, bias=True), "none")
    return g.linear(h, "linear_fc2", H, bias=True)


def layer_norm(g: Graph, x: Value, name: str) -> Value:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, inside in float32."""
    width = x.shape[-1]
    assert isinstance(width, int)
    weight, bias = (g.parameter(f"{name}.{n}", [width], x.dtype) for n in ("weight", "bias"))
    return g.at(name).LayerNormalization(x, weight, bias, axis=-1, epsilon=NORM_EPS)


def gelu(g: Graph, x: Value, approximate: str) -> Value:
    """x Phi(x) in float32, exact ("none") or with the tanh form of Phi ("tanh")."""
    return _narrow(g, g.Gelu(_wide(g, x), approximate=approximate), x.dtype)


def _wide(g: Graph, x: Value) -> Value:
    return g.Cast(x, to=FLOAT) if x.dtype != FLOAT else x


def _narrow(g: Graph, x: Value, dtype: int) -> Value:
    return g.Cast(x, to=dtype) if dtype != FLOAT else x
