"""Guidance and the Euler step as a graph: the arithmetic of `euler` and `guidance` in nodes."""

from __future__ import annotations

import numpy as np

from ..graph.builder import FLOAT, Dim, Graph, Value
from . import guidance as guide

EPS = 1e-8
DIMS: list[Dim] = ["batch", 3, "height", "width"]


def step_graph(g: guide.Guidance, names: tuple[str, ...], *, on: bool, zero: bool) -> Graph:
    """z, x0 of each branch, floor = max(1 - t, t_eps), dt -> z_next, v, mean_squares.

    Args:
        names: branches, `cond` first.
        on: whether the step is guided. zero: first step of `cfg_zero_star`, where v = 0.
    """
    b = Graph("sampling_step")
    z = b.input("z", FLOAT, DIMS)
    floor, dt = b.input("floor", FLOAT, [1]), b.input("dt", FLOAT, [1])
    x0 = {n: b.input(f"x0.{n}", FLOAT, DIMS) for n in names}
    v = {n: b.Div(b.Sub(x, z), floor) for n, x in x0.items()}
    out = _combined(b, g, v, on=on, zero=zero)
    out = b.output("v", out, DIMS)
    z_next = b.output("z_next", b.Add(b.Mul(out, dt), z), DIMS)
    squares = [b.Unsqueeze(_mean_square(b, x), [0]) for x in (*x0.values(), out, z_next)]
    b.output("mean_squares", b.Concat(*squares, axis=0))
    return b


def _mean_square(b: Graph, x: Value) -> Value:
    return b.ReduceMean(b.Mul(x, x), keepdims=0)


def _plain(b: Graph, towards: Value, base: Value, scale: float) -> Value:
    return b.Add(b.Mul(b.Sub(towards, base), float(scale)), base)


def _combined(b: Graph, g: guide.Guidance, v: dict[str, Value], *, on: bool, zero: bool) -> Value:
    """`guidance.combine` as nodes."""
    c = v["cond"]
    if g.task == "text-to-image":
        if not on:
            return b.Identity(c)
        if g.norm == "cfg_zero_star":
            return b.Mul(c, 0.0) if zero else _zero_star(b, c, v["uncond"], g.cfg)
        return _normalised(b, g, _plain(b, c, v["uncond"], g.cfg), c)
    out = _edit(b, g, v) if on else c
    norm_on = (g.cfg > 1 or g.img_cfg > 1) and on
    if g.task == "interleave":
        norm_on = g.cfg > 1 or (g.img_cfg > 1 and on)
    return _normalised(b, g, out, c) if norm_on else b.Identity(out)


def _edit(b: Graph, g: guide.Guidance, v: dict[str, Value]) -> Value:
    c = v["cond"]
    if g.cfg == 1 and g.img_cfg == 1:
        return c
    if g.img_cfg == 1:
        return _plain(b, c, v["img_cond"], g.cfg)
    u = v["uncond"]
    if g.cfg == g.img_cfg:
        return _plain(b, c, u, g.cfg)
    i = v["img_cond"]
    first = b.Add(u, b.Mul(b.Sub(c, i), float(g.cfg)))
    return b.Add(first, b.Mul(b.Sub(i, u), float(g.img_cfg)))


def _zero_star(b: Graph, c: Value, u: Value, cfg: float) -> Value:
    axes = [1, 2, 3]
    a = b.Div(
        b.ReduceSum(b.Mul(c, u), axes, keepdims=1),
        b.Add(b.ReduceSumSquare(u, axes, keepdims=1), EPS),
    )
    return _plain(b, c, b.Mul(a, u), cfg)


def _normalised(b: Graph, g: guide.Guidance, v: Value, c: Value) -> Value:
    if g.norm == "none":
        return b.Identity(v)
    if g.norm == "global":
        return b.Mul(v, _ratio(b, c, v, [1, 2, 3]))
    F = g.tile
    batch, _, height, width = b.Split(b.Shape(v), [1, 1, 1, 1], axis=0, outputs=4)
    cut = b.Concat(batch, [3], b.Div(height, F), [F], b.Div(width, F), [F], axis=0)
    dims = ["batch", 3, "th", F, "tw", F]
    vt, ct = b.Reshape(v, cut, shape=dims), b.Reshape(c, cut, shape=dims)
    scaled = b.Mul(vt, _ratio(b, ct, vt, [1, 3, 5]))
    return b.Reshape(scaled, b.Shape(v), shape=DIMS)


def _ratio(b: Graph, c: Value, v: Value, axes: list[int]) -> Value:
    r = b.Div(b.ReduceL2(c, axes, keepdims=1), b.Add(b.ReduceL2(v, axes, keepdims=1), EPS))
    return b.Clip(r, b.constant(np.float32(0)), b.constant(np.float32(1)))
