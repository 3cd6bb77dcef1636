"""Reads a drawn picture of the demonstration checkpoint's little world back into words.

The colours and shapes are those that its model card lists; nothing here looks at the prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {
    "red": (220, 40, 40),
    "orange": (245, 140, 30),
    "yellow": (250, 220, 50),
    "green": (40, 165, 75),
    "blue": (40, 90, 220),
    "purple": (140, 60, 180),
    "pink": (250, 155, 195),
    "black": (20, 20, 20),
    "white": (250, 250, 250),
    "gray": (140, 140, 145),
}
SHAPES = ("circle", "square", "triangle", "star", "ring", "cross")


@dataclass(frozen=True)
class Scene:
    """What a picture shows. `x`, `y`: centre of mass of the object, 0..1 from the left and the
    top."""

    background: str
    colour: str
    shape: str
    x: float
    y: float


def nearest(colour: np.ndarray) -> str:
    return min(COLOURS, key=lambda name: float(np.abs(colour - np.array(COLOURS[name])).sum()))


def template(shape: str, width: int, height: int) -> np.ndarray:
    """A shape that fills its bounding box, bool [height, width]."""
    scale = 4
    w, h = width * scale, height * scale
    image = Image.new("L", (w, h), 0)
    draw = ImageDraw.Draw(image)
    if shape == "square":
        draw.rectangle((0, 0, w, h), fill=255)
    elif shape in ("circle", "ring"):
        draw.ellipse((0, 0, w - 1, h - 1), fill=255)
        if shape == "ring":
            draw.ellipse((w * 0.22, h * 0.22, w * 0.78, h * 0.78), fill=0)
    elif shape == "triangle":
        draw.polygon([(w / 2, 0), (w, h), (0, h)], fill=255)
    elif shape == "cross":
        draw.rectangle((w / 3, 0, w * 2 / 3, h), fill=255)
        draw.rectangle((0, h / 3, w, h * 2 / 3), fill=255)
    elif shape == "star":
        points = []
        for i in range(10):
            r = 1.0 if i % 2 == 0 else 0.42
            a = -math.pi / 2 + i * math.pi / 5
            points.append((r * math.cos(a), r * math.sin(a)))
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        fit = [
            (
                (x - min(xs)) / (max(xs) - min(xs)) * w,
                (y - min(ys)) / (max(ys) - min(ys)) * h,
            )
            for x, y in points
        ]
        draw.polygon(fit, fill=255)
    small = image.resize((width, height), Image.Resampling.BOX)
    return np.asarray(small) > 127


def read_scene(picture: np.ndarray) -> Scene:
    """Border median, object median, centre of mass and best template overlap of uint8 [H, W, 3]."""
    pixels = picture.astype(np.float64)
    H, W, _ = pixels.shape
    border = np.concatenate([pixels[:4].reshape(-1, 3), pixels[-4:].reshape(-1, 3)])
    ground = np.median(border, axis=0)
    distance = np.abs(pixels - ground).sum(axis=2)
    # half way to the strongest colour: soft edges fall to the side they are nearer to
    mask = distance > np.quantile(distance, 0.995) / 2
    ys, xs = np.nonzero(mask)
    top, bottom = np.quantile(ys, [0.005, 0.995]).round().astype(int)
    left, right = np.quantile(xs, [0.005, 0.995]).round().astype(int)
    seen = mask[top : bottom + 1, left : right + 1]

    def overlap(shape: str) -> float:
        t = template(shape, seen.shape[1], seen.shape[0])
        return float((t & seen).sum() / (t | seen).sum())

    return Scene(
        background=nearest(ground),
        colour=nearest(np.median(pixels[mask], axis=0)),
        shape=max(SHAPES, key=overlap),
        x=float(xs.mean() / W),
        y=float(ys.mean() / H),
    )
