"""Arithmetic that every part of the decoder uses: where float32 is taken and where it is left.

n rows (B S of them), N residual streams, H hidden size, T the type of the model.
Source: docs/qwen4-exp.md, "Decoder".
"""

from __future__ import annotations

import numpy as np

from ...graph.builder import FLOAT, Graph, Value


def wide(g: Graph, x: Value) -> Value:
    """x as float32."""
    return x if x.dtype == FLOAT else g.Cast(x, to=FLOAT)


def narrow(g: Graph, x: Value, dtype: int) -> Value:
    """x in the model's type."""
    return x if x.dtype == dtype else g.Cast(x, to=dtype)


def silu(g: Graph, x: Value) -> Value:
    """x sigmoid(x), in float32 and rounded once."""
    y = wide(g, x)
    return narrow(g, g.Mul(y, g.Sigmoid(y)), x.dtype)


def exact_silu(g: Graph, x: Value) -> Value:
    """x / (1 + exp(-x)), in float32 and rounded once.

    The quotient has the true tail for large negative x, which a runtime's clamped sigmoid has not.
    """
    y = wide(g, x)
    return narrow(g, g.Div(y, g.Add(g.Exp(g.Neg(y)), 1.0)), x.dtype)


def centred_norm(g: Graph, x: Value, name: str, eps: float) -> Value:
    """v / sqrt(mean(v^2) + eps) * (1 + w) over the last axis: float32 inside, then T."""
    width = x.shape[-1]
    assert isinstance(width, int)
    weight = g.Add(wide(g, g.parameter(f"{name}.weight", [width], x.dtype)), 1.0)
    y = g.at(name).RMSNormalization(wide(g, x), weight, axis=-1, epsilon=eps)
    return narrow(g, y, x.dtype)


def stream_norm(g: Graph, x: Value, name: str, streams: int, eps: float) -> Value:
    """The same for each of N streams by itself, with a weight of length N H: [n, N, H]."""
    width = x.shape[-1]
    assert isinstance(width, int)
    weight = g.parameter(f"{name}.weight", [streams * width], x.dtype)
    weight = g.Reshape(g.Add(wide(g, weight), 1.0), [streams, width])
    one = g.constant(np.ones(width, np.float32))
    y = g.at(name).RMSNormalization(wide(g, x), one, axis=-1, epsilon=eps)
    return narrow(g, g.Mul(y, weight), x.dtype)


def stack(g: Graph, x: Value, streams: int) -> Value:
    """Rows [n, N H] as [n, N, H]."""
    width = x.shape[-1]
    assert isinstance(width, int)
    return g.Reshape(x, [-1, streams, width // streams], shape=["rows", streams, width // streams])


def flat(g: Graph, x: Value) -> Value:
    """[n, a, b] as rows [n, a b]."""
    a, b = x.shape[1], x.shape[2]
    assert isinstance(a, int) and isinstance(b, int)
    return g.Reshape(x, [-1, a * b], shape=["rows", a * b])


def causal_taps(
    g: Graph, past: Value, x: Value, name: str, taps: int, dilation: int = 1
) -> tuple[Value, Value]:
    """Depthwise causal convolution without bias, as one multiply-add for each tap, and its state.

    y_t = sum_j w_j u_{t - (k-1-j) dilation}, in float32; u is the cached columns, then x.

    Args:
        past: [B, C, columns], columns >= (k - 1) dilation.
        x: [B, S, C].
    Returns:
        y, float32 [B, S, C]; the last `columns` columns of u, [B, C, columns].
    """
    channels, columns = past.shape[1], past.shape[2]
    assert isinstance(channels, int) and isinstance(columns, int)
    u = g.Concat(g.Transpose(past, perm=[0, 2, 1]), x, axis=1)  # [B, columns + S, C]
    weight = g.parameter(f"{name}.weight", [channels, 1, taps], x.dtype)
    rows = g.Transpose(g.Squeeze(wide(g, weight), [1]), perm=[1, 0])  # [k, C]
    first = columns - (taps - 1) * dilation
    length = g.Shape(x, start=1, end=2)
    dims = ["batch", "sequence", channels]
    y = None
    for j in range(taps):
        start = first + j * dilation
        part = g.Slice(u, [start], g.Add(length, start), [1], shape=dims)
        part = g.Mul(wide(g, part), g.Gather(rows, [j], axis=0))
        y = part if y is None else g.Add(y, part)
    assert y is not None
    # counted from the front: there may be no column at all, and -0 is the first one
    kept = g.Slice(u, length, [np.iinfo(np.int64).max], [1], shape=["batch", columns, channels])
    return y, g.Transpose(kept, perm=[0, 2, 1])
