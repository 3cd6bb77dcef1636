"""The five graphs against the golden files of the published implementation, every tensor of each.

The promise is atol = rtol = 1e-3; COMPONENT and RUN are tighter.
"""

from __future__ import annotations

import numpy as np
import pytest

from ntool.lib.families.neo_chat import positions as place
from ntool.lib.sampling import euler, guidance, schedule
from ntool.lib.sampling.image import to_uint8

from . import reference as R
from .golden_cases import CASES, COMPONENT, HEAD, RUN, Case, close, load_case
from .graph_session import Arrays, component, config_of, empty_cache, run_component, run_piece


def embed(case: str, ids: np.ndarray, features: np.ndarray | None = None) -> np.ndarray:
    D = config_of(load_case(case)).llm.D
    given = np.zeros((0, D), np.float32) if features is None else features
    feeds = {"input_ids": ids, "image_features": given}
    return run_component(case, "embedding", feeds)["inputs_embeds"]


def prefill(case: str, x: np.ndarray, positions: np.ndarray, keep: int) -> Arrays:
    feeds = {
        "inputs_embeds": x,
        "position_ids": positions,
        "logits_to_keep": np.array([keep]),
        **empty_cache(config_of(load_case(case))),
    }
    return run_component(
        case, "decoder", feeds, taps=["language_model.model.norm.RMSNormalization"]
    )


def check_cache(
    case: Case, found: Arrays, golden: Arrays, prefix: str, last: int | None = None
) -> None:
    for i in range(config_of(case).llm.Nl):
        for role in ("key", "value"):
            mine = found[f"present.{i}.{role}"]
            close(
                mine if last is None else mine[:, :, -last:],
                golden[f"{prefix}.{i}.{role}"],
                COMPONENT,
            )


@pytest.mark.parametrize("name", CASES)
def test_text_prefill(name: str) -> None:
    case = load_case(name)
    golden = case.golden("text_prefill")
    ids, positions = golden["input_ids"], golden["position_indexes"]
    context, start = case.context_id, case.start_id
    np.testing.assert_array_equal(place.prompt_positions(ids[0], context, start, []), positions)
    np.testing.assert_array_equal(
        place.block_causal_mask(positions[0]), golden["attention_mask_allowed"].astype(bool)
    )
    x = embed(name, ids)
    np.testing.assert_array_equal(x, golden["inputs_embeds"])
    found = prefill(name, x, positions, ids.shape[1])
    close(found["logits"], golden["logits"], COMPONENT)
    hidden = found["language_model.model.norm.RMSNormalization"]
    close(hidden[None], golden["hidden_last"], COMPONENT)
    check_cache(case, found, golden, "kv")


@pytest.mark.parametrize("name", CASES)
def test_image_prefill(name: str) -> None:
    case = load_case(name)
    golden = case.golden("image_prefill")
    pixels, grid_hw = case.pixels("image_prefill")
    np.testing.assert_array_equal(grid_hw[0] // 2 * 2, grid_hw[0])
    given = golden.get("pixel_values", golden.get("pixel_values_first4"))
    close(pixels[: len(given)], given, 1e-6)
    feeds = {"pixel_values": pixels, "grid_hw": grid_hw}
    features = run_component(name, "vision_encoder", feeds)["image_features"]
    close(features, golden["vision_features"], COMPONENT)
    ids = golden["input_ids"]
    gh, gw = grid_hw[0]
    positions = place.prompt_positions(
        ids[0], case.context_id, case.start_id, [(int(gh) // 2, int(gw) // 2)]
    )
    np.testing.assert_array_equal(positions, golden["position_indexes"])
    np.testing.assert_array_equal(
        place.block_causal_mask(positions[0]), golden["attention_mask_allowed"].astype(bool)
    )
    x = embed(name, ids, features)
    close(x, golden["inputs_embeds"], COMPONENT)
    found = prefill(name, x, positions, ids.shape[1])
    close(found["logits"][:, -1:], golden["logits_last"], COMPONENT)
    first = int(np.argmax(ids[0] == case.context_id))
    close(found["logits"][:, first : first + 1], golden["logits_at_first_image_token"], COMPONENT)
    hidden = found["language_model.model.norm.RMSNormalization"]
    close(hidden[None], golden["hidden_last"], COMPONENT)
    check_cache(case, found, golden, "kv")


@pytest.mark.parametrize("count", [1, 3])
def test_a_number_of_features_that_is_not_that_of_context_tokens_fails(count: int) -> None:
    case = load_case("dense-conv")
    ids = np.array([[1, case.context_id, case.context_id, 2]])
    features = np.zeros((count, config_of(case).llm.D), np.float32)
    with pytest.raises(Exception, match="ScatterND"):
        embed("dense-conv", ids, features)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("run", ["t2i_a_cfg1_shift1", "t2i_b_cfg4_shift3"])
def test_text_to_image(name: str, run: str) -> None:
    case = load_case(name)
    golden, args = case.golden(run), case.runs[run]["args"]
    c = config_of(case)
    branches = [b for b in ("cond", "uncond") if f"input_ids_{b}" in golden]
    _, _, H, W = golden["noise"].shape
    th, tw = H // c.F, W // c.F
    caches, places = {}, {}
    for b in branches:
        ids = golden[f"input_ids_{b}"]
        S = ids.shape[1]
        found = prefill(name, embed(name, ids), place.text_positions(0, S), 1)
        whole = f"kv_{b}.0.key" in golden
        check_cache(
            case, found, golden, f"kv_{b}" if whole else f"kv_{b}_last8", None if whole else 8
        )
        caches[b] = {k.replace("present", "past"): v for k, v in found.items() if "present" in k}
        places[b] = place.image_positions(S, th, tw)
        np.testing.assert_array_equal(places[b], golden[f"image_indexes_{b}"])
    scale = schedule.noise_scale(
        2 * th,
        2 * tw,
        sigma_0=c.noise_scale,
        mode=c.noise_scale_mode,
        base_image_seq_len=int(c.noise_scale_base_image_seq_len),
        max_value=c.noise_scale_max_value,
    )
    assert np.float32(scale) == golden["noise_scale"][0]
    t = schedule.timesteps(args["num_steps"], args["timestep_shift"])
    np.testing.assert_allclose(t, golden["timesteps"], rtol=0, atol=1.2e-7)  # one ulp at 1
    steps = []

    def model(z, t, step, names):
        feeds = {"z": z, "timestep": np.array([t]), "noise_scale": np.array([scale], np.float32)}
        taps = [v for v in TAPS if v in component(name, "image_gen_embedding").values]
        found = run_component(name, "image_gen_embedding", feeds, taps)
        if step == 0:
            close(found["inputs_embeds"], golden["step0.gen_inputs_embeds"], COMPONENT)
            close(found[TAPS[0]], golden["step0.gen_vision_features"], COMPONENT)
            close(found[TAPS[1]], golden["step0.timestep_embedding"], COMPONENT)
            close(found[TAPS[2]], golden["step0.noise_scale_embedding"], COMPONENT)
        if step == 1:
            close(found[TAPS[1]], golden["step1.timestep_embedding"], COMPONENT)
        out = {}
        for b in names:
            feeds = {
                "inputs_embeds": found["inputs_embeds"],
                "position_ids": places[b],
                "token_grid": np.array([th, tw]),
                **caches[b],
            }
            norm = "language_model.model.norm_mot_gen.RMSNormalization"
            got = run_component(name, "image_gen_denoiser", feeds, [norm])
            out[b] = got["x0"]
            if step == 0 and b == "cond":
                close(got[norm][None], golden["step0.gen_hidden_last"], COMPONENT)
                close(head_order(case, out[b]), golden["step0.x0_head_output"], COMPONENT)
            if step == 0 and b == "uncond":
                v = R.to_head_patches(euler.velocity(out[b], z, t))
                close(v, golden["step0.v_uncond_patches"], COMPONENT)
        return out

    trace = euler.Trace()
    guide = guidance.Guidance("text-to-image", cfg=args["cfg_scale"])
    first = golden["noise"] * np.float32(scale)
    z = euler.sample(first, t, model, guide, on_step=steps.append, trace=trace)
    close(np.concatenate(trace.z[1:-1]), golden["z_steps"], RUN)
    close(z, golden["z_final"], RUN)
    off = np.abs(to_uint8(z).astype(int) - golden["image_uint8"].astype(int))
    assert off.max() <= 1 and (off > 0).sum() <= 8  # rounding ties
    assert len(steps) == args["num_steps"]


TAPS = [
    "fm_modules.vision_model_mot_gen.embeddings.Gemm_1",
    "fm_modules.timestep_embedder.mlp.2.Gemm",
    "fm_modules.noise_scale_embedder.mlp.2.Gemm",
]


def head_order(case: Case, x0: np.ndarray) -> np.ndarray:
    return x0 if config_of(case).pixel_head else R.to_head_patches(x0)


@pytest.mark.parametrize("name", CASES)
def test_head_alone_tells_the_exact_gelu_from_its_tanh_form(name: str) -> None:
    from ntool.lib.families.neo_chat import heads
    from ntool.lib.graph import layers

    case = load_case(name)
    golden = case.golden("t2i_b_cfg4_shift3")
    _, _, H, W = golden["noise"].shape

    def build(g, c, i):
        rows, r = layers.rows_of(g, i["h"])
        head = heads.conv_decoder if c.pixel_head else heads.mlp_head
        first = "conv1" if c.pixel_head else "0"
        width = case.w[f"fm_modules.fm_head.{first}.weight"].shape[0]
        return [head(g.at("fm_modules.fm_head"), rows, r, i["grid"], c, width)]

    feeds = {"h": golden["step0.gen_hidden_last"], "grid": np.array([H // 32, W // 32])}
    (x0,) = run_piece(case, build, feeds)
    close(head_order(case, x0), golden["step0.x0_head_output"], HEAD)
