"""The NumPy sampler, generation branch and pixel heads against golden values."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from . import reference as R
from . import reference_sampling as sampling
from .golden_cases import CASES, COMPONENT, DATA, HEAD, RUN, Case, close, load_case

STEPPED = ["t2i_a_cfg1_shift1", "t2i_b_cfg4_shift3"]


def test_schedules() -> None:
    table = json.loads((DATA / "common" / "schedule.json").read_text())["schedules"]
    assert len(table) > 30
    for row in table:
        t = sampling.timesteps(row["num_steps"], row["timestep_shift"])
        # Three float32 roundings of values up to 1, order of operations unknown.
        close(t, np.array(row["t"], np.float32), 2e-7)


def test_noise_scales(dense: Case) -> None:
    table = json.loads((DATA / "common" / "schedule.json").read_text())["noise_scale"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert len({row["mode"] for row in rows}) > 3
    for row in rows:
        overrides = {
            "noise_scale": row["sigma0"],
            "noise_scale_mode": row["mode"],
            "noise_scale_max_value": row["max"],
            "noise_scale_base_image_seq_len": table["base"],
        }
        s = sampling.noise_scale(dense.config | overrides, row["h"] // R.P, row["w"] // R.P)
        # The table was computed in double precision.
        assert s == pytest.approx(row["noise_scale"], rel=1e-7)
        assert s / row["max"] == pytest.approx(row["embedder_input"], rel=1e-7)


def prefixes(
    case: Case, golden: dict[str, np.ndarray]
) -> tuple[sampling.Prefix, sampling.Prefix | None]:
    cond = sampling.prefill_text(case.w, case.config, golden["input_ids_cond"])
    ids = golden.get("input_ids_uncond")
    return cond, None if ids is None else sampling.prefill_text(case.w, case.config, ids)


@pytest.mark.parametrize("run", STEPPED)
def test_first_step(case: Case, run: str) -> None:
    golden = case.golden(run)
    w, config = case.w, case.config
    height, width = golden["noise"].shape[2:]
    th, tw = height // R.F, width // R.F
    cond, uncond = prefixes(case, golden)
    for name, prefix, last in (("kv_cond_last8", cond, 8), ("kv_uncond", uncond, None)):
        for i, (key, value) in enumerate(prefix.cache if prefix else []):
            start = key.shape[2] - last if last else 0
            close(key[:, :, start:], golden[f"{name}.{i}.key"], COMPONENT)
            close(value[:, :, start:], golden[f"{name}.{i}.value"], COMPONENT)
    indexes = R.image_indexes(cond.t_image, th, tw)
    np.testing.assert_array_equal(indexes, golden["image_indexes_cond"])
    assert golden["position_indexes_cond_last"][0, 0] + 1 == cond.t_image

    s = sampling.noise_scale(config, height // R.P, width // R.P)
    assert np.float32(s) == golden["noise_scale"][0]
    for step in (0, 1):
        t = float(golden["timesteps"][step])
        e = R.scalar_embedder(w, "timestep_embedder", t)
        close(e, golden[f"step{step}.timestep_embedding"], COMPONENT)
    e = R.scalar_embedder(w, "noise_scale_embedder", s / config["noise_scale_max_value"])
    close(e, golden["step0.noise_scale_embedding"], COMPONENT)
    z = np.float32(s) * golden["noise"]
    grid = np.array([[height // R.P, width // R.P]])
    features = R.vision_tower(w, config, R.VISION_GEN, R.patchify(z[0]), grid)
    close(features, golden["step0.gen_vision_features"], COMPONENT)
    x = R.image_gen_embedding(w, config, z, 0.0, s)
    close(x, golden["step0.gen_inputs_embeds"], COMPONENT)
    hidden = R.generation_hidden(w, config, x, indexes, cond.cache)
    close(hidden, golden["step0.gen_hidden_last"], COMPONENT)

    def head(hidden: np.ndarray) -> np.ndarray:
        conv = config["use_pixel_head"]
        return R.conv_decoder(w, hidden, th, tw) if conv else R.mlp_head(w, hidden)

    close(head(hidden), golden["step0.x0_head_output"], COMPONENT)
    close(head(golden["step0.gen_hidden_last"]), golden["step0.x0_head_output"], HEAD)
    if uncond:
        indexes = R.image_indexes(uncond.t_image, th, tw)
        np.testing.assert_array_equal(indexes, golden["image_indexes_uncond"])
        x0 = R.denoiser(w, config, x, uncond.t_image, th, tw, uncond.cache)
        v = R.to_head_patches(sampling.velocity(x0, z, 0.0, 0.02))
        close(v, golden["step0.v_uncond_patches"], COMPONENT)


def stored_pictures() -> list[tuple[str, str]]:
    """Every text-to-image run with a golden here; think mode needs a tokenizer."""
    return [
        (name, run)
        for name in CASES
        for run, entry in load_case(name).runs.items()
        if entry["kind"] == "t2i"
        and not entry["args"].get("think_mode")
        and (DATA / name / "goldens" / entry["file"]).exists()
    ]


def test_pictures_are_there() -> None:
    found = stored_pictures()
    assert set(found) >= {(name, run) for name in CASES for run in STEPPED}
    assert len(found) >= 18


@pytest.mark.parametrize(("name", "run"), stored_pictures())
def test_text_to_image(name: str, run: str) -> None:
    case = load_case(name)
    entry, golden = case.runs[run], case.golden(run)
    args = entry["args"]
    noise = golden.get("noise")
    if noise is None:
        noise = load_file(case.folder / "goldens" / entry["noise_file"])["noise"]
    shift = args["timestep_shift"] if args.get("enable_timestep_shift", True) else 1
    t = sampling.timesteps(args["num_steps"], shift)
    close(t, golden["timesteps"], 2e-7)  # as in test_schedules
    path = sampling.text_to_image(
        case.w,
        case.config | args["config_overrides"],
        *prefixes(case, golden),
        noise,
        args["num_steps"],
        shift,
        args["cfg_scale"],
        tuple(args.get("cfg_interval", (0.0, 1.0))),
        args.get("cfg_norm", "none"),
        args.get("t_eps", 0.02),
    )
    if "z_steps" in golden:
        close(np.concatenate(path[:-1]), golden["z_steps"], RUN)
    else:
        close(path[0], golden["z_after_step0"], RUN)
    close(path[-1], golden["z_final"], RUN)
    if "image_uint8" in golden:
        levels = level_differences(path[-1][0], golden["image_uint8"])
        # A value next to a rounding tie may fall on the other side; two such values were seen.
        assert levels.max() <= 1
        assert np.count_nonzero(levels) <= 8


def level_differences(z: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Differences of the 8-bit levels, [H, W, 3]."""
    picture = sampling.to_uint8(z)
    assert picture.dtype == np.uint8
    assert picture.shape == image.shape
    return np.abs(picture.astype(int) - image.astype(int))


def test_guidance_norms_only_shorten() -> None:
    # Two tiles of one sample; u + 2 (c - u) is longer than c in the first, shorter in the second.
    c = np.array([[[3, 0], [0, 4]]], np.float32)
    u = np.array([[[0, 0], [0, 6]]], np.float32)
    v = np.array([[[6, 0], [0, 2]]], np.float32)
    limited = np.array([[[3, 0], [0, 2]]], np.float32)
    exact = 1e-6  # a handful of float32 operations
    close(sampling.guide(c, u, 2.0, "none", False), v, exact)
    close(sampling.guide(c, u, 2.0, "channel", False), limited, exact)
    factor = np.float32(5 / np.sqrt(40))
    expected = v * factor
    close(sampling.guide(c, u, 2.0, "global", False), expected, exact)
    shorter = sampling.guide(c[:, 1:], u[:, 1:], 2.0, "global", False)
    close(shorter, v[:, 1:], exact)
    with pytest.raises(ValueError, match="unknown norm 'layer'"):
        sampling.guide(c, u, 2.0, "layer", False)


def test_batch_repeats_the_prefix(case: Case) -> None:
    golden = case.golden("t2i_b_cfg4_shift3")
    cond, uncond = prefixes(case, golden)
    noise = np.concatenate([golden["noise"], golden["noise"][:, :, ::-1]])
    for norm in ("none", "global"):
        both = sampling.text_to_image(
            case.w, case.config, cond, uncond, noise, 2, cfg=4.0, norm=norm
        )
        for i in range(2):
            alone = sampling.text_to_image(
                case.w, case.config, cond, uncond, noise[i : i + 1], 2, cfg=4.0, norm=norm
            )
            close(both[-1][i : i + 1], alone[-1], RUN)


def test_without_noise_scale_embedding_nothing_is_added(dense: Case) -> None:
    golden = dense.golden("t2i_a_cfg1_shift1")
    z = golden["noise"] * golden["noise_scale"]
    w = {name: a for name, a in dense.w.items() if "noise_scale_embedder" not in name}
    config = dense.config | {"add_noise_scale_embedding": False}
    x = R.image_gen_embedding(w, config, z, 0.0, float(golden["noise_scale"][0]))
    expected = golden["step0.gen_inputs_embeds"] - golden["step0.noise_scale_embedding"]
    close(x, expected, COMPONENT)


def test_head_patches_are_row_column_channel() -> None:
    picture = np.arange(3 * 64 * 96, dtype=np.float32).reshape(1, 3, 64, 96)
    patches = R.to_head_patches(picture)
    assert patches.shape == (1, 6, 3072)
    # Tile 4 is row 1, column 1; entry (p, q, c) = (2, 5, 1).
    assert patches[0, 4, (2 * 32 + 5) * 3 + 1] == picture[0, 1, 32 + 2, 32 + 5]
    np.testing.assert_array_equal(R.from_head_patches(patches, 2, 3), picture)


def test_to_uint8_rounds_ties_to_even_and_clamps() -> None:
    # The first two land exactly on levels 128.5 and 129.5 in float32.
    z = np.array([2 * 128.5 / 255 - 1, 2 * 129.5 / 255 - 1, -3, 3], np.float32)
    assert ((z[:2] * 0.5 + 0.5) * 255).tolist() == [128.5, 129.5]
    picture = sampling.to_uint8(np.broadcast_to(z, (3, 1, 4)))
    assert picture.shape == (1, 4, 3)
    assert picture[0, :, 0].tolist() == [128, 130, 0, 255]
