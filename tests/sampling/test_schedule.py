"""Schedule and noise scale against recorded values, and their properties."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ntool.lib.errors import InputError, UsageProblem
from ntool.lib.sampling import schedule

NEO = Path(__file__).parents[1] / "data/neo-chat"
TABLE = json.loads((NEO / "common/schedule.json").read_text("utf-8"))
GOLDENS = NEO / "dense-conv/goldens"
CONFIG = json.loads((NEO / "dense-conv/checkpoint/config.json").read_text("utf-8"))
RUNS = [
    r
    for r in json.loads((GOLDENS / "manifest.json").read_text("utf-8"))
    if r["kind"] in ("t2i", "edit", "interleave")
]


def test_recorded_schedules_bit_for_bit():
    assert len(TABLE["schedules"]) == 35
    for s in TABLE["schedules"]:
        t = schedule.timesteps(s["num_steps"], s["timestep_shift"])
        assert t.dtype == np.float32
        expected = np.array(s["t"], np.float32)
        np.testing.assert_array_equal(t.view(np.uint32), expected.view(np.uint32), str(s))


def test_recorded_noise_scales():
    rows = TABLE["noise_scale"]["rows"]
    assert len(rows) == 120
    for w, h, mode, sigma_0, limit, expected, embedded in rows:
        s = schedule.noise_scale(
            h // 16, w // 16, sigma_0=sigma_0, mode=mode, base_image_seq_len=64, max_value=limit
        )
        assert s == expected, (w, h, mode)
        assert s / limit == embedded


@pytest.mark.parametrize("run", RUNS, ids=lambda r: r["name"])
def test_schedule_and_noise_scale_of_recorded_runs(run):
    golden, args = load_file(GOLDENS / run["file"]), run["args"]
    t = schedule.timesteps(
        args["num_steps"],
        args["timestep_shift"],
        enable_shift=args.get("enable_timestep_shift", True),
    )
    np.testing.assert_array_equal(t, golden["timesteps"])
    if "noise_scale" in golden:
        config = CONFIG | args["config_overrides"]
        s = schedule.noise_scale(
            args["height"] // 16,
            args["width"] // 16,
            sigma_0=config["noise_scale"],
            mode=config["noise_scale_mode"],
            base_image_seq_len=config["noise_scale_base_image_seq_len"],
            max_value=config["noise_scale_max_value"],
        )
        assert np.float32(s) == np.float32(golden["noise_scale"][0])


@given(st.integers(1, 2000), st.floats(0.05, 20))
def test_shape_of_every_schedule(steps, shift):
    t = schedule.timesteps(steps, shift)
    assert t.shape == (steps + 1,) and t.dtype == np.float32
    # float32 rounding of the map; 2.4e-07 occurs in the recorded values
    assert abs(float(t[0])) < 1e-6 and t[-1] == 1
    # 2000 steps at the flat end of shift 20: steps there are 2.5e-05, far above one ulp
    assert (np.diff(t) > 0).all()


@given(st.integers(1, schedule.MAX_STEPS))
def test_shift_one_is_the_identity(steps):
    t = schedule.timesteps(steps, 1.0)
    # 1 - (1 - t) loses at most half an ulp of 1 against t itself
    np.testing.assert_allclose(t, schedule.linspace(steps), rtol=0, atol=2**-24)
    np.testing.assert_allclose(t, np.arange(steps + 1) / steps, rtol=0, atol=2**-23)
    np.testing.assert_array_equal(
        schedule.timesteps(steps, 3.0, enable_shift=False), schedule.linspace(steps)
    )


def test_a_larger_shift_stays_longer_in_the_noise():
    assert (schedule.timesteps(50, 3.0)[1:-1] < schedule.timesteps(50, 1.0)[1:-1]).all()


@pytest.mark.parametrize("steps", [0, -1, schedule.MAX_STEPS + 1])
def test_steps_out_of_range(steps):
    with pytest.raises(UsageProblem, match="steps"):
        schedule.timesteps(steps)


@pytest.mark.parametrize("shift", [0.0, -1.0, float("nan"), float("inf")])
def test_shift_out_of_range(shift):
    with pytest.raises(UsageProblem, match="timestep shift"):
        schedule.timesteps(4, shift)


@pytest.mark.parametrize(
    ("name", "value"),
    [("sigma_0", 0.0), ("max_value", -1.0), ("base_image_seq_len", 0), ("sigma_0", float("nan"))],
)
def test_noise_scale_of_bad_configuration(name, value):
    good = {"sigma_0": 1.0, "mode": "resolution", "base_image_seq_len": 64, "max_value": 8.0}
    with pytest.raises(InputError, match=r"noise_scale|above 0"):
        schedule.noise_scale(4, 4, **(good | {name: value}))
