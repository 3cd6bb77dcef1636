"""The tiny checkpoints with their golden values, and how closely float32 programs meet them.

Tolerances are atol = rtol on float32 values of size up to about 10. 1e-3 is what a golden promises;
the constants below are tighter, each with its reason.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

from . import reference as R

DATA = Path(__file__).parents[2] / "data" / "neo-chat"
CASES = ["dense-conv", "dense-mlp", "moe-mlp"]

# One float32 layer or up to three of them: sums of up to 768 products, each result of size up to
# 10 with ulp 1e-6. The worst measured difference is 0.7e-5.
COMPONENT = 2e-5
# Ten decoder calls or four Euler steps on top, where guidance multiplies a difference by 2 cfg - 1.
RUN = 5e-5
# One pixel head alone on golden hidden states, outputs of size 1: 0.05e-5 measured. At this bound
# the tanh form of GELU fails.
HEAD = 5e-6


class Case:
    """One tiny checkpoint with its goldens."""

    def __init__(self, name: str) -> None:
        self.folder = DATA / name
        self.config = R.load_config(self.folder / "checkpoint")
        self.w = R.load_weights(self.folder / "checkpoint")
        manifest = json.loads((self.folder / "goldens" / "manifest.json").read_text())
        self.runs = {entry["name"]: entry for entry in manifest}
        tokens = json.loads((self.folder / "checkpoint" / "added_tokens.json").read_text())
        self.start_id, self.context_id = tokens["<img>"], tokens["<IMG_CONTEXT>"]
        self.stop_id = tokens["<|im_end|>"]

    def golden(self, name: str) -> dict[str, np.ndarray]:
        return load_file(self.folder / "goldens" / f"{name}.safetensors")

    def pixels(self, run: str) -> tuple[np.ndarray, np.ndarray]:
        args = self.runs[run]["args"]
        with Image.open(self.folder / "inputs" / args["image"]) as image:
            return R.preprocess(image, args["min_pixels"], args["max_pixels"])


@cache
def load_case(name: str) -> Case:
    return Case(name)


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal within atol = rtol, same shape, and float32 all the way."""
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
