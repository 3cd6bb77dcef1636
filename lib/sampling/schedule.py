"""Time and noise level of a flow-matching run: t from 0 (noise) to 1 (clean), sigma = 1 - t."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UsageProblem

MAX_STEPS = 10_000
"""A bound against a mistyped count; published recipes use 8 to 50 steps."""

MIN_SHIFT, MAX_SHIFT = 1e-3, 1e3
"""Beyond them float32 leaves no steps between the ends; published recipes use 1 to 8."""

RESOLUTION_MODES = ("resolution", "dynamic", "dynamic_sqrt")
"""`noise_scale_mode` values that depend on the picture's size; any other leaves sigma_0."""


def linspace(steps: int) -> NDArray[np.float32]:
    """k / n for k = 0..n as float32 [n + 1], with the roundings of PyTorch's `linspace`.

    It takes a step width h rounded to float32 and works from both ends: k h below the middle,
    1 - (n - k) h from there, by a fused multiply-add. Plain k / n differs in the last bit of some
    values. Product and difference are exact in float64 here (h is a multiple of 2^-37 for n up to
    MAX_STEPS), so that the one rounding at the end is that of the fused operation.
    """
    h = np.float64(np.float32(1) / np.float32(steps))
    k = np.arange(steps + 1)
    t = np.where(k < (steps + 1) // 2, k * h, 1.0 - (steps - k) * h)
    return t.astype(np.float32)


def timesteps(steps: int, shift: float = 1.0, *, enable_shift: bool = True) -> NDArray[np.float32]:
    """t_0..t_n: sigma = 1 - k/n, sigma' = shift sigma / (1 + (shift - 1) sigma), t = 1 - sigma'.

    Args:
        steps: n, the number of Euler steps, 1..MAX_STEPS.
        shift: `timestep_shift`, MIN_SHIFT to MAX_SHIFT; 1 is the identity, above 1 spends more
            steps on noise.
        enable_shift: False leaves t = k/n whatever the shift is.
    Returns:
        float32 [n + 1], t_0 first. Every operation is rounded to float32, so an end can be off by
        an ulp or two of 1 (shift 0.05: t_0 = 2.4e-07), as in the published implementation.
    Raises:
        UsageProblem: steps or shift out of range.
    Source: `t2i_generate` of sensenova_u1.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise UsageProblem("steps", found=steps, expected=f"1..{MAX_STEPS}")
    if not MIN_SHIFT <= shift <= MAX_SHIFT:
        raise UsageProblem(
            "timestep shift", found=shift, expected=f"{MIN_SHIFT:g} to {MAX_SHIFT:g}"
        )
    t = linspace(steps)
    if not enable_shift:
        return t
    one = np.float32(1)
    sigma = one - t
    # shift - 1 is formed in float64 before it meets float32, as a Python scalar is in the source
    shifted = np.float32(shift) * sigma / (one + np.float32(shift - 1) * sigma)
    return (one - shifted).astype(np.float32)


def noise_scale(
    grid_h: int,
    grid_w: int,
    *,
    sigma_0: float,
    mode: str,
    base_image_seq_len: int,
    max_value: float,
    merge: int = 2,
) -> float:
    """Standard deviation of the first latent: min(sqrt((h w / m^2) / base) sigma_0, max).

    `resolution` and `dynamic` are the same rule; `dynamic_sqrt` takes the root of that product
    (sigma_0 included); any other mode string leaves sigma_0. The result is clamped in every mode.

    Args:
        grid_h, grid_w: picture size in patches (16 pixels each).
        sigma_0, mode, base_image_seq_len, max_value: `noise_scale`, `noise_scale_mode`,
            `noise_scale_base_image_seq_len`, `noise_scale_max_value` of config.json.
        merge: patches on one side of a token, m.
    Returns:
        float (float64). The noise-level embedder receives this divided by `max_value`.
    Raises:
        InputError: a size or a configuration value is not positive and finite.
    Source: `t2i_generate`, `it2i_generate`, `interleave_gen` of sensenova_u1.
    """
    for name, value in (
        ("grid height", grid_h),
        ("grid width", grid_w),
        ("noise_scale", sigma_0),
        ("noise_scale_base_image_seq_len", base_image_seq_len),
        ("noise_scale_max_value", max_value),
        ("merge size", merge),
    ):
        if not (math.isfinite(value) and value > 0):
            raise InputError(name, found=value, expected="a finite number above 0")
    s = float(sigma_0)
    if mode in RESOLUTION_MODES:
        s = math.sqrt((grid_h * grid_w / merge**2) / base_image_seq_len) * sigma_0
        if mode == "dynamic_sqrt":
            s = math.sqrt(s)
    return min(s, float(max_value))
