"""FP8 codes and their scales as graphs of standard operators: the stored bytes stay as they are.

Both lowerings of a block-scaled matrix are the same numbers, bit for bit:

    blocked   Cast, Gather, DequantizeLinear(block_size): three nodes, any shape
    tiles     each block becomes a row: (Pad), Reshape, Transpose, Reshape, DequantizeLinear on
              axis 0, and back (Slice): for runtimes without block_size. FP8 Pad has no kernel on
              CPU, so a matrix with partial blocks runs there in the other form alone.

Two readings of a scale: `exact` widens it to float32 and gives float32 values, code * scale;
`bf16` hands BF16 scales to DequantizeLinear as they are stored and gives BF16 values, for which
ONNX Runtime 1.31 has no CPU kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from .builder import BFLOAT16, FLOAT, INT64, Graph, Value

OPSET = 21
"""The first in which Reshape, Transpose and Pad take FP8, and DequantizeLinear a block size."""
LOWERINGS = ("blocked", "tiles")
READINGS = ("exact", "bf16")


def scale_values(g: Graph, scale: Value, reading: str) -> Value:
    """A stored scale as DequantizeLinear takes it, of the same shape.

    UINT8 scales are exponents (E8M0): 2^(byte - 127), looked up, which is exact.
    """
    if scale.dtype == TensorProto.UINT8:
        powers = np.full(256, np.nan, np.float32)
        powers[:255] = np.ldexp(1.0, np.arange(255) - 127)
        table = g.constant(powers, "2^(byte - 127), values of E8M0")
        return g.Gather(table, g.Cast(scale, to=TensorProto.INT32))
    if reading == "bf16" or scale.dtype == FLOAT:
        return scale
    return g.Cast(scale, to=FLOAT)


def unscaled(g: Graph, codes: Value, reading: str, name: str) -> Value:
    """Codes that are their own values."""
    return g.op("Cast", codes, name=name, to=BFLOAT16 if reading == "bf16" else FLOAT)


def per_tensor(g: Graph, codes: Value, scale: Value, name: str | None = None) -> Value:
    """One scale for all codes."""
    if scale.shape:
        scale = g.Reshape(scale, _shape(()))
    return g.op("DequantizeLinear", codes, scale, name=name)


def per_part(g: Graph, codes: Value, scale: Value, parts: int, name: str) -> Value:
    """One scale for each of `parts` consecutive runs of codes: rows, matrices of a stack."""
    shape = _known(codes)
    scale = g.Reshape(scale, [parts]) if scale.shape != (parts,) else scale
    if shape[:1] == (parts,):
        return g.op("DequantizeLinear", codes, scale, name=name, axis=0)
    rows = g.Reshape(codes, [parts, math.prod(shape) // parts])
    dense = g.DequantizeLinear(rows, scale, axis=0)
    return g.op("Reshape", dense, _shape(shape), name=name)


def blocked(g: Graph, codes: Value, scale: Value, block: tuple[int, int], name: str) -> Value:
    """Blocks of [..., R, C] with a grid [..., Br, Bc]: the grid's rows repeated to R, then
    DequantizeLinear along the last axis, whose last block may be a partial one."""
    shape = _known(codes)
    axis = len(shape) - 2
    if block[0] > 1:
        owners = (np.arange(shape[-2]) // block[0]).astype(np.int32)
        rows = g.constant(owners, "row of blocks of each row")
        scale = g.Gather(scale, rows, axis=axis)  # [..., R, Bc]
    return g.op("DequantizeLinear", codes, scale, name=name, axis=axis + 1, block_size=block[1])


def tiles(g: Graph, codes: Value, scale: Value, block: tuple[int, int], name: str) -> Value:
    """The same with each block laid out as a row of [blocks, elements], one scale a row."""
    shape = _known(codes)
    lead, (rows, columns) = shape[:-2], shape[-2:]
    down, across = -(-rows // block[0]), -(-columns // block[1])
    padded = (*lead, down * block[0], across * block[1])
    x = codes
    if padded != shape:
        zeros = [0] * (2 * len(shape) - 2)
        x = g.Pad(x, [*zeros, padded[-2] - rows, padded[-1] - columns])
    split = (*lead, down, block[0], across, block[1])
    n = len(lead)
    order = [*range(n), n, n + 2, n + 1, n + 3]  # its own inverse
    x = g.Transpose(g.Reshape(x, _shape(split)), perm=order)  # [..., Br, Bc, br, bc]
    count = math.prod(lead) * down * across
    x = g.Reshape(x, [count, block[0] * block[1]])
    x = g.DequantizeLinear(x, g.Reshape(scale, [count]), axis=0)
    x = g.Reshape(x, _shape((*lead, down, across, *block)))
    x = g.Transpose(x, perm=order)
    if padded == shape:
        return g.op("Reshape", x, _shape(shape), name=name)
    x = g.Reshape(x, _shape(padded))
    return g.op("Slice", x, [0, 0], [rows, columns], [n, n + 1], name=name)


def table_rows(g: Graph, ids: Value, shards: Sequence[Value], scale: Value, name: str) -> Value:
    """Rows of a table [rows, W] that is stored in shards of FP8 codes with one scale: [N, W].

    Each shard is dequantised and then gathered from, since Gather takes no FP8. The scale of a
    shard waits for the rows gathered from the one before it, so that one dense shard is alive at a
    time, in whatever order a runtime likes to work. Rows of other shards are masked: what a shard
    does not have is taken from what was found before it. An id outside the table fails in a Gather.
    A zero may lose its sign: Where of ONNX Runtime 1.31 does not keep it (nor does a sum).

    Args:
        ids: INT64 [N].
        scale: one value, as `scale_values` gives it.
    """
    total, width = sum(_known(s)[0] for s in shards), _known(shards[0])[1]
    one = g.Reshape(scale, _shape(())) if scale.shape else scale
    zero = np.zeros((1, width), np.float32)
    blank = g.Cast(zero, to=BFLOAT16) if one.dtype == BFLOAT16 else g.constant(zero)
    known = g.And(g.GreaterOrEqual(ids, 0), g.Less(ids, total))
    found = g.Gather(blank, g.Where(known, 0, 1), axis=0)  # one row is there: 1 is out of bounds
    before, start = ids, 0
    for i, codes in enumerate(shards):
        h = g.at(f"shard_{i}")
        height = _known(codes)[0]
        # a sum of "x < x" is zero, and known only when x is
        wait = h.ReduceSum(h.Cast(h.Less(before, before), to=one.dtype), keepdims=0)
        dense = h.DequantizeLinear(codes, h.Sub(one, wait))  # [height, W]
        local = h.Sub(ids, start)
        inside = h.And(h.GreaterOrEqual(local, 0), h.Less(local, height))  # [N]
        before = h.Gather(dense, h.Where(inside, local, 0), axis=0)  # [N, W]
        last = name if i == len(shards) - 1 else None
        found = h.op("Where", h.Unsqueeze(inside, [1]), before, found, name=last)
        start += height
    return found


def dequantized(
    g: Graph,
    codes: Value,
    scale: Value | None,
    form: Any,
    *,
    lowering: str,
    reading: str,
    name: str,
) -> Value:
    """The values of an FP8 tensor, of its shape, named `name`.

    Args:
        scale: as it is stored.
        form: `kind` and `block` of a pair (see fp8/forms.py).
    """
    if scale is None:
        return unscaled(g, codes, reading, name)
    s = scale_values(g, scale, reading)
    if form.kind == "block":
        return {"blocked": blocked, "tiles": tiles}[lowering](g, codes, s, form.block, name)
    if form.kind == "tensor":
        return per_tensor(g, codes, s, name)
    return per_part(g, codes, s, math.prod(_known(scale)), name)


def _known(value: Value) -> tuple[int, ...]:
    assert all(isinstance(d, int) for d in value.shape), "parameters have known shapes"
    return value.shape  # type: ignore[return-value]


def _shape(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(shape, np.int64)


__all__ = ["INT64", "LOWERINGS", "OPSET", "READINGS", "dequantized", "table_rows"]
