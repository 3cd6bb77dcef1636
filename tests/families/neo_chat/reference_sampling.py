"""Text-to-image sampling of the neo_chat NumPy reference, in the order of docs/neo-chat.md 5.

Sizes as in `reference`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .reference import (
    F,
    M,
    P,
    decoder,
    denoiser,
    embed,
    from_head_patches,
    image_gen_embedding,
    to_head_patches,
)
from .reference_layers import Array, KeyValue, Weights


def noise_scale(config: dict, grid_h: int, grid_w: int, m: int = M) -> float:
    """Standard deviation of the starting noise; the grid is in patches."""
    s, mode = config["noise_scale"], config["noise_scale_mode"]
    if mode in ("resolution", "dynamic", "dynamic_sqrt"):
        tokens = grid_h * grid_w / m**2
        s *= math.sqrt(tokens / config["noise_scale_base_image_seq_len"])
        if mode == "dynamic_sqrt":
            s = math.sqrt(s)
    return min(s, config["noise_scale_max_value"])


def timesteps(n: int, shift: float) -> Array:
    """t'_k of n steps: sigma' = shift sigma / (1 + (shift - 1) sigma), sigma = 1 - k/n."""
    sigma = np.float32(1) - np.linspace(0, 1, n + 1, dtype=np.float32)
    shift32 = np.float32(shift)
    return np.float32(1) - shift32 * sigma / (1 + (shift32 - 1) * sigma)  # [n + 1]


def velocity(x0: Array, z: Array, t: float, t_eps: float) -> Array:
    """v = (x0 - z) / max(1 - t, t_eps)."""
    return (x0 - z) / np.float32(max(1 - t, t_eps))


@dataclass(frozen=True)
class Prefix:
    """A prefilled prompt: its cache and the temporal index of the picture after it."""

    cache: list[KeyValue]
    t_image: int


def prefill_text(w: Weights, config: dict, ids: Array) -> Prefix:
    """Prefill a text-only prompt [1, S]."""
    S = ids.shape[1]
    positions = np.stack([np.arange(S), np.zeros(S, int), np.zeros(S, int)])
    _, cache = decoder(w, config, embed(w, ids), positions)
    return Prefix(cache, S)


def squared_norm(x: Array, per_tile: bool) -> Array:
    """Sum of squares of [B, L, F * F * 3]: of each tile [B, L, 1], or of each sample [B, 1, 1]."""
    return np.sum(np.square(x), axis=-1 if per_tile else (1, 2), keepdims=True)


def guide(c: Array, u: Array, cfg: float, norm: str, first_step: bool) -> Array:
    """u + cfg (c - u), changed by one of the rules of docs/neo-chat.md 5.6.

    Args:
        c, u: velocities of the two branches in head patches, [B, L, F * F * 3].
        norm: "none", "global", "channel" or "cfg_zero_star".
    """
    if norm == "cfg_zero_star":
        dot = np.sum(c * u, axis=(1, 2), keepdims=True)
        u = dot / (squared_norm(u, False) + np.float32(1e-8)) * u
        return np.zeros_like(c) if first_step else u + np.float32(cfg) * (c - u)
    v = u + np.float32(cfg) * (c - u)
    if norm == "none":
        return v
    if norm not in ("global", "channel"):
        raise ValueError(f"unknown norm {norm!r}")
    length_c, length_v = (np.sqrt(squared_norm(x, norm == "channel")) for x in (c, v))
    return v * np.clip(length_c / (length_v + np.float32(1e-8)), 0, 1)


def text_to_image(
    w: Weights,
    config: dict,
    cond: Prefix,
    uncond: Prefix | None,
    noise: Array,
    num_steps: int,
    shift: float = 1.0,
    cfg: float = 1.0,
    interval: tuple[float, float] = (0.0, 1.0),
    norm: str = "none",
    t_eps: float = 0.02,
) -> list[Array]:
    """Euler steps from noise to a picture; z after every step, each [B, 3, H, W].

    Args:
        uncond: used at steps with interval[0] <= t <= interval[1], when cfg > 1.
        noise: unit variance, [B, 3, H, W].
    """
    height, width = noise.shape[2:]
    token_h, token_w = height // F, width // F
    s = noise_scale(config, height // P, width // P)
    z = np.float32(s) * noise
    t = timesteps(num_steps, shift)
    path = []
    for k in range(num_steps):
        t_k = float(t[k])
        x = image_gen_embedding(w, config, z, t_k, s)
        x0 = denoiser(w, config, x, cond.t_image, token_h, token_w, cond.cache)
        v = velocity(x0, z, t_k, t_eps)
        if cfg > 1 and interval[0] <= t_k <= interval[1]:
            assert uncond is not None
            x0 = denoiser(w, config, x, uncond.t_image, token_h, token_w, uncond.cache)
            u = velocity(x0, z, t_k, t_eps)
            v = guide(to_head_patches(v), to_head_patches(u), cfg, norm, first_step=k == 0)
            v = from_head_patches(v, token_h, token_w)
        z = z + (t[k + 1] - t[k]) * v
        path.append(z)
    return path


def to_uint8(z: Array) -> Array:
    """[3, H, W] in [-1, 1] -> picture [H, W, 3] of 8-bit levels, ties to even."""
    levels = np.rint(np.clip(z * 0.5 + 0.5, 0, 1) * 255)
    return levels.astype(np.uint8).transpose(1, 2, 0)
