"""Rotary embedding over three position channels, interleaved by frequency.

Angle j takes its position from the height channel for j = 1, 4, 7, ... below 3 sections[1], from
the width channel for j = 2, 5, 8, ... below 3 sections[2], and from the temporal one otherwise.
Source: docs/qwen4-exp.md, "Rotary embedding".
"""

from __future__ import annotations

import numpy as np

from ...graph.builder import FLOAT, Graph, Value
from ...graph.layers import Rotation, inverse_frequencies
from .config import Text


def channels(c: Text) -> np.ndarray:
    """Which of the channels temporal, height, width each of the rd/2 angles takes: int64 [rd/2]."""
    picked = np.zeros(c.rd // 2, np.int64)
    for channel in (1, 2):
        picked[channel : 3 * c.sections[channel] : 3] = channel
    return picked


def rotation(g: Graph, positions: Value, c: Text, dtype: int) -> Rotation:
    """cos and sin for positions int64 [3, B, S] (temporal, height, width): [B, S, rd/2] in T."""
    p = g.Transpose(g.Cast(positions, to=FLOAT), perm=[1, 2, 0])  # [B, S, 3]
    picked = g.Gather(p, g.constant(channels(c), "position channel of each angle"), axis=2)
    frequencies = g.constant(
        inverse_frequencies(c.rd, c.theta), f"rotary inverse frequencies, base {c.theta:g}"
    )
    angle = g.Mul(picked, frequencies)
    cos, sin = g.Cos(angle), g.Sin(angle)
    if dtype != FLOAT:
        cos, sin = g.Cast(cos, to=dtype), g.Cast(sin, to=dtype)
    return Rotation(cos, sin, c.rd)


def rotate(g: Graph, x: Value, r: Rotation) -> Value:
    """The first rd features of heads [B, n, S, width] rotated in halves; the rest passes.

    In 16 bits each product is rounded before they are added, as the published implementation does.
    """
    width, half = x.shape[-1], r.width // 2
    assert isinstance(width, int)
    if x.dtype == FLOAT:
        extent = 0 if width == r.width else r.width
        return g.RotaryEmbedding(x, r.cos, r.sin, rotary_embedding_dim=extent)
    rest = [width - r.width] if width > r.width else []
    first, second, *passed = g.Split(x, [half, half, *rest], axis=3, outputs=2 + len(rest))
    turned = g.Concat(g.Neg(second), first, axis=3)
    cos, sin = (g.Unsqueeze(g.Concat(t, t, axis=2), [1]) for t in (r.cos, r.sin))
    both = g.Concat(first, second, axis=3)
    y = g.Add(g.Mul(both, cos), g.Mul(turned, sin), shape=[*x.shape[:3], r.width])
    return g.Concat(y, *passed, axis=3) if passed else y
