"""The demonstration checkpoint draws what it is asked for, through the exported graphs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .picture_reader import COLOURS, SHAPES, read_scene, template

PROMPTS = {
    "a large red circle on a white background": ("white", "red", "circle", 0.5, 0.5),
    "a large green triangle on a pink background": ("pink", "green", "triangle", 0.5, 0.5),
    "a large blue cross on a yellow background": ("yellow", "blue", "cross", 0.5, 0.5),
    "a red square on a blue background, bottom left": ("blue", "red", "square", 0.25, 0.75),
    "a yellow cross on a purple background, on the left": ("purple", "yellow", "cross", 0.25, 0.5),
}
"""The prompts that the model card recommends, and what they ask for."""
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reader_tells_shapes_apart(shape: str) -> None:
    picture = np.full((128, 128, 3), COLOURS["yellow"], np.uint8)
    picture[40:88, 20:70][template(shape, 50, 48)] = COLOURS["purple"]
    scene = read_scene(picture)
    assert (scene.background, scene.colour, scene.shape) == ("yellow", "purple", shape)
    assert abs(scene.x - 45 / 128) < 0.03 and abs(scene.y - 64 / 128) < 0.07


def test_five_prompts_at_three_seeds(demo_package: Path, tmp_path: Path, ntool) -> None:
    lines = tmp_path / "prompts.jsonl"
    with open(lines, "w") as f:
        for prompt in PROMPTS:
            for seed in SEEDS:
                f.write(json.dumps({"prompt": prompt, "seed": seed, "cfg": 2.0}) + "\n")
    ntool("sample-image", demo_package, "--prompts", lines, "-o", tmp_path / "p.png")
    right = {"background": 0, "place": 0, "colour": 0, "shape": 0}
    index = 0
    for background, colour, shape, x, y in PROMPTS.values():
        for _ in SEEDS:
            scene = read_scene(np.asarray(Image.open(tmp_path / f"p-{index}.png")))
            index += 1
            right["background"] += scene.background == background
            # places are a third of the picture apart
            right["place"] += abs(scene.x - x) < 0.12 and abs(scene.y - y) < 0.12
            right["colour"] += scene.colour == colour
            right["shape"] += scene.shape == shape
    print(right)
    assert index == 15
    assert right["background"] == 15
    assert right["place"] == 15
    assert right["colour"] >= 14
    assert right["shape"] >= 13
