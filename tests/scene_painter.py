"""Draws scenes of the demonstration checkpoint's little world: flat shapes with smooth edges.

Sizes and proportions were measured in the pictures of tests/data/demo-shapes/goldens, which
tests/test_demo_scenes.py paints again pixel by pixel. No golden shows a medium size, a cross or two
objects: these are measured in pictures that the model draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from .picture_reader import COLOURS, SHAPES

SIDE = 128
"""Pixels on a side of a picture."""
FINE = 6
"""Each pixel is the mean of FINE x FINE samples: every edge pixel of the goldens is a multiple of a
36th between two colours."""
RADII = {"small": 15.0, "medium": 24.0, "large": 37.0}
"""Half the width of a circle, in pixels."""
PLACES = {
    "top left": (32, 32), "top": (64, 32), "top right": (96, 32),
    "left": (32, 64), "center": (64, 64), "right": (96, 64),
    "bottom left": (32, 96), "bottom": (64, 96), "bottom right": (96, 96),
}  # fmt: skip
"""Centre (x, y) in pixels. Large objects stand in the center only."""
JITTER = 1.5
"""Most pixels that a fresh object is off its place, each way."""
PAIRS = (("left", "right"), ("top", "bottom"))
"""Where the two objects of a scene stand; both are of medium size."""


@dataclass(frozen=True)
class Thing:
    """One object. `dx`, `dy`: pixels off its place."""

    colour: str
    shape: str
    size: str = "medium"
    place: str = "center"
    dx: float = 0.0
    dy: float = 0.0


@dataclass(frozen=True)
class Painting:
    """A background colour and one or two objects."""

    background: str
    things: tuple[Thing, ...]


def paint(scene: Painting) -> np.ndarray:
    """The picture, uint8 [SIDE, SIDE, 3]."""
    image = Image.new("RGB", (SIDE * FINE, SIDE * FINE), COLOURS[scene.background])
    draw = ImageDraw.Draw(image)
    for thing in scene.things:
        x, y = PLACES[thing.place]
        _draw(draw, thing, (x + thing.dx, y + thing.dy), COLOURS[scene.background])
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))


Colour = tuple[int, int, int]


def _draw(
    draw: ImageDraw.ImageDraw, thing: Thing, place: tuple[float, float], ground: Colour
) -> None:
    (x, y), r = (v * FINE for v in place), RADII[thing.size] * FINE
    colour = COLOURS[thing.colour]

    def bar(w: float, h: float) -> None:
        draw.rectangle((x - w, y - h, x + w, y + h), fill=colour)

    def disc(w: float, fill: Colour) -> None:
        # Pillow counts the last sample in
        draw.ellipse((x - w, y - w, x + w - 1, y + w - 1), fill=fill)

    if thing.shape == "circle":
        disc(r, colour)
    elif thing.shape == "ring":
        disc(r, colour)
        disc(0.55 * r, ground)
    elif thing.shape == "square":
        bar(0.88 * r, 0.88 * r)
    elif thing.shape == "cross":
        bar(1.05 * r, 0.37 * r)
        bar(0.37 * r, 1.05 * r)
    elif thing.shape == "triangle":
        draw.polygon(
            [(x, y - 1.05 * r), (x + 1.05 * r, y + 0.85 * r), (x - 1.05 * r, y + 0.85 * r)],
            fill=colour,
        )
    else:
        assert thing.shape == "star", thing.shape
        points = []
        for i in range(10):
            reach = 1.15 * r * (1 if i % 2 == 0 else 0.41)
            angle = -math.pi / 2 + i * math.pi / 5
            points.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
        draw.polygon(points, fill=colour)


def fresh(rng: np.random.Generator, count: int = 1) -> Painting:
    """A random scene with one object, or with two medium ones that differ in colour and shape."""
    background, *colours = rng.choice(list(COLOURS), 1 + count, replace=False).tolist()
    shapes = rng.choice(SHAPES, count, replace=False).tolist()
    size = rng.choice(list(RADII)) if count == 1 else "medium"
    if count == 1:
        places = ["center" if size == "large" else rng.choice(list(PLACES))]
    else:
        places = PAIRS[rng.integers(len(PAIRS))]
    things = [
        Thing(colour, shape, str(size), str(place), *rng.uniform(-JITTER, JITTER, 2).tolist())
        for colour, shape, place in zip(colours, shapes, places, strict=True)
    ]
    return Painting(background, tuple(things))
