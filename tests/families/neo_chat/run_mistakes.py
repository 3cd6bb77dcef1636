"""Mistakes around the graphs: positions, noise, schedule, guidance, given pictures and prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
from PIL import Image

from ntool.lib.families.neo_chat import (
    components,
    draw,
    positions,
    processor,
    prompts,
)
from ntool.lib.families.neo_chat.pipeline import Pipeline
from ntool.lib.sampling import euler, guidance, schedule

from .graph_mistakes import Mistake, Patch, configured, wrapped

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


# -- guidance --------------------------------------------------------------------------------------


def guided_from_c(m: Patch) -> None:
    m.setattr(guidance, "plain", lambda c, u, cfg, out: c + np.float32(cfg) * (c - u))


def dual_weights_swapped(m: Patch) -> None:
    wrapped(
        m,
        guidance,
        "edit",
        lambda plain, g, v, out: plain(replace(g, cfg=g.img_cfg, img_cfg=g.cfg), v),
    )


def equal_scales_from_c(m: Patch) -> None:
    def edit(plain, g, v, out):
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
    def normalise(plain, g, v, c, out):
        return plain(replace(g, norm=used) if g.norm == found else g, v, c)

    return lambda m: wrapped(m, guidance, "normalise", normalise)


channel_as_global = _norm_as("channel", "global")
global_as_channel = _norm_as("global", "channel")


def channel_norm_across_tokens(m: Patch) -> None:
    """One factor for each of the 3 F F places inside a token, over all tokens."""

    def normalise(plain, g, v, c, out):
        if g.norm != "channel":
            return plain(g, v, c)
        B, C, H, W = v.shape
        tiles = (B, C, H // g.tile, g.tile, W // g.tile, g.tile)
        vt, ct = v.reshape(tiles), c.reshape(tiles)
        lengths = [np.sqrt((a * a).sum(axis=(2, 4), keepdims=True)) for a in (ct, vt)]
        return (vt * guidance._ratio(*lengths)).reshape(v.shape)

    wrapped(m, guidance, "normalise", normalise)


def no_zero_step(m: Patch) -> None:
    wrapped(m, guidance, "zero_star", lambda plain, c, u, cfg, step, out: plain(c, u, cfg, 1))


def no_alpha(m: Patch) -> None:
    def zero_star(plain, c, u, cfg, step, out):
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
