"""The vision tower and the embedding in NumPy, written from their description and not from a graph.

Everything is computed in float64, picture by picture and frame by frame, with plain loops over
rows and columns. Weights are named as in a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]
erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass
class Tower:
    """Weights in float64 and the sizes that the config gives."""

    weights: Arrays
    depth: int
    heads: int
    theta: float

    def __getitem__(self, name: str) -> np.ndarray:
        return self.weights[f"model.visual.{name}"].astype(np.float64)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self[f"{name}.weight"].T + self[f"{name}.bias"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
        return centred / spread * self[f"{name}.weight"] + self[f"{name}.bias"]


def tower(config: dict, weights: Arrays) -> Tower:
    vision = config["vision_config"]
    theta = (vision.get("rope_parameters") or {}).get("rope_theta", 10000.0)
    return Tower(weights, vision["depth"], vision["num_heads"], theta)


def image_features(t: Tower, pixels: np.ndarray, grids: Sequence[Sequence[int]]) -> np.ndarray:
    """Features [N / 4, H] of pictures whose patches are [N, 1536]."""
    out, at = [], 0
    for frames, h, w in np.asarray(grids).tolist():
        for _ in range(frames):
            out.append(frame_features(t, pixels[at : at + h * w], h, w))
            at += h * w
    assert at == len(pixels)
    return np.concatenate(out)


def frame_features(t: Tower, pixels: np.ndarray, h: int, w: int) -> np.ndarray:
    """Features of one frame: nothing outside of it has any influence."""
    places = block_order(h, w)
    kernel = t["patch_embed.proj.weight"]
    x = pixels.astype(np.float64) @ kernel.reshape(len(kernel), -1).T + t["patch_embed.proj.bias"]
    x = x + np.stack([table_position(t, row, column, h, w) for row, column in places])
    for i in range(t.depth):
        b = f"blocks.{i}"
        x = x + attention(t, f"{b}.attn", t.norm(f"{b}.norm1", x), places)
        y = gelu_tanh(t.linear(f"{b}.mlp.linear_fc1", t.norm(f"{b}.norm2", x)))
        x = x + t.linear(f"{b}.mlp.linear_fc2", y)
    x = t.norm("merger.norm", x)
    x = x.reshape(len(x) // 4, -1)  # four consecutive patches beside each other
    return t.linear("merger.linear_fc2", gelu_erf(t.linear("merger.linear_fc1", x)))


def block_order(h: int, w: int) -> list[tuple[int, int]]:
    """(row, column) of the patches of a frame: blocks of 2 x 2 in raster order."""
    order = []
    for top in range(0, h, 2):
        for left in range(0, w, 2):
            order += [(top + dy, left + dx) for dy in range(2) for dx in range(2)]
    return order


def table_position(t: Tower, row: int, column: int, h: int, w: int) -> np.ndarray:
    """Bilinear reading of the square table, corners of the picture on corners of the table."""
    table = t["pos_embed.weight"]
    side = math.isqrt(len(table))
    table = table.reshape(side, side, -1)
    y, x = row * (side - 1) / max(h - 1, 1), column * (side - 1) / max(w - 1, 1)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, side - 1), min(left + 1, side - 1)
    dy, dx = y - top, x - left
    upper = table[top, left] * (1 - dx) + table[top, right] * dx
    lower = table[bottom, left] * (1 - dx) + table[bottom, right] * dx
    return upper * (1 - dy) + lower * dy


def attention(t: Tower, name: str, x: np.ndarray, places: list[tuple[int, int]]) -> np.ndarray:
    C = x.shape[-1]
    d = C // t.heads
    q, k, v = np.split(t.linear(f"{name}.qkv", x), 3, axis=-1)
    out = np.zeros_like(x)
    angles = head_angles(t, places, d)
    for head in range(t.heads):
        part = slice(head * d, (head + 1) * d)
        scores = rotated(q[:, part], angles) @ rotated(k[:, part], angles).T / math.sqrt(d)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, part] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, part]
    return t.linear(f"{name}.proj", out)


def head_angles(t: Tower, places: list[tuple[int, int]], d: int) -> np.ndarray:
    """[N, d]: angles of the row, of the column, and both once more."""
    frequencies = [t.theta ** (-2 * j / (d / 2)) for j in range(d // 4)]
    once = [[row * f for f in frequencies] + [col * f for f in frequencies] for row, col in places]
    return np.array([angles * 2 for angles in once])


def rotated(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return x * np.cos(angles) + np.concatenate([-second, first], axis=-1) * np.sin(angles)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def inputs_embeds(
    table: np.ndarray, ids: np.ndarray, features: np.ndarray, image_token_id: int
) -> np.ndarray:
    """Rows of the table, [B, S, H]; those of image tokens replaced unless there are no features."""
    out = table[ids]
    if len(features):
        remaining = iter(features)
        for b, row in enumerate(ids):
            for s, token in enumerate(row):
                if token == image_token_id:
                    out[b, s] = next(remaining)
        assert next(remaining, None) is None
    return out
