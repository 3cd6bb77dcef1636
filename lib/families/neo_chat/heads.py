"""The pixel heads: normalised hidden states of the generated tokens to the predicted clean picture
x0.

L = th tw tokens, F pixels of a token side, D hidden size. Source: docs/neo-chat.md, "Pixel heads".
"""

from __future__ import annotations

from ...graph.builder import Graph, Value
from ...graph.layers import Rows
from .config import NeoChatConfig


def conv_decoder(g: Graph, rows: Value, r: Rows, grid: Value, c: NeoChatConfig, c1: int) -> Value:
    """Shuffle(2), conv 3x3, GELU, shuffle(2), conv 3x3, shuffle(8): rows [B L, D] -> [B, 3, H, W].

    Args:
        grid: int64 [2], (th, tw).
        c1: output channels of the first convolution, read from the checkpoint.
    """
    D = c.llm.D
    picture = g.Concat(r.batch, grid, [D], axis=0)
    h = g.Reshape(rows, picture, shape=["batch", "th", "tw", D])
    h = g.Transpose(h, perm=[0, 3, 1, 2])  # [B, D, th, tw]
    h = g.DepthToSpace(h, blocksize=2, mode="CRD")
    h = g.Gelu(_conv3(g, h, "conv1", c1, D // 4))
    h = g.DepthToSpace(h, blocksize=2, mode="CRD")
    h = _conv3(g, h, "conv2", 192, c1 // 4)
    return g.DepthToSpace(h, blocksize=8, mode="CRD")


def _conv3(g: Graph, x: Value, name: str, out: int, inner: int) -> Value:
    weight = g.parameter(f"{name}.weight", [out, inner, 3, 3], x.dtype)
    bias = g.parameter(f"{name}.bias", [out], x.dtype)
    return g.at(name).Conv(x, weight, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def mlp_head(g: Graph, rows: Value, r: Rows, grid: Value, c: NeoChatConfig, width: int) -> Value:
    """Linear, GELU, linear: rows [B L, D] -> [B, 3, H, W].

    A token's 3 F F numbers are ordered (row, column, channel), channel fastest.

    Args:
        grid: int64 [2], (th, tw).
        width: inner width, read from the checkpoint.
    """
    F = c.F
    h = g.Gelu(g.linear(rows, "0", width, bias=True))
    h = g.linear(h, "2", 3 * F * F, bias=True)
    h = g.Reshape(
        h, g.Concat(r.batch, grid, [F, F, 3], axis=0), shape=["batch", "th", "tw", F, F, 3]
    )
    h = g.Transpose(h, perm=[0, 5, 1, 3, 2, 4])  # [B, 3, th, F, tw, F]
    th, tw = g.Split(grid, [1, 1], axis=0, outputs=2)
    picture = g.Concat(r.batch, [3], g.Mul(th, F), g.Mul(tw, F), axis=0)
    return g.Reshape(h, picture, shape=["batch", 3, "height", "width"])
