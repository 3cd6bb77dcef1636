"""Mistakes in tower, embedding, positions and preprocessing that the goldens are there to catch.

A mistake is a function of `pytest.MonkeyPatch` that changes one function of ntool. N, C and so on
as in lib/families/qwen4_exp/vision.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ntool.lib.families.qwen4_exp import embedding, positions, processor, vision
from ntool.lib.graph.builder import FLOAT, Graph, Value

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]


def wrapped(m: Patch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """`change(plain, *args, **kwargs)` in place of a function of a module."""
    m.setattr(module, name, functools.partial(change, getattr(module, name)))


# -- tower -----------------------------------------------------------------------------------------


def patches_in_raster_order(m: Patch) -> None:
    def order(plain, g, grids, c):
        p = plain(g, grids, c)
        return replace(p, row=g.Div(p.within, p.width), column=g.Mod(p.within, p.width))

    wrapped(m, vision, "token_order", order)


def half_pixel_interpolation(m: Patch) -> None:
    """Line i at (i + 1/2) side / count - 1/2: centres of pixels, not corners."""

    def along(g: Graph, at: Value, count: Value, c: Any) -> list[tuple[Value, Value]]:
        scale = g.Div(g.constant(np.float32(c.side)), g.Cast(count, to=FLOAT))
        place = g.Sub(g.Mul(g.Add(g.Cast(at, to=FLOAT), 0.5), scale), 0.5)
        place = g.Clip(place, 0.0, float(c.side - 1))
        low = g.Floor(place)
        share = g.Sub(place, low)
        high = g.Min(g.Add(low, 1.0), g.constant(np.float32(c.side - 1)))
        first = g.Sub(g.constant(np.float32(1)), share)
        return [(g.Cast(low, to=7), first), (g.Cast(high, to=7), share)]

    m.setattr(vision, "along", along)


def no_interpolation(m: Patch) -> None:
    """The lower line alone."""

    def along(plain, g, at, count, c):
        (low, share), (high, other) = plain(g, at, count, c)
        return [(low, g.Add(share, other)), (high, g.Mul(other, 0.0))]

    wrapped(m, vision, "along", along)


def rows_and_columns_swapped(m: Patch) -> None:
    def rotary(plain, g, p, c):
        return plain(g, replace(p, row=p.column, column=p.row), c)

    wrapped(m, vision, "rotary", rotary)


def attention_across_pictures(m: Patch) -> None:
    """All frames taken for one."""

    def tiling(plain, g, p):
        starts = g.CumSum(p.lengths, g.constant(np.int64(0)), exclusive=1)
        within = g.Add(p.within, g.Gather(starts, p.frame))
        whole = g.ReduceSum(p.lengths, keepdims=1)
        return plain(g, replace(p, frame=g.Mul(p.frame, 0), within=within, lengths=whole))

    wrapped(m, vision, "tiling", tiling)


def _other_gelu(m: Patch, part: str, form: str) -> None:
    def gelu(plain, g, x, approximate):
        return plain(g, x, form if part in g.scope else approximate)

    wrapped(m, vision, "gelu", gelu)


def erf_gelu_in_the_blocks(m: Patch) -> None:
    _other_gelu(m, ".mlp.", "none")


def tanh_gelu_in_the_merger(m: Patch) -> None:
    _other_gelu(m, ".merger.", "tanh")


# -- embedding -------------------------------------------------------------------------------------


def zero_without_features(m: Patch) -> None:
    """Image tokens get rows of zeros when there are no features."""

    def matched(g: Graph, ids: Value, features: Value, image_token_id: int) -> tuple[Value, Value]:
        every = g.Transpose(g.NonZero(g.Equal(ids, image_token_id)), perm=[1, 0])
        missing = g.Sub(g.Shape(every, start=0, end=1), g.Shape(features, start=0, end=1))
        shape = g.Concat(missing, [features.shape[1]], axis=0)
        zeros = g.Expand(g.constant(np.float32(0)), shape, shape=["missing", features.shape[1]])
        return every, g.Concat(features, zeros, axis=0)

    m.setattr(embedding, "matched", matched)


# -- positions -------------------------------------------------------------------------------------


def step_of_a_picture_is_its_tokens(m: Patch) -> None:
    m.setattr(positions, "max", lambda h, w: h * w, raising=False)


def channel_0_counts_padding(m: Patch) -> None:
    def prompt(plain, ids, *args):
        found, deltas = plain(ids, *args)
        found[0] = np.arange(np.shape(ids)[1])
        return found, deltas

    wrapped(m, positions, "prompt_positions", prompt)


# -- preprocessing ---------------------------------------------------------------------------------


def bilinear(m: Patch) -> None:
    plain = Image.Image.resize
    m.setattr(
        Image.Image, "resize", lambda image, size, _: plain(image, size, Image.Resampling.BILINEAR)
    )


def no_mean_and_std(m: Patch) -> None:
    def preprocess(plain, image, p):
        return plain(image, replace(p, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)))

    wrapped(m, processor, "preprocess", preprocess)


def raster_patch_order(m: Patch) -> None:
    def patch_rows(plain, x):
        rows = plain(x)
        h, w = x.shape[1] // 32, x.shape[2] // 32
        return rows.reshape(h, w, 2, 2, -1).transpose(0, 2, 1, 3, 4).reshape(rows.shape)

    wrapped(m, processor, "patch_rows", patch_rows)


def frame_before_channel(m: Patch) -> None:
    def patch_rows(plain, x):
        rows = plain(x)
        return rows.reshape(-1, 3, 2, 256).transpose(0, 2, 1, 3).reshape(rows.shape)

    wrapped(m, processor, "patch_rows", patch_rows)


def second_frame_zero(m: Patch) -> None:
    def patch_rows(plain, x):
        rows = plain(x).copy()
        rows.reshape(-1, 3, 2, 256)[:, :, 1] = 0
        return rows

    wrapped(m, processor, "patch_rows", patch_rows)


def half_rounded_up(m: Patch) -> None:
    m.setattr(processor, "round", lambda x: math.floor(x + 0.5), raising=False)
