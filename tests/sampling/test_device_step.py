"""The step as a graph against the step in NumPy, for every guidance formula and norm."""

from __future__ import annotations

import numpy as np
import pytest

from ntool.lib.errors import InputError
from ntool.lib.runtime.session import DEFAULT
from ntool.lib.sampling import euler, guidance, schedule
from ntool.lib.sampling.device_step import GraphStepper

SHAPE = (2, 3, 64, 96)
CASES = [
    ("text-to-image", 1.0, 1.0, "none", (0.0, 1.0)),
    ("text-to-image", 4.0, 1.0, "none", (0.2, 0.6)),
    ("text-to-image", 4.0, 1.0, "global", (0.0, 1.0)),
    ("text-to-image", 4.0, 1.0, "channel", (0.0, 1.0)),
    ("text-to-image", 4.0, 1.0, "cfg_zero_star", (0.0, 1.0)),
    ("text-to-image", 4.0, 1.0, "cfg_zero_star", (0.3, 1.0)),
    ("image-edit", 4.0, 1.0, "none", (0.0, 1.0)),
    ("image-edit", 2.5, 2.5, "global", (0.0, 1.0)),
    ("image-edit", 4.0, 2.0, "channel", (0.2, 0.7)),
    ("image-edit", 1.0, 2.0, "none", (0.0, 1.0)),
    ("image-edit", 0.4, 1.5, "global", (0.0, 1.0)),
    ("interleave", 3.0, 1.0, "global", (0.2, 0.7)),
    ("interleave", 1.0, 1.0, "none", (0.0, 1.0)),
]


def draw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


class Model:
    """Predictions that depend on z and the branch, as NumPy or as values of a stepper."""

    def __init__(self, stepper: GraphStepper | None) -> None:
        self.stepper = stepper
        self.seen: list[tuple[str, ...]] = []
        self.targets = {n: draw(i) for i, n in enumerate(("cond", "img_cond", "uncond"))}

    def __call__(self, z, t, step, names):
        self.seen.append(names)
        host = z if self.stepper is None else self.stepper.host(z)
        x0 = {n: (self.targets[n] + np.float32(0.1) * host).astype(np.float32) for n in names}
        return x0 if self.stepper is None else {n: self.stepper.start(x) for n, x in x0.items()}


@pytest.mark.parametrize(("task", "cfg", "img_cfg", "norm", "interval"), CASES)
def test_equal_to_numpy(task, cfg, img_cfg, norm, interval) -> None:
    g = guidance.Guidance(task, cfg=cfg, img_cfg=img_cfg, norm=norm, interval=interval)
    t, z = schedule.timesteps(5, 2.0), draw(9) * 2
    runs = []
    for stepper in (None, GraphStepper(g, 0.02, DEFAULT)):
        model, trace, steps = Model(stepper), euler.Trace(), []
        out = euler.sample(z, t, model, g, stepper=stepper, on_step=steps.append, trace=trace)
        runs.append((out, trace.arrays(), steps, model.seen))
    (a, ta, sa, na), (b, tb, sb, nb) = runs
    assert na == nb
    if norm == "none":  # the same operations in the same order
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(ta["v"], tb["v"])
    else:
        # sums of 18,432 squares in another order and width; the projection of zero-star carries the
        # rounding of two of them, times cfg - 1, into velocities of size up to 26
        tolerance = 2e-4 if norm == "cfg_zero_star" else 2e-5
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(ta["v"], tb["v"], rtol=tolerance, atol=tolerance)
    for x, y in zip(sa, sb, strict=True):
        assert y.rms_x0 == pytest.approx(x.rms_x0, rel=1e-4)
        assert y.rms_v == pytest.approx(x.rms_v, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("where", ["x0 of branch uncond", "z"])
def test_what_is_not_finite_is_named(where: str) -> None:
    g = guidance.Guidance("text-to-image", cfg=2.0)
    stepper = GraphStepper(g, 0.02, DEFAULT)
    model = Model(stepper)
    z = draw(9)
    if where == "z":
        z[0, 0, 0, 0] = np.nan
    else:
        model.targets["uncond"][1, 2, 3, 4] = np.inf
    with pytest.raises(InputError, match=where):
        euler.sample(z, schedule.timesteps(3), model, g, stepper=stepper)


def test_values_whose_squares_overflow_are_not_taken_for_infinite() -> None:
    g = guidance.Guidance("text-to-image")
    stepper = GraphStepper(g, 0.02, DEFAULT)
    model = Model(stepper)
    model.targets["cond"][:] = 1e25
    steps = []
    out = euler.sample(
        draw(1), schedule.timesteps(1), model, g, stepper=stepper, on_step=steps.append
    )
    assert np.isfinite(out).all() and steps[0].rms_x0 == pytest.approx(1e25, rel=1e-3)
