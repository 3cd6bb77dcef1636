"""Mistakes in the graphs that the goldens are there to catch, each made in the running program.

A mistake is a function of `pytest.MonkeyPatch` that changes one constant, one function or one
operator of ntool. B, S, D and so on as in lib/families/neo_chat/backbone.py.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ntool.lib.families.neo_chat import (
    backbone,
    components,
    processor,
    vision,
)
from ntool.lib.graph import experts, layers
from ntool.lib.graph.builder import Graph, Value

from . import graph_session, test_component_goldens

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]


def rebuild_graphs(m: Patch) -> None:
    """Graphs of the component tests are built anew, with what is changed, and forgotten after."""
    fresh = functools.cache(graph_session.component.__wrapped__)
    for module in (graph_session, test_component_goldens):
        m.setattr(module, "component", fresh)


def configured(m: Patch, **changes: Any) -> None:
    """Other values in the configuration of graphs; `llm_X` is field X of the backbone."""
    plain = graph_session.config_of
    inner = {k.removeprefix("llm_"): v for k, v in changes.items() if k.startswith("llm_")}
    outer = {k: v for k, v in changes.items() if not k.startswith("llm_")}

    def config_of(case):
        c = plain(case)
        return replace(c, llm=replace(c.llm, **inner), **outer)

    m.setattr(graph_session, "config_of", config_of)


def operator(m: Patch, kind: str, change: Callable[..., Any]) -> None:
    """`change(plain, graph, *inputs, **attributes)` adds every node of an operator."""
    plain = Graph.op

    def op(g: Graph, op_type: str, *inputs: Any, **attributes: Any) -> Any:
        if op_type == kind:
            return change(functools.partial(plain, g, kind), g, *inputs, **attributes)
        return plain(g, op_type, *inputs, **attributes)

    m.setattr(Graph, "op", op)


def wrapped(m: Patch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """`change(plain, *args, **kwargs)` in place of a function of a module."""
    m.setattr(module, name, functools.partial(change, getattr(module, name)))


# -- scalars ---------------------------------------------------------------------------------------


def sines_first(m: Patch) -> None:
    def sinusoid(g: Graph, values: Value) -> Value:
        f = g.constant(vision.sinusoid_frequencies())
        angle = g.Mul(g.Unsqueeze(values, [1]), f)
        return g.Concat(g.Sin(angle), g.Cos(angle), axis=-1)

    m.setattr(vision, "sinusoid", sinusoid)


def t_times_1000(m: Patch) -> None:
    def embedder(plain, g, value, c, dtype):
        timestep = "timestep" in g.scope
        return plain(g, g.Mul(value, 1000.0) if timestep else value, c, dtype)

    wrapped(m, components, "scalar_embedder", embedder)


def frequencies_over_half_minus_1(m: Patch) -> None:
    k = np.arange(128, dtype=np.float32)
    f = np.exp(np.float32(-np.log(10000.0)) * k / np.float32(127))
    m.setattr(vision, "sinusoid_frequencies", lambda: f.astype(np.float32))


def gelu_in_the_embedders(m: Patch) -> None:
    m.setattr(vision, "silu", lambda g, x: g.Gelu(x))


# -- masks -----------------------------------------------------------------------------------------


def _each_its_own(g: Graph, t: Value) -> Value:
    """Temporal indexes that all differ, [1, S]: the block rule then is the causal one."""
    ones = g.Add(g.Mul(t, 0.0), 1.0)
    return g.CumSum(ones, g.constant(np.int64(1)))


def causal_prompt(m: Patch) -> None:
    wrapped(
        m,
        backbone,
        "block_causal_bias",
        lambda plain, g, t, past: plain(g, _each_its_own(g, t), past),
    )


def bidirectional_prompt(m: Patch) -> None:
    wrapped(
        m, backbone, "block_causal_bias", lambda plain, g, t, past: plain(g, g.Mul(t, 0.0), past)
    )


def causal_picture(m: Patch) -> None:
    causal_prompt(m)

    def stack(plain, g, x, positions, suffix, c, *, mask):
        return plain(g, x, positions, suffix, c, mask=True)

    wrapped(m, components, "stack", stack)


def blind_to_the_prefix(m: Patch) -> None:
    def attention(plain, g, q, k, v, *, scale, sequence, bias):
        if g.root.name == "image_gen_denoiser":
            zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
            T = g.Squeeze(g.Shape(k, start=2, end=3))
            place = g.Range(zero, T, one, shape=["total_sequence"])
            own = g.GreaterOrEqual(place, g.Sub(T, g.Squeeze(sequence)))
            off = g.constant(np.float32(-np.inf))
            bias = g.Unsqueeze(g.Where(own, g.constant(np.float32(0)), off), [0])
        return plain(g, q, k, v, scale=scale, sequence=sequence, bias=bias)

    wrapped(m, backbone, "attention", attention)


# -- rotary codes ----------------------------------------------------------------------------------


def base_of_time_for_places(m: Patch) -> None:
    configured(m, llm_rope_theta_hw=5e6)


def time_base_1e4(m: Patch) -> None:
    configured(m, llm_rope_theta=1e4)


def time_base_5e6(m: Patch) -> None:
    configured(m, llm_rope_theta=5e6)


def frequencies_of_the_whole_head(m: Patch) -> None:
    plain = layers.inverse_frequencies
    m.setattr(
        layers, "inverse_frequencies", lambda width, base: plain(2 * width, base)[: width // 2]
    )


def interleaved_backbone(m: Patch) -> None:
    wrapped(m, backbone, "rotate", lambda plain, g, x, r: plain(g, x, r, interleaved=True))


def rows_and_columns_swapped(m: Patch) -> None:
    def axes(plain, *args):
        a, t = plain(*args)
        return backbone.Axes(a.t, a.w, a.h), t

    wrapped(m, backbone, "axes", axes)


def half_split_tower(m: Patch) -> None:
    wrapped(m, vision, "rotate", lambda plain, g, x, r, interleaved: plain(g, x, r))


def tower_x_y_swapped(m: Patch) -> None:
    wrapped(m, vision, "_place", lambda plain, g, h, x, y, c: plain(g, h, y, x, c))


def tower_without_places(m: Patch) -> None:
    m.setattr(vision, "_place", lambda g, h, x, y, c: h)


def places_before_gelu(m: Patch) -> None:
    given: list[Any] = []
    place = vision._place

    def tower(plain, g, rows, x, y, c):
        given[:] = [x, y, c]
        return plain(g, rows, x, y, c)

    wrapped(m, components, "tower", tower)
    tower_without_places(m)
    operator(m, "Gelu", lambda plain, g, h, **a: plain(place(g, h, *given), **a))


# -- attention and norms ---------------------------------------------------------------------------


def norm_halves_swapped(m: Patch) -> None:
    def rms_norm(plain, g, x, name, eps):
        if "_norm_hw" in name:
            name = name.replace("_norm_hw", "_norm")
        elif re.match(r"[qk]_norm", name):
            name = name.replace("_norm", "_norm_hw")
        return plain(g, x, name, eps)

    wrapped(m, backbone, "rms_norm", rms_norm)


def _norm_in_parts(parts: int) -> Mistake:
    """Query and key norms over a head cut in this many parts instead of two."""

    def place(g: Graph, x: Value, name: str, c: Any, axes: Any) -> Value:
        name, suffix = name.removesuffix("_mot_gen"), name[len(name.removesuffix("_mot_gen")) :]
        width = c.hd // parts
        cut = g.Split(x, [width] * parts, axis=-1, outputs=parts) if parts > 1 else (x,)
        normed = []
        for part in cut:
            mean = g.ReduceMean(g.Mul(part, part), [-1], keepdims=1)
            normed.append(g.Div(part, g.Sqrt(g.Add(mean, float(c.eps)))))
        x = g.Concat(*normed, axis=-1) if parts > 1 else normed[0]
        T, X = g.Split(x, [c.hd // 2, c.hd // 2], axis=-1, outputs=2)
        T = g.Mul(T, g.parameter(f"{name}{suffix}.weight", [c.hd // 2], x.dtype))
        X = g.Mul(X, g.parameter(f"{name}_hw{suffix}.weight", [c.hd // 2], x.dtype))
        Y, Z = g.Split(X, [c.hd // 4, c.hd // 4], axis=-1, outputs=2)
        turned = [layers.rotate(g, a, r) for a, r in ((T, axes.t), (Y, axes.h), (Z, axes.w))]
        return g.Concat(*turned, axis=-1, shape=["batch", x.shape[1], x.shape[2], c.hd])

    return lambda m: m.setattr(backbone, "place", place)


norm_of_the_whole_head = _norm_in_parts(1)
norm_of_each_quarter = _norm_in_parts(4)


def scale_of_half_a_head(m: Patch) -> None:
    def attention(plain, *args, scale, **kwargs):
        return plain(*args, scale=scale * math.sqrt(2), **kwargs)

    wrapped(m, backbone, "attention", attention)


def _tiled(component: str) -> Mistake:
    """Query head h uses key head h mod KV: the heads are put in the order that means that."""

    def attention(plain, g, q, k, v, **kwargs):
        if g.root.name != component:
            return plain(g, q, k, v, **kwargs)
        H, KV, hd = q.shape[1], k.shape[1], q.shape[3]
        order = [h for kv in range(KV) for h in range(kv, H, KV)]
        back = np.argsort(order).tolist()
        mixed = plain(g, g.Gather(q, order, axis=1), k, v, **kwargs)
        split = g.Reshape(mixed, [-1, H, hd], shape=["rows", H, hd])
        return g.Reshape(g.Gather(split, back, axis=1), [-1, H * hd], shape=["rows", H * hd])

    return lambda m: wrapped(m, backbone, "attention", attention)


heads_tiled = _tiled("decoder")
heads_tiled_in_generation = _tiled("image_gen_denoiser")


def other_final_norm(m: Patch) -> None:
    def rms_norm(plain, g, x, name, eps):
        if name != "norm_mot_gen":
            return plain(g, x, name, eps)
        weight = g.parameter("norm.weight", [x.shape[-1]], x.dtype)
        return g.at(name).RMSNormalization(x, weight, axis=-1, epsilon=eps)

    wrapped(m, backbone, "rms_norm", rms_norm)


def one_plus_weight(m: Patch) -> None:
    operator(m, "RMSNormalization", lambda plain, g, x, w, **a: plain(x, g.Add(w, 1.0), **a))


# -- pictures in and out of the generation branch --------------------------------------------------


def generation_rows_channel_last(m: Patch) -> None:
    def patchify(plain, g, z, c):
        rows, *rest = plain(g, z, c)
        cut = g.Transpose(g.Reshape(rows, [-1, 3, c.P * c.P]), perm=[0, 2, 1])
        width = 3 * c.P * c.P
        return g.Reshape(cut, [-1, width], shape=["patches", width]), *rest

    wrapped(m, components, "patchify", patchify)


def z_normalised(m: Patch) -> None:
    def patchify(plain, g, z, c):
        mean = np.array(processor.MEAN, np.float32)[:, None, None]
        std = np.array(processor.STD, np.float32)[:, None, None]
        return plain(g, g.Div(g.Sub(z, g.constant(mean)), g.constant(std)), c)

    wrapped(m, components, "patchify", patchify)


def head_channel_first(m: Patch) -> None:
    def mlp_head(g, rows, r, grid, c, width):
        F = c.F
        h = g.linear(g.Gelu(g.linear(rows, "0", width, bias=True)), "2", 3 * F * F, bias=True)
        cut = ["batch", "th", "tw", 3, F, F]
        h = g.Reshape(h, g.Concat(r.batch, grid, [3, F, F], axis=0), shape=cut)
        h = g.Transpose(h, perm=[0, 3, 1, 4, 2, 5])
        th, tw = g.Split(grid, [1, 1], axis=0, outputs=2)
        picture = g.Concat(r.batch, [3], g.Mul(th, F), g.Mul(tw, F), axis=0)
        return g.Reshape(h, picture, shape=["batch", 3, "height", "width"])

    m.setattr(components, "mlp_head", mlp_head)


def depth_column_row(m: Patch) -> None:
    operator(m, "DepthToSpace", lambda plain, g, x, **a: plain(x, **(a | {"mode": "DCR"})))


def replicate_padding(m: Patch) -> None:
    def conv(plain, g, x, *weights, pads, **attributes):
        B, C, *_ = x.shape
        edges = g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
        padded = g.Pad(x, edges, mode="edge", shape=[B, C, None, None])
        return plain(padded, *weights, pads=[0, 0, 0, 0], **attributes)

    operator(m, "Conv", conv)


def gelu_after_the_last_convolution(m: Patch) -> None:
    def conv(plain, g, *inputs, **attributes):
        x = plain(*inputs, **attributes)
        return g.Gelu(x) if "conv2" in g.scope else x

    operator(m, "Conv", conv)


def grid_transposed(m: Patch) -> None:
    def conv_decoder(plain, g, rows, r, grid, c, c1):
        D = c.llm.D
        th, tw = g.Split(grid, [1, 1], axis=0, outputs=2)
        turned = g.Concat(r.batch, tw, th, [D], axis=0)
        h = g.Reshape(rows, turned, shape=["batch", "tw", "th", D])
        h = g.Reshape(g.Transpose(h, perm=[0, 2, 1, 3]), [-1, D], shape=["rows", D])
        return plain(g, h, r, grid, c, c1)

    wrapped(m, components, "conv_decoder", conv_decoder)


def tanh_gelu(m: Patch) -> None:
    operator(m, "Gelu", lambda plain, g, x: plain(x, approximate="tanh"))


# -- experts ---------------------------------------------------------------------------------------


def weights_not_renormalised(m: Patch) -> None:
    def route(plain, g, x, experts, top, renormalise):
        return plain(g, x, experts, top, False)

    wrapped(m, experts, "route", route)


def one_expert_less(m: Patch) -> None:
    def route(plain, g, x, experts, top, renormalise):
        return plain(g, x, experts, top - 1, renormalise)

    wrapped(m, experts, "route", route)


def understanding_router(m: Patch) -> None:
    """The first rows of the other side's router, as many as there are experts."""

    def linear(plain, g, x, name, out, bias=False):
        if name != "gate" or "mlp_mot_gen" not in g.scope:
            return plain(g, x, name, out, bias)
        other = g.root.at(g.scope.replace("mlp_mot_gen", "mlp").removesuffix("."))
        rows = other.parameter("gate.weight", [6, x.shape[-1]], x.dtype)
        weight = g.Slice(rows, [0], [out], [0], shape=[out, x.shape[-1]])
        return g.at(name).op("Gemm", x, weight, transB=1)

    plain = Graph.linear
    m.setattr(Graph, "linear", lambda *args, **kwargs: linear(plain, *args, **kwargs))
