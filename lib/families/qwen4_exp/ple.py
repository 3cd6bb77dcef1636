"""Per-layer embedding of n-grams: token ids are hashed to rows of a large table.

n-gram orders 2 .. n with hp heads each; M = width of all rows of a token together.
Source: docs/qwen4-exp.md, "N-gram embedding".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from ...graph.builder import BFLOAT16, Graph, Value
from ...graph.fp8 import scale_values, table_rows
from .config import Text
from .ngram_table import hash_buffers, rows_of, shard_rows
from .numerics import causal_taps, flat, narrow, silu, stack, stream_norm, wide


@dataclass(frozen=True)
class Stored:
    """How the table is stored: dense in the model's type, or FP8 shards with one scale.

    Attributes:
        reading: of the scale: `exact` or `bf16` (graph/fp8.py).
    """

    fp8: bool = False
    reading: str = "exact"


def row_ids(g: Graph, ids: Value, context: Value, place: int, c: Text) -> tuple[Value, Value]:
    """Rows of the table for each token, int64 [B, S, heads], and the ids that the next call needs.

    An n-gram does not reach back over an eos, nor to before the history: eos stands there.

    Args:
        ids: int64 [B, S], eos at padding. context: int64 [B, n-1].
        place: which of the n-gram layers this is.
    """
    back = c.n - 1
    buffers = hash_buffers(c, place)
    multipliers = buffers["layer_multipliers"]
    sizes = np.array(buffers["ngram_heads_vocab_sizes"], np.int64)
    offsets = np.array(buffers["ngram_heads_offsets"], np.int64)
    history = g.Concat(context, ids, axis=1)  # [B, n-1+S]
    end = np.iinfo(np.int64).max
    eos = g.constant(np.int64(c.eos[0]))
    length = g.Shape(ids, start=1, end=2)
    mix = g.Mul(ids, g.constant(np.int64(multipliers[0])))
    cut = None
    parts = []
    for d in range(1, c.n):
        older = g.Slice(history, [back - d], g.Add(length, back - d), [1],
                        shape=["batch", "sequence"])  # fmt: skip
        ends = g.Equal(older, eos)
        cut = ends if cut is None else g.Or(cut, ends)
        token = g.Where(cut, eos, older)
        mix = g.BitwiseXor(mix, g.Mul(token, g.constant(np.int64(multipliers[d]))))
        heads = slice((d - 1) * c.hp, d * c.hp)
        row = g.Mod(g.Unsqueeze(mix, [2]), g.constant(sizes[heads], "sizes of n-gram heads"))
        parts.append(g.Add(row, g.constant(offsets[heads], "first rows of n-gram heads")))
    rows = g.Concat(*parts, axis=2) if len(parts) > 1 else parts[0]
    kept = g.Slice(history, [-back], [end], [1], shape=["batch", back])
    return rows, kept


def rows(g: Graph, ids: Value, place: int, stored: Stored, c: Text, dtype: int) -> Value:
    """The gathered rows of all heads, T [n, M]."""
    g = g.at("ple_embedding.ngram_embedding")
    height = rows_of(c, place)
    every = g.Reshape(ids, [-1])
    if not stored.fp8:
        table = g.parameter("weight", [height, c.W], dtype)
        found = g.Gather(table, every, axis=0)
    else:
        scale = g.parameter("weight_scale", [1], BFLOAT16)
        parts = [
            g.parameter(f"shard_{j}.weight", [count, c.W], TensorProto.FLOAT8E4M3FN)
            for j, count in enumerate(shard_rows(height, c.parts))
        ]
        found = table_rows(g, every, parts, scale_values(g, scale, "exact"), f"{g.scope}rows")
        if stored.reading == "bf16":
            found = g.Cast(found, to=BFLOAT16)
    return g.Reshape(narrow(g, found, dtype), [-1, c.M], shape=["rows", c.M])


def ple(
    g: Graph,
    x: Value,
    ids: Value,
    keep: Value,
    context: Value,
    conv_state: Value,
    shape: tuple[Value, Value],
    place: int,
    stored: Stored,
    c: Text,
) -> tuple[Value, Value, Value]:
    """Streams [n, N H] with the n-gram embedding added; the new context and convolution state.

    Args:
        ids: int64 [B, S], eos at padding.
        keep: float32 [n, 1, 1], 0 at padding, else 1.
        conv_state: T [B, N H, (kp-1) n].
    """
    picked, context = row_ids(g, ids, context, place, c)
    emb = rows(g, picked, place, stored, c, x.dtype)
    wide_streams = c.N * c.H
    key = stream_norm(g, stack(g, g.linear(emb, "key_proj", wide_streams), c.N), "norm_key",
                      c.N, c.eps)  # fmt: skip
    value = g.linear(emb, "value_proj", c.H)
    query = stream_norm(g, stack(g, x, c.N), "norm_query", c.N, c.eps)
    s = g.ReduceSum(wide(g, g.Mul(key, query)), [2], keepdims=1)
    s = narrow(g, g.Div(wide(g, narrow(g, s, x.dtype)), math.sqrt(c.H)), x.dtype)
    s = g.Mul(g.Sign(s), g.Sqrt(g.Max(g.Abs(s), _least(g, x.dtype))))
    gv = g.Mul(g.Sigmoid(s), g.Unsqueeze(value, [1]), shape=["rows", c.N, c.H])
    gn = stream_norm(g, gv, "norm_conv", c.N, c.eps)
    keep = narrow(g, keep, x.dtype)
    gv, gn = flat(g, g.Mul(gv, keep)), flat(g, g.Mul(gn, keep))
    to = g.Concat(*shape, [wide_streams], axis=0)
    gn = g.Reshape(gn, to, shape=["batch", "sequence", wide_streams])
    mixed, conv_state = causal_taps(g, conv_state, gn, "conv1d", c.kp, dilation=c.n)
    mixed = narrow(g, mixed, x.dtype)
    mixed = g.Reshape(silu(g, mixed), [-1, wide_streams], shape=["rows", wide_streams])
    return g.Add(x, g.Add(gv, mixed)), context, conv_state


def _least(g: Graph, dtype: int) -> Value:
    return g.constant(np.asarray(1e-6, helper.tensor_dtype_to_np_dtype(dtype)))
