"""The mistakes that the goldens are there to catch, each made in the running program.

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

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from ntool.lib.families.neo_chat import (
    backbone,
    components,
    draw,
    positions,
    processor,
    prompts,
    vision,
)
from ntool.lib.families.neo_chat.pipeline import Pipeline
from ntool.lib.graph import experts, layers
from ntool.lib.graph.builder import Graph, Value
from ntool.lib.sampling import euler, guidance, schedule

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


# -- positions -------------------------------------------------------------------------------------


def own_t_in_a_prompt_picture(m: Patch) -> None:
    def prompt_positions(plain, ids, *args):
        p = plain(ids, *args)
        p[0] = np.arange(p.shape[1])
        return p

    wrapped(m, positions, "prompt_positions", prompt_positions)


def no_step_after_img(m: Patch) -> None:
    def prompt_positions(plain, ids, context, start, grids):
        p = plain(ids, context, start, grids)
        p[0] = np.cumsum(np.asarray(ids).reshape(-1) != context) - 1
        return p

    wrapped(m, positions, "prompt_positions", prompt_positions)


def _moved(change: Callable[[np.ndarray], np.ndarray]) -> Mistake:
    def image_positions(plain, t, th, tw):
        p = plain(t, th, tw)
        p[0] = change(p[0])
        return p

    return lambda m: wrapped(m, positions, "image_positions", image_positions)


own_t_in_a_new_picture = _moved(lambda t: t + np.arange(t.size))
t_off_by_one = _moved(lambda t: t + 1)


def uncond_at_the_place_of_cond(m: Patch) -> None:
    plain = Pipeline.sample

    def sample(self, branches, *args):
        moved = {k: replace(p, positions=branches["cond"].positions) for k, p in branches.items()}
        return plain(self, moved, *args)

    m.setattr(Pipeline, "sample", sample)


def reencoded_rows_causal(m: Patch) -> None:
    plain = Pipeline.append_picture

    def append_picture(self, prefix, pictures):
        with Patch.context() as inner:
            own_t_in_a_new_picture(inner)
            plain(self, prefix, pictures)

    m.setattr(Pipeline, "append_picture", append_picture)


# -- noise and schedule ----------------------------------------------------------------------------


def noise_scale_not_divided(m: Patch) -> None:
    configured(m, noise_scale_max_value=1.0)


def noise_scale_not_clamped(m: Patch) -> None:
    def noise_scale(plain, *grid, **rule):
        return plain(*grid, **(rule | {"max_value": 1e9}))

    wrapped(m, schedule, "noise_scale", noise_scale)


def patches_taken_for_tokens(m: Patch) -> None:
    wrapped(m, schedule, "noise_scale", lambda plain, h, w, **rule: plain(2 * h, 2 * w, **rule))


def no_noise_embedding(m: Patch) -> None:
    def embedder(plain, g, value, c, dtype):
        e = plain(g, value, c, dtype)
        return g.Mul(e, 0.0) if "noise_scale" in g.scope else e

    wrapped(m, components, "scalar_embedder", embedder)


def noise_not_scaled(m: Patch) -> None:
    def given_latent(plain, *args):
        latent = plain(*args)
        return replace(latent, z=latent.noise)

    wrapped(m, draw, "given_latent", given_latent)


def _floor(t_eps: float) -> Mistake:
    def velocity(plain, x0, z, t, *rest):
        return plain(x0, z, t, t_eps)

    return lambda m: wrapped(m, euler, "velocity", velocity)


t_eps_of_the_config = _floor(0.05)
no_t_eps = _floor(1e-9)


def shift_of_t(m: Patch) -> None:
    def timesteps(plain, steps, shift):
        t = plain(steps)
        return np.float32(shift) * t / (np.float32(1) + np.float32(shift - 1) * t)

    wrapped(m, schedule, "timesteps", timesteps)


def no_shift(m: Patch) -> None:
    wrapped(m, schedule, "timesteps", lambda plain, steps, shift: plain(steps))


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


# -- guidance --------------------------------------------------------------------------------------


def guided_from_c(m: Patch) -> None:
    m.setattr(guidance, "plain", lambda c, u, cfg: c + np.float32(cfg) * (c - u))


def dual_weights_swapped(m: Patch) -> None:
    wrapped(
        m, guidance, "edit", lambda plain, g, v: plain(replace(g, cfg=g.img_cfg, img_cfg=g.cfg), v)
    )


def equal_scales_from_c(m: Patch) -> None:
    def edit(plain, g, v):
        out = plain(g, v)
        return out + (v["cond"] - v["uncond"]) if g.cfg == g.img_cfg != 1 else out

    wrapped(m, guidance, "edit", edit)


def cfg_1_is_off(m: Patch) -> None:
    wrapped(m, guidance, "guided", lambda plain, g, t: g.cfg != 1 and plain(g, t))


def exclusive_interval(m: Patch) -> None:
    def guided(plain, g, t):
        return g.cfg > 1 and g.interval[0] < float(t) < g.interval[1]

    wrapped(m, guidance, "guided", guided)


def inclusive_edit_interval(m: Patch) -> None:
    def guided(plain, g, t):
        return plain(g, t) or g.interval[0] <= float(t) <= g.interval[1]

    wrapped(m, guidance, "guided", guided)


def no_rule_for_lo_0(m: Patch) -> None:
    def guided(plain, g, t):
        return plain(g, t) and float(t) < g.interval[1]

    wrapped(m, guidance, "guided", guided)


def norm_not_clamped(m: Patch) -> None:
    m.setattr(guidance, "_ratio", lambda c, v: c / (v + guidance.EPS))


def _norm_as(found: str, used: str) -> Mistake:
    def normalise(plain, g, v, c):
        return plain(replace(g, norm=used) if g.norm == found else g, v, c)

    return lambda m: wrapped(m, guidance, "normalise", normalise)


channel_as_global = _norm_as("channel", "global")
global_as_channel = _norm_as("global", "channel")


def channel_norm_across_tokens(m: Patch) -> None:
    """One factor for each of the 3 F F places inside a token, over all tokens."""

    def normalise(plain, g, v, c):
        if g.norm != "channel":
            return plain(g, v, c)
        B, C, H, W = v.shape
        tiles = (B, C, H // g.tile, g.tile, W // g.tile, g.tile)
        vt, ct = v.reshape(tiles), c.reshape(tiles)
        lengths = [np.sqrt((a * a).sum(axis=(2, 4), keepdims=True)) for a in (ct, vt)]
        return (vt * guidance._ratio(*lengths)).reshape(v.shape)

    wrapped(m, guidance, "normalise", normalise)


def no_zero_step(m: Patch) -> None:
    wrapped(m, guidance, "zero_star", lambda plain, c, u, cfg, step: plain(c, u, cfg, 1))


def no_alpha(m: Patch) -> None:
    def zero_star(plain, c, u, cfg, step):
        return plain(c, u, cfg, step) if step == 0 else guidance.plain(c, u, cfg)

    wrapped(m, guidance, "zero_star", zero_star)


# -- pictures that are given, and prompts ----------------------------------------------------------


def pixels_in_bf16(m: Patch) -> None:
    def normalise(plain, x):
        return plain(x).astype(ml_dtypes.bfloat16).astype(np.float32)

    wrapped(m, processor, "normalise", normalise)


def reencode_clamped(m: Patch) -> None:
    wrapped(m, processor, "normalise", lambda plain, x: plain(np.clip(x, 0, 1)))


def _resampled(method: Image.Resampling) -> Mistake:
    def resize(image, width, height):
        return np.asarray(processor.to_rgb(image).resize((width, height), method))

    return lambda m: m.setattr(processor, "resize", resize)


bilinear = _resampled(Image.Resampling.BILINEAR)
lanczos = _resampled(Image.Resampling.LANCZOS)


def mean_and_std_half(m: Patch) -> None:
    m.setattr(processor, "MEAN", (0.5, 0.5, 0.5))
    m.setattr(processor, "STD", (0.5, 0.5, 0.5))


def rows_channel_last(m: Patch) -> None:
    def patch_rows(plain, x, patch):
        rows = plain(x, patch).reshape(-1, 3, patch * patch)
        return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(len(rows), -1)

    wrapped(m, processor, "patch_rows", patch_rows)


def system_on_the_empty_prompt(m: Patch) -> None:
    system = prompts.system_block(prompts.GENERATION_SYSTEM)
    wrapped(m, prompts, "unconditional", lambda plain: system + plain())


def no_empty_thought(m: Patch) -> None:
    m.setattr(prompts, "NO_THOUGHT", "")


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
