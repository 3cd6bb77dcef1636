"""Guidance: recorded first steps, and each rule by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ntool.lib.errors import UsageProblem
from ntool.lib.sampling import euler, schedule
from ntool.lib.sampling.guidance import (
    Guidance,
    branches,
    branches_at,
    combine,
    guided,
    normalise,
    zero_star,
)

GOLDENS = Path(__file__).parents[1] / "data/neo-chat/dense-conv/goldens"
RUNS = {r["name"]: r for r in json.loads((GOLDENS / "manifest.json").read_text("utf-8"))}
NOISE_MAX = 16.0


def golden(name):
    return load_file(GOLDENS / RUNS[name]["file"])


def picture(rows, h, w, tile=32):
    """Head patch rows [1, L, (row, column, channel)] to [1, 3, H, W]."""
    x = rows.reshape(h // tile, w // tile, tile, tile, 3)
    return x.transpose(4, 0, 2, 1, 3).reshape(1, 3, h, w)


def first_z(run):
    args = RUNS[run]["args"]
    g = golden(run)
    noise = g["noise"] if "noise" in g else load_file(GOLDENS / RUNS[run]["noise_file"])["noise"]
    s = schedule.noise_scale(
        args["height"] // 16, args["width"] // 16, sigma_0=1.0, mode="resolution",
        base_image_seq_len=64, max_value=NOISE_MAX,
    )  # fmt: skip
    return np.float32(s) * noise


def after_step0(run):
    g = golden(run)
    return g["z_steps"][:1] if "z_steps" in g else g["z_after_step0"]


def settings(run, task):
    a = RUNS[run]["args"]
    return Guidance(
        task,
        cfg=a["cfg_scale"],
        img_cfg=a.get("img_cfg_scale", 1.0),
        interval=tuple(a.get("cfg_interval", (0.0, 1.0))),
        norm=a.get("cfg_norm", "none"),
    )


EDITS = [n for n, r in RUNS.items() if r["kind"] == "edit"]


@pytest.mark.parametrize("name", EDITS)
def test_first_step_of_every_recorded_edit(name):
    """All edits share noise, prompt and t = 0, so the velocities of one serve all."""
    v = {b: picture(golden("edit_4_dual")[f"step0.v_{b}_patches"], 32, 64)
         for b in ("cond", "img_cond", "uncond")}  # fmt: skip
    g = settings(name, "image-edit")
    t = golden(name)["timesteps"]
    out = combine(g, {b: v[b] for b in branches_at(g, t[0])}, t[0], 0)
    z = euler.advance(first_z(name), out, t[0], t[1])
    # float32: |v| is about 5 and cfg 4, so a few ulp of 10 (1e-6), taken ten times
    np.testing.assert_allclose(z, after_step0(name), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", EDITS)
def test_prefixes_that_an_edit_builds(name):
    assert list(branches(settings(name, "image-edit"))) == RUNS[name]["branches"]


def test_first_step_of_text_to_image():
    g, t = golden("t2i_b_cfg4_shift3"), golden("t2i_b_cfg4_shift3")["timesteps"]
    z = first_z("t2i_b_cfg4_shift3")
    v = {
        "cond": euler.velocity(g["step0.x0_head_output"], z, t[0]),
        "uncond": picture(g["step0.v_uncond_patches"], 64, 96),
    }
    out = combine(settings("t2i_b_cfg4_shift3", "text-to-image"), v, t[0], 0)
    np.testing.assert_allclose(
        euler.advance(z, out, t[0], t[1]), after_step0("t2i_b_cfg4_shift3"), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    "name",
    ["t2i_norm_global", "t2i_norm_channel", "t2i_norm_zero_star", "t2i_interval_inclusive"],
)
def test_first_step_of_other_text_to_image_runs(name):
    """c and u are taken back from two recorded first steps, of cfg 1 and cfg 4."""
    z = first_z(name)

    def v_of(run):
        t = golden(run)["timesteps"]
        return (after_step0(run) - z) / (t[1] - t[0])

    c, mixed = v_of("t2i_cfg1_shift3"), v_of("t2i_cfg4_shift1")
    u = (4 * c - mixed) / 3
    t = golden(name)["timesteps"]
    out = combine(settings(name, "text-to-image"), {"cond": c, "uncond": u}, t[0], 0)
    # dividing by a step of 0.14 magnifies the rounding of z (1e-7 of about 2) to about 1e-6
    np.testing.assert_allclose(
        euler.advance(z, out.astype(np.float32), t[0], t[1]), after_step0(name), rtol=0, atol=1e-5
    )


def arrays(*seeds, shape=(2, 3, 64, 96)):
    return [np.random.default_rng(s).standard_normal(shape).astype(np.float32) for s in seeds]


def test_text_to_image_interval_includes_both_ends():
    g = Guidance(cfg=4, interval=(0.25, 0.5))
    assert [guided(g, t) for t in (0.0, 0.25, 0.4, 0.5, 0.75)] == [False, True, True, True, False]
    assert branches_at(g, 0.25) == ("cond", "uncond") and branches_at(g, 0.0) == ("cond",)
    assert guided(Guidance(cfg=4, interval=(0.0, 0.3)), np.float32(0.3))


def test_edit_interval_excludes_both_ends_but_zero_means_always():
    for task in ("image-edit", "interleave"):
        g = Guidance(task, cfg=4, interval=(0.25, 0.75))
        assert [guided(g, t) for t in (0.25, 0.5, 0.75)] == [False, True, False]
        assert all(guided(Guidance(task, cfg=4, interval=(0, 0.5)), t) for t in (0.0, 0.5, 0.9))


def test_no_guidance_returns_cond_itself():
    c, i, u = arrays(1, 2, 3)
    v = {"cond": c, "img_cond": i, "uncond": u}
    for g in (
        Guidance(),
        Guidance(cfg=0.0),
        Guidance(cfg=0.5),
        Guidance("image-edit"),
        Guidance(cfg=4, interval=(0.5, 1), norm="cfg_zero_star"),
    ):
        assert combine(g, v, np.float32(0), 0) is c
        assert branches_at(g, 0.0) == ("cond",)


def test_each_row_of_the_combination():
    c, i, u = (a.astype(np.float64) for a in arrays(1, 2, 3))
    v = {"cond": c, "img_cond": i, "uncond": u}
    for cfg, img, expected in (
        (4, 1, i + 4 * (c - i)),
        (0, 1, i),
        (2.5, 2.5, u + 2.5 * (c - u)),
        (4, 2, u + 4 * (c - i) + 2 * (i - u)),
        (1, 2, u + (c - i) + 2 * (i - u)),
        (3, 0, u + 3 * (c - i)),
    ):
        g = Guidance("image-edit", cfg=cfg, img_cfg=img)
        np.testing.assert_allclose(combine(g, v, 0.5, 1), expected, atol=1e-12)
        assert set(branches_at(g, 0.5)) <= set(branches(g))
    got = combine(Guidance(cfg=4), v, 0.5, 1)
    np.testing.assert_allclose(got, u + 4 * (c - u), atol=1e-12)


def test_only_the_branches_asked_for_are_touched():
    (c, i) = arrays(1, 2)
    for g, v in (
        (Guidance("image-edit", cfg=4), {"cond": c, "img_cond": i}),
        (Guidance("image-edit", cfg=4, img_cfg=4), {"cond": c, "uncond": i}),
        (Guidance(cfg=4), {"cond": c, "uncond": i}),
    ):
        assert tuple(v) == branches_at(g, 0.5)
        combine(g, v, 0.5, 1)


def test_interleave_builds_all_prefixes():
    assert branches(Guidance("interleave")) == ("cond", "img_cond", "uncond")
    assert branches_at(Guidance("interleave", cfg=4), 0.5) == ("cond", "img_cond")


def test_global_norm_never_lengthens():
    c, u = arrays(1, 2)
    g = Guidance(cfg=4, norm="global")
    out = combine(g, {"cond": c, "uncond": u}, 0.5, 1)
    raw = combine(Guidance(cfg=4), {"cond": c, "uncond": u}, 0.5, 1)
    for b in range(2):  # per sample
        assert np.linalg.norm(out[b]) == pytest.approx(np.linalg.norm(c[b]), rel=1e-5)
        ratio = out[b] / raw[b]
        np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-5)
    # a velocity shorter than c stays as it is
    np.testing.assert_array_equal(normalise(g, c / 4, c), c / 4)


def test_channel_norm_is_one_factor_per_tile():
    c, u = arrays(1, 2)
    c[:, :, :32, 32:64] *= 5  # one tile differs
    g = Guidance(cfg=4, norm="channel")
    out = combine(g, {"cond": c, "uncond": u}, 0.5, 1)
    raw = combine(Guidance(cfg=4), {"cond": c, "uncond": u}, 0.5, 1)
    for y in range(0, 64, 32):
        for x in range(0, 96, 32):
            tile = (slice(None), slice(y, y + 32), slice(x, x + 32))
            for b in range(2):
                ct, rt = c[b][tile], raw[b][tile]
                factor = min(np.linalg.norm(ct) / np.linalg.norm(rt), 1)
                np.testing.assert_allclose(out[b][tile], factor * rt, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageProblem, match="40x64"):
        normalise(g, np.ones((1, 3, 64, 40), np.float32), np.ones((1, 3, 64, 40), np.float32))


def test_zero_star():
    c, u = arrays(1, 2)
    np.testing.assert_array_equal(zero_star(c, u, 4, 0), np.zeros_like(c))
    out = zero_star(c, u, 4, 1)
    for b in range(2):
        a = np.vdot(c[b].astype(float), u[b]) / np.vdot(u[b].astype(float), u[b])
        np.testing.assert_allclose(out[b], a * u[b] + 4 * (c[b] - a * u[b]), rtol=1e-5, atol=1e-5)
    # u = c: a = 1, so nothing is added
    np.testing.assert_allclose(zero_star(c, c.copy(), 4, 1), c, rtol=1e-6)


def test_norm_in_interleaved_runs_also_runs_unguided_when_cfg_exceeds_one():
    c, i = arrays(1, 2)
    g = Guidance("interleave", cfg=4, interval=(0.5, 1), norm="global")
    out = combine(g, {"cond": c, "img_cond": i}, 0.1, 1)
    assert out is not c
    np.testing.assert_allclose(out, c, rtol=1e-6)
    g = Guidance("interleave", cfg=0.5, img_cfg=1, norm="global")
    raw = combine(Guidance("interleave", cfg=0.5), {"cond": c, "img_cond": i}, 0.5, 1)
    np.testing.assert_array_equal(combine(g, {"cond": c, "img_cond": i}, 0.5, 1), raw)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"task": "vqa"}, "guidance task"),
        ({"norm": "l2"}, "^--cfg-norm: found l2"),
        ({"norm": "globl"}, "^--cfg-norm: found globl"),
        ({"task": "image-edit", "norm": "cfg_zero_star"}, "cfg_zero_star"),
        ({"cfg": float("nan")}, "^--cfg: found nan"),
        ({"interval": (0.0, float("inf"))}, "^--cfg-interval"),
        ({"tile": 0}, "tile"),
    ],
)
def test_refused_settings(kwargs, words):
    with pytest.raises(UsageProblem, match=words):
        Guidance(**kwargs)
