"""Classifier-free guidance: which branches a step evaluates and how their velocities combine.

c = `cond` (prompt and pictures), i = `img_cond` (pictures only), u = `uncond` (nothing). All
velocities are float32 [B, 3, H, W] in picture order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageProblem
from ..suggestions import did_you_mean

F32 = NDArray[np.float32]

TASKS = ("text-to-image", "image-edit", "interleave")
NORMS = ("none", "global", "channel", "cfg_zero_star")

EPS = np.float32(1e-8)
"""Added to norms before dividing by them (`t2i_generate` of sensenova_u1)."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """How a run is guided.

    Attributes:
        task: one of TASKS. The tasks differ in the interval test and in the branches.
        cfg: scale of the prompt. 1 = no guidance; for text-to-image also anything below 1.
        img_cfg: scale of the pictures; not used by text-to-image.
        interval: (lo, hi) in t. Text-to-image includes both ends. The others exclude both, except
            that lo = 0 guides every step whatever hi is.
        norm: one of NORMS; `cfg_zero_star` is for text-to-image only.
        tile: pixels on one side of a token, F; the `channel` norm works on F x F tiles.
    Raises:
        UsageProblem: a value out of range, or a norm that the task does not have.
    Source: `t2i_generate`, `it2i_generate`, `interleave_gen` of sensenova_u1.
    """

    task: str = "text-to-image"
    cfg: float = 1.0
    img_cfg: float = 1.0
    interval: tuple[float, float] = (0.0, 1.0)
    norm: str = "none"
    tile: int = 32

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UsageProblem("guidance task", found=self.task, expected=" or ".join(TASKS))
        if self.norm not in NORMS:
            raise UsageProblem(
                "--cfg-norm",
                found=self.norm,
                expected=" or ".join(NORMS),
                hint=did_you_mean(self.norm, NORMS),
            )
        if self.norm == "cfg_zero_star" and self.task != "text-to-image":
            raise UsageProblem(
                f"--cfg-norm cfg_zero_star with task {self.task}",
                expected="none, global or channel (cfg_zero_star is for text-to-image)",
            )
        for name, value in (
            ("--cfg", self.cfg),
            ("--img-cfg", self.img_cfg),
            ("--cfg-interval", self.interval[0]),
            ("--cfg-interval", self.interval[1]),
        ):
            if not math.isfinite(value):
                raise UsageProblem(name, found=value, expected="a finite number")
        if self.interval[0] > self.interval[1]:
            found = f"{self.interval[0]:g},{self.interval[1]:g}"
            raise UsageProblem("--cfg-interval", found=found, expected="LO <= HI")
        if self.tile < 1:
            raise UsageProblem("tile", found=self.tile, expected="1 or more pixels")


def guided(g: Guidance, t: Any) -> bool:
    """True when the step at time t combines branches.

    t (float32) is compared with the interval rounded to float32, as a float32 tensor is with a
    Python number: `--cfg-interval 0.1,0.3` includes a step at float32(0.3).
    Source: `t2i_generate`, `it2i_generate`, `interleave_gen` of sensenova_u1.
    """
    t = np.float32(t)
    lo, hi = np.float32(g.interval[0]), np.float32(g.interval[1])
    if g.task == "text-to-image":
        return g.cfg > 1 and bool(lo <= t <= hi)
    if g.cfg == 1 and g.img_cfg == 1:
        return False
    return g.interval[0] == 0 or bool(lo < t < hi)


def branches(g: Guidance) -> tuple[str, ...]:
    """The branches whose prefix a run of this task can need, `cond` first.

    Interleaved runs build all three, because their caches grow
    together (`interleave_gen` of sensenova_u1).
    """
    return ("cond", "img_cond", "uncond") if g.task == "interleave" else _guided_branches(g)


def branches_at(g: Guidance, t: Any) -> tuple[str, ...]:
    """The branches to evaluate at time t, `cond` first: only `cond` outside guidance."""
    return _guided_branches(g) if guided(g, t) else ("cond",)


def _guided_branches(g: Guidance) -> tuple[str, ...]:
    if g.task == "text-to-image":
        return ("cond", "uncond") if g.cfg > 1 else ("cond",)
    if g.cfg == 1 and g.img_cfg == 1:
        return ("cond",)
    if g.img_cfg == 1:
        return ("cond", "img_cond")
    if g.cfg == g.img_cfg:
        return ("cond", "uncond")
    return ("cond", "img_cond", "uncond")


def combine(g: Guidance, v: Mapping[str, F32], t: Any, step: int, out: F32 | None = None) -> F32:
    """The velocity of a step from those of its branches.

    Args:
        v: one float32 [B, 3, H, W] for each name of `branches_at(g, t)`; others are ignored.
        t: time of the step, float32.
        step: 0-based index; `cfg_zero_star` returns zero at step 0.
        out: room for the result, none of v's arrays. With it nothing of that size is allocated, and
            the arrays of branches other than `cond` may be overwritten.
    Returns:
        the array of `cond` where the step is not guided, else a new one or `out`.
    Source: `t2i_generate`, `it2i_generate`, `interleave_gen` of sensenova_u1.
    """
    c = v["cond"]
    on = guided(g, t)
    if g.task == "text-to-image":
        if not on:
            return c
        if g.norm == "cfg_zero_star":
            return zero_star(c, v["uncond"], g.cfg, step, out)
        return normalise(g, plain(c, v["uncond"], g.cfg, out), c, out)
    made = edit(g, v, out) if on else c
    # Written without brackets in the source of interleaved runs, so that cfg > 1 alone switches the
    # norm on; on an unguided step v is c then and the factor is 1 up to 1e-8.
    if g.task == "interleave":
        norm_on = g.cfg > 1 or (g.img_cfg > 1 and on)
    else:
        norm_on = (g.cfg > 1 or g.img_cfg > 1) and on
    return normalise(g, made, c, out) if norm_on else made


def plain(towards: F32, base: F32, scale: float, out: F32 | None = None) -> F32:
    """base + scale (towards - base), float32."""
    out = np.subtract(towards, base, out=out)
    out *= np.float32(scale)
    out += base
    return out


def edit(g: Guidance, v: Mapping[str, F32], out: F32 | None = None) -> F32:
    """Two-scale combination of edit and interleaved runs; the first row that fits.

    img = 1: i + cfg (c - i). cfg = img: u + cfg (c - u). Else: u + cfg (c - i) + img (i - u).
    With `out`, i may be overwritten.
    Source: `it2i_generate` of sensenova_u1.
    """
    c = v["cond"]
    if g.cfg == 1 and g.img_cfg == 1:
        return c
    if g.img_cfg == 1:
        return plain(c, v["img_cond"], g.cfg, out)
    u = v["uncond"]
    if g.cfg == g.img_cfg:
        return plain(c, u, g.cfg, out)
    i = v["img_cond"]
    spare = None if out is None else i
    out = np.subtract(c, i, out=out)
    out *= np.float32(g.cfg)
    out += u
    towards = np.subtract(i, u, out=spare)
    towards *= np.float32(g.img_cfg)
    out += towards
    return out


def zero_star(c: F32, u: F32, cfg: float, step: int, out: F32 | None = None) -> F32:
    """a u + cfg (c - a u), a = <c, u> / (||u||^2 + 1e-8) for each sample; zero at step 0.

    With `out`, u is overwritten.
    Source: `t2i_generate` of sensenova_u1; CFG-Zero*, Fan et al. (2025).
    """
    if step == 0:
        if out is None:
            return np.zeros_like(c)
        out.fill(0)
        return out
    dot = np.einsum("bchw,bchw->b", c, u, dtype=np.float64).astype(np.float32)
    square = np.einsum("bchw,bchw->b", u, u, dtype=np.float64).astype(np.float32)
    a = (dot / (square + EPS))[:, None, None, None]
    au = np.multiply(a, u, out=None if out is None else u)
    return plain(c, au, cfg, out)


def normalise(g: Guidance, v: F32, c: F32, out: F32 | None = None) -> F32:
    """v r, r = clamp(||c|| / (||v|| + 1e-8), 0, 1).

    `global`: one norm a sample. `channel`: one norm a token, over its 3 F F values, that is one
    factor for each F x F tile of the picture (not for each colour). `none`: v itself.
    The sums run in float64 and are rounded to float32 once, so that the order in which a machine
    adds does not show.
    Source: `t2i_generate`, `it2i_generate` of sensenova_u1.
    """
    if g.norm == "none":
        return v
    if g.norm == "global":
        r = _ratio(_norm(c, "bchw,bchw->b"), _norm(v, "bchw,bchw->b"))
        return np.multiply(v, r[:, None, None, None], out=out)
    B, C, H, W = v.shape
    F = g.tile
    if H % F or W % F:
        raise UsageProblem("channel norm: picture size", found=f"{W}x{H}", expected=f"n x {F}")
    tiles = (B, C, H // F, F, W // F, F)
    vt, ct = v.reshape(tiles), c.reshape(tiles)
    sums = "bcipjq,bcipjq->bij"
    r = _ratio(_norm(ct, sums), _norm(vt, sums))  # [B, th, tw]
    into = None if out is None else out.reshape(tiles)
    return np.multiply(vt, r[:, None, :, None, :, None], out=into).reshape(v.shape)


def _norm(x: F32, sums: str) -> F32:
    return np.sqrt(np.einsum(sums, x, x, dtype=np.float64)).astype(np.float32)


def _ratio(c: F32, v: F32) -> F32:
    return np.clip(c / (v + EPS), np.float32(0), np.float32(1))
