"""Which weights are rearranged into memory, and what a session that is bound once does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ntool.lib.errors import EnvironmentProblem, InputError
from ntool.lib.package.package import open_package
from ntool.lib.runtime import memory
from ntool.lib.runtime.session import Session, Settings
from ntool.lib.runtime.sessions import REPACK_RUNS, Sessions

NAME = "image_gen_denoiser"


@pytest.mark.parametrize(
    ("runs", "rows", "settings", "repacked"),
    [
        (REPACK_RUNS, 16, Settings(), True),
        (REPACK_RUNS - 1, 16, Settings(), False),
        (1000, 1, Settings(), False),
        (1000, 4096, Settings(), False),
        (1000, 16, Settings(low_memory=True), False),
        (1000, 16, Settings(device=("cuda", 0)), False),
    ],
)
def test_when_weights_are_rearranged(
    runs: int, rows: int, settings: Settings, repacked: bool, demo_package: Path
) -> None:
    sessions = Sessions(open_package(demo_package), settings)
    sessions.expect(NAME, runs, rows)
    assert sessions.repacked(NAME) is repacked
    assert not sessions.repacked("decoder")
    stored = (demo_package / NAME / "model.safetensors").stat().st_size
    if settings.device[0] == "cpu":
        assert sessions.nbytes(NAME) == (stored if repacked else 0)


def test_rearranged_or_not_the_numbers_agree(demo_package: Path) -> None:
    graph = demo_package / "decoder" / "model.onnx"
    one, other = (Session(graph, Settings(threads=1), repack=r) for r in (True, False))
    rng = np.random.default_rng(0)
    feeds = {}
    for name, (_, shape) in one.inputs.items():
        if name == "position_ids":
            feeds[name] = np.tile(np.arange(5), (3, 1))
        elif name == "logits_to_keep":
            feeds[name] = np.array([5])
        elif name == "inputs_embeds":
            feeds[name] = rng.standard_normal((1, 5, shape[2]), np.float32)
        else:
            feeds[name] = np.zeros((1, shape[1], 0, shape[3]), np.float32)
    a, b = one.run(feeds), other.run(feeds)
    np.testing.assert_allclose(a["logits"], b["logits"], rtol=1e-3, atol=1e-3)


def phase(weights: int, other: int) -> memory.Phase:
    return memory.Phase("sampling", {NAME: weights}, {}, 0, other)


def test_short_memory_keeps_weights_in_their_files(
    demo_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    sessions = Sessions(open_package(demo_package), Settings(note=said.append))
    sessions.expect(NAME, 1000, 16)
    monkeypatch.setattr(memory, "available", lambda device: 1_500_000)
    sessions.fits([phase(sessions.nbytes(NAME), 1_000_000)])
    assert not sessions.repacked(NAME) and "they stay in their files" in said[0]
    with pytest.raises(EnvironmentProblem, match="sampling: memory on cpu, bytes: found 1,500,000"):
        sessions.fits([phase(0, 2_000_000)])
    assert len(said) == 1


def test_enough_memory_says_nothing(demo_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    sessions = Sessions(open_package(demo_package), Settings(note=said.append))
    sessions.expect(NAME, 1000, 16)
    monkeypatch.setattr(memory, "available", lambda device: 1 << 40)
    sessions.fits([phase(sessions.nbytes(NAME), 1)])
    assert sessions.repacked(NAME) and not said


def test_bound(demo_package: Path) -> None:
    session = Session(demo_package / "image_gen_embedding" / "model.onnx", Settings(threads=1))
    z = np.zeros((1, 3, 64, 64), np.float32)
    feeds = {"z": z, "timestep": np.zeros(1, np.float32), "noise_scale": np.ones(1, np.float32)}
    shape = session.run(feeds)["inputs_embeds"].shape
    place = session.room("inputs_embeds", shape)
    bound = session.bind({**feeds, "of another component": z}, {"inputs_embeds": place})
    for value in (0.0, 1.0):
        z[:] = value  # what is written into the array is what the run reads
        bound.run()
        expected = session.run({**feeds, "z": np.full_like(z, value)})["inputs_embeds"]
        np.testing.assert_array_equal(place.array, expected)
    with pytest.raises(InputError, match="input 'timestep' is missing"):
        session.bind({"z": z, "noise_scale": feeds["noise_scale"]}, {})
    with pytest.raises(InputError, match="input 'z': found float64"):
        bound.feed("z", z.astype(np.float64))
    small = session.room("inputs_embeds", (1, 1, shape[2]))
    bound.give("inputs_embeds", small)
    with pytest.raises(InputError, match="cannot run"):
        bound.run()
