"""The sampling loop on models that are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from ntool.lib.errors import InputError, UsageProblem
from ntool.lib.sampling import euler, schedule
from ntool.lib.sampling.guidance import Guidance


def draw(seed=0, shape=(1, 3, 32, 64)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def constant(x0):
    return lambda z, t, step, branches: dict.fromkeys(branches, x0)


@pytest.mark.parametrize(("steps", "shift"), [(1, 1.0), (4, 1.0), (50, 3.0), (20, 0.5)])
def test_a_model_that_knows_the_picture_ends_on_it(steps, shift):
    x0 = draw(1)
    z = euler.sample(draw(0), schedule.timesteps(steps, shift), constant(x0))
    assert z.dtype == np.float32
    # the last step divides by 1 - t and multiplies by it again: a few ulp of |z| < 5
    np.testing.assert_allclose(z, x0, rtol=0, atol=5e-6)


def test_t_eps_shortens_the_last_step():
    x0, z0 = draw(1), draw(0)
    t = schedule.timesteps(4, 0.05)
    left = 1 - float(t[3])
    assert left < euler.T_EPS
    before = euler.sample(z0, t[:4], constant(x0))
    z = euler.sample(z0, t, constant(x0))
    np.testing.assert_allclose(z, before + (x0 - before) * left / euler.T_EPS, rtol=0, atol=1e-5)
    assert np.abs(z - x0).max() > 1e-2
    landed = euler.sample(z0, t, constant(x0), t_eps=1e-6)
    np.testing.assert_allclose(landed, x0, rtol=0, atol=1e-5)


def test_velocity_and_step_by_hand():
    x0, z = np.float32([[[[3.0]]]]), np.float32([[[[1.0]]]])
    assert euler.velocity(x0, z, np.float32(0.5)).item() == 4.0
    assert euler.velocity(x0, z, np.float32(1.0), 0.25).item() == 8.0
    assert euler.velocity(x0, z, np.float32(0.5)).dtype == np.float32
    assert euler.advance(z, x0, np.float32(0.25), np.float32(0.75)).item() == 2.5


def test_the_model_is_asked_for_the_branches_a_step_needs():
    asked = []

    def model(z, t, step, branches):
        asked.append((step, branches, float(t)))
        return dict.fromkeys(branches, z)

    t = schedule.timesteps(4)
    euler.sample(draw(), t, model, Guidance(cfg=4, interval=(0.25, 0.5)))
    both = ("cond", "uncond")
    assert [b for _, b, _ in asked] == [("cond",), both, both, ("cond",)]
    assert [s for s, _, _ in asked] == [0, 1, 2, 3]
    assert [t for _, _, t in asked] == [0, 0.25, 0.5, 0.75]


def test_guidance_is_applied_to_velocities():
    c, u = draw(1), draw(2)
    t = schedule.timesteps(1)
    z = euler.sample(draw(0), t, lambda z, t, k, b: {"cond": c, "uncond": u}, Guidance(cfg=4))
    np.testing.assert_allclose(z, u + 4 * (c - u), rtol=0, atol=1e-5)


def test_report_and_trace():
    x0, z0 = draw(1), draw(0)
    t = schedule.timesteps(3, 3.0)
    steps, trace = [], euler.Trace()
    z = euler.sample(z0, t, constant(x0), on_step=steps.append, trace=trace)
    assert [s.index for s in steps] == [0, 1, 2]
    assert [s.t for s in steps] == t[:-1].tolist() and [s.t_next for s in steps] == t[1:].tolist()
    arrays = trace.arrays()
    assert arrays["z"].shape == (4, *z.shape) and arrays["v"].shape == (3, *z.shape)
    assert arrays["z"].dtype == arrays["v"].dtype == np.float32
    np.testing.assert_array_equal(arrays["z"][0], z0)
    np.testing.assert_array_equal(arrays["z"][3], z)
    for k in range(3):
        np.testing.assert_array_equal(
            arrays["z"][k + 1], euler.advance(arrays["z"][k], arrays["v"][k], t[k], t[k + 1])
        )
        assert steps[k].rms_v == pytest.approx(np.sqrt(np.mean(np.square(arrays["v"][k]))))
        assert steps[k].rms_x0 == pytest.approx(np.sqrt(np.mean(np.square(x0))))
        assert steps[k].seconds >= 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_first_non_finite_value_stops(bad):
    reports = []

    def model(z, t, step, branches):
        x0 = {b: draw(1) for b in branches}
        if step == 2:
            x0["uncond"][0, 1, 5, 7] = bad
        return x0

    with pytest.raises(InputError) as caught:
        euler.sample(draw(), schedule.timesteps(4), model, Guidance(cfg=4), on_step=reports.append)
    assert "step 2: tensor x0 of branch uncond: found 1 of 6144" in caught.value.message
    assert len(reports) == 2


def test_non_finite_latent_and_overflowing_velocity():
    z = draw()
    z[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="before step 0: tensor z"):
        euler.sample(z, schedule.timesteps(2), constant(draw(1)))
    huge = np.full_like(z, 3e38)
    # an error, not a warning of NumPy that scrolls past
    with np.errstate(over="raise"), pytest.raises(InputError, match="step 0: tensor v"):
        euler.sample(-huge, schedule.timesteps(2), constant(huge))


def test_large_but_finite_values_are_not_called_infinite():
    reports = []
    huge = np.full((1, 3, 32, 64), 3e30, np.float32)
    euler.sample(draw(), schedule.timesteps(2), constant(huge), on_step=reports.append)
    assert reports[0].rms_x0 == pytest.approx(3e30)


def test_wrong_model_output_and_arguments():
    t = schedule.timesteps(2)
    with pytest.raises(InputError, match=r"step 0: tensor x0 of branch cond: found float32 \[1"):
        euler.sample(draw(), t, constant(draw(shape=(1, 3, 32, 32))))
    with pytest.raises(InputError, match="found float64"):
        euler.sample(draw(), t, constant(draw().astype(np.float64)))
    with pytest.raises(InputError, match="z: found float64"):
        euler.sample(draw().astype(np.float64), t, constant(draw()))
    for t_eps in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageProblem, match="t_eps"):
            euler.sample(draw(), t, constant(draw()), t_eps=t_eps)
