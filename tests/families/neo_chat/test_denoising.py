"""The step's predictions: branches together or apart, everything bound before the first step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ntool.lib.families.neo_chat.denoising import Denoising
from ntool.lib.families.neo_chat.pipeline import Pipeline, Prefix
from ntool.lib.package.package import open_package
from ntool.lib.runtime.session import Settings

SIDE = 64
GRID = (2, 2)
SCALE = 2.0


@pytest.fixture(scope="module")
def pipeline(demo_package: Path) -> Pipeline:
    return Pipeline(open_package(demo_package), Settings(threads=1))


def prefix(pipeline: Pipeline, text: str) -> Prefix:
    return pipeline.prefill_query(text, pipeline.no_pictures(), expand=False)


def denoising(pipeline: Pipeline, branches: dict[str, Prefix]) -> Denoising:
    z = np.zeros((1, 3, SIDE, SIDE), np.float32)
    embedder, denoiser = (
        pipeline.session(f"image_gen_{name}") for name in ("embedding", "denoiser")
    )
    return Denoising(embedder, denoiser, branches, z, SCALE, GRID)


def draw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, SIDE, SIDE), np.float32)


def alone(pipeline: Pipeline, one: Prefix, z: np.ndarray, t: float) -> np.ndarray:
    """x0 of one branch, fed the plain way."""
    from ntool.lib.families.neo_chat import positions

    embedder, denoiser = (
        pipeline.session(f"image_gen_{name}") for name in ("embedding", "denoiser")
    )
    at, noise = np.array([t], np.float32), np.array([SCALE], np.float32)
    embeds = embedder.run({"z": z, "timestep": at, "noise_scale": noise})["inputs_embeds"]
    return denoiser.run(
        {
            "inputs_embeds": embeds,
            "position_ids": positions.image_positions(one.next_t, *GRID),
            "token_grid": np.array(GRID, np.int64),
            **one.cache,
        }
    )["x0"]


def test_branches_of_one_length_run_as_one_batch(pipeline: Pipeline) -> None:
    words = ["a red circle", "a blue square", "a big green star on white"]
    branches = dict(
        zip(("cond", "img_cond", "uncond"), (prefix(pipeline, w) for w in words), strict=True)
    )
    lengths = [p.ids.shape[1] for p in branches.values()]
    assert lengths[0] == lengths[1] != lengths[2]
    model = denoising(pipeline, branches)
    names = tuple(branches)
    assert model._grouped(names) == [("cond", "img_cond"), ("uncond",)]
    for step in range(3):
        z, t = draw(step), np.float32(step / 3)
        asked = names if step != 1 else ("cond",)  # outside of the guidance interval
        found = model(z, t, step, asked)
        assert tuple(sorted(found)) == tuple(sorted(asked))
        for name, x0 in found.items():
            expected = alone(pipeline, branches[name], z, float(t))
            np.testing.assert_allclose(x0, expected, rtol=1e-4, atol=1e-4)
            assert np.abs(x0).max() > 0.01
    # the branches see their own prompt
    assert np.abs(found["cond"] - found["img_cond"]).max() > 1e-3


def test_equal_lengths_at_other_positions_stay_apart(pipeline: Pipeline) -> None:
    one, other = prefix(pipeline, "a red circle"), prefix(pipeline, "a red circle")
    other.positions = other.positions + 5
    model = denoising(pipeline, {"cond": one, "uncond": other})
    assert model._grouped(("cond", "uncond")) == [("cond",), ("uncond",)]


def test_places_are_used_again(pipeline: Pipeline) -> None:
    model = denoising(pipeline, {"cond": prefix(pipeline, "a red circle")})
    first = model(draw(0), np.float32(0), 0, ("cond",))["cond"]
    kept = first.copy()
    second = model(draw(1), np.float32(0.5), 1, ("cond",))["cond"]
    assert first.ctypes.data == second.ctypes.data
    assert np.abs(kept - second).max() > 1e-3
