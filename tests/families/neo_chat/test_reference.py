"""The NumPy reference against golden values, and against properties no golden covers."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from . import reference as R
from . import reference_layers as layers
from .golden_cases import COMPONENT, DATA, RUN, Case, close

# --- single functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_activations(name: str) -> None:
    golden = load_file(DATA / "common" / "activations.safetensors")
    # One or two roundings of values up to 6; the tanh form of GELU is off by up to 5e-4.
    close(getattr(layers, name)(golden["x"]), golden[name], 1e-6)


def test_sinusoid() -> None:
    golden = load_file(DATA / "common" / "sinusoid.safetensors")
    # Arguments reach 100, where one float32 ulp is 8e-6: no float32 program can promise less.
    close(layers.sinusoid(golden["t"]), golden["sinusoid"], 1e-5)


def test_resize_table() -> None:
    rows = json.loads((DATA / "common" / "resize_table.json").read_text())["rows"]
    for w, h, low, high, resized_w, resized_h in rows:
        if resized_w is None:
            with pytest.raises(ValueError, match="aspect"):
                R.resized_size(h, w, low, high)
        else:
            assert R.resized_size(h, w, low, high) == (resized_h, resized_w)
    assert len(rows) > 50


def test_preprocess() -> None:
    golden = load_file(DATA / "common" / "preprocess.safetensors")
    entries = json.loads((DATA / "common" / "preprocess.json").read_text())
    assert {entry["mode"] for entry in entries} == {"RGB", "RGBA", "L", "P"}
    for entry in entries:
        name = entry["name"]
        with Image.open(DATA / "common" / entry["file"]) as image:
            resized = R.resize(image, entry["min_pixels"], entry["max_pixels"])
            rows, grid = R.preprocess(image, entry["min_pixels"], entry["max_pixels"])
        np.testing.assert_array_equal(resized, golden[f"{name}.resized_uint8_hwc"])
        assert grid.tolist() == [entry["grid_hw"]]
        # From equal 8-bit levels: three float32 roundings of values up to 2.7.
        if f"{name}.pixel_values" in golden:
            close(rows, golden[f"{name}.pixel_values"], 1e-6)
        else:
            close(rows[:4], golden[f"{name}.pixel_values_first4"], 1e-6)
            close(rows[-1:], golden[f"{name}.pixel_values_last"], 1e-6)


def test_position_indexes_of_two_pictures() -> None:
    # start, 1 x 2 context tokens, end, text, start, 2 x 1 context tokens, end
    ids = np.array([7, 8, 8, 9, 5, 7, 8, 8, 9])
    found = R.position_indexes(ids, np.array([[2, 4], [4, 2]]), start_id=7, context_id=8)
    assert found.tolist() == [
        [0, 1, 1, 2, 3, 4, 5, 5, 6],
        [0, 0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 0, 0, 0, 0],
    ]


# --- prefill and decode -------------------------------------------------------------------------


def check_prefill(case: Case, golden: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Hidden states, mask and every layer's cache; returns the logits."""
    positions = golden["position_indexes"]
    allowed = layers.block_causal(positions[0])
    np.testing.assert_array_equal(allowed, golden["attention_mask_allowed"].astype(bool))
    hidden, kv = R.decoder(case.w, case.config, x, positions)
    assert len(kv) == case.config["llm_config"]["num_hidden_layers"]
    for i, (key, value) in enumerate(kv):
        close(key, golden[f"kv.{i}.key"], COMPONENT)
        close(value, golden[f"kv.{i}.value"], COMPONENT)
    close(hidden, golden["hidden_last"], COMPONENT)
    return R.lm_head(case.w, case.config, hidden)


def test_text_prefill(case: Case) -> None:
    golden = case.golden("text_prefill")
    x = R.embed(case.w, golden["input_ids"])
    np.testing.assert_array_equal(x, golden["inputs_embeds"])  # a table look-up
    close(check_prefill(case, golden, x), golden["logits"], COMPONENT)


def test_image_prefill(case: Case) -> None:
    golden = case.golden("image_prefill")
    ids = golden["input_ids"]
    rows, grid = case.pixels("image_prefill")
    np.testing.assert_array_equal(grid, golden["grid_hw"])
    first = golden["pixel_values" if "pixel_values" in golden else "pixel_values_first4"]
    close(rows[: len(first)], first, 1e-6)  # as in test_preprocess
    features = R.vision_tower(case.w, case.config, R.VISION, rows, grid)
    close(features, golden["vision_features"], COMPONENT)
    indexes = R.position_indexes(ids[0], grid, case.start_id, case.context_id)
    np.testing.assert_array_equal(indexes, golden["position_indexes"])
    x = R.embed(case.w, ids, features, case.context_id)
    close(x, golden["inputs_embeds"], COMPONENT)
    logits = check_prefill(case, golden, x)
    first_image_token = int(np.argmax(ids[0] == case.context_id))
    close(logits[:, -1:], golden["logits_last"], COMPONENT)
    at_image = logits[:, first_image_token : first_image_token + 1]
    close(at_image, golden["logits_at_first_image_token"], COMPONENT)


def test_vqa(case: Case) -> None:
    golden = case.golden("vqa")
    ids = golden["input_ids"]
    rows, grid = case.pixels("vqa")
    assert (grid[0] * R.P).tolist() == golden["resized_hw"].tolist()
    close(rows[:2], golden["pixel_values_first_patches"], 1e-6)  # as in test_preprocess
    features = R.vision_tower(case.w, case.config, R.VISION, rows, grid)
    close(features, golden["vision_features"], COMPONENT)
    indexes = R.position_indexes(ids[0], grid, case.start_id, case.context_id)
    np.testing.assert_array_equal(indexes, golden["position_indexes"])
    x = R.embed(case.w, ids, features, case.context_id)
    hidden, kv = R.decoder(case.w, case.config, x, indexes)
    limit = case.runs["vqa"]["args"]["max_new_tokens"]
    next_t = int(indexes[0].max()) + 1
    picked, logits = R.greedy(case.w, case.config, hidden, kv, next_t, case.stop_id, limit)
    assert picked == golden["generated_ids"][0].tolist()
    close(logits, golden["step_logits"], RUN)


def test_cached_decode_equals_one_prefill(case: Case) -> None:
    golden = case.golden("image_prefill")
    positions = golden["position_indexes"]
    x = golden["inputs_embeds"]
    whole, whole_cache = R.decoder(case.w, case.config, x, positions)
    image = np.flatnonzero(golden["input_ids"][0] == case.context_id)
    # Text up to the picture; the picture with the token that closes it; then one token at a time.
    cuts = [0, image[0], image[-1] + 2, *range(image[-1] + 3, x.shape[1] + 1)]
    parts: list[np.ndarray] = []
    kv: list[layers.KeyValue] | None = None
    for a, b in pairwise(cuts):
        hidden, kv = R.decoder(case.w, case.config, x[:, a:b], positions[:, a:b], kv)
        parts.append(hidden)
    close(np.concatenate(parts, axis=1), whole, COMPONENT)
    assert kv is not None
    for (key, value), (whole_key, whole_value) in zip(kv, whole_cache, strict=True):
        close(key, whole_key, COMPONENT)
        close(value, whole_value, COMPONENT)


def test_pictures_do_not_see_each_other_in_the_tower(dense: Case) -> None:
    rng = np.random.default_rng(3)
    wide, tall = (rng.standard_normal((n, 768), dtype=np.float32) for n in (2 * 6, 4 * 2))
    both = R.vision_tower(
        dense.w, dense.config, R.VISION, np.concatenate([wide, tall]), np.array([[2, 6], [4, 2]])
    )
    first = R.vision_tower(dense.w, dense.config, R.VISION, wide, np.array([[2, 6]]))
    second = R.vision_tower(dense.w, dense.config, R.VISION, tall, np.array([[4, 2]]))
    close(both, np.concatenate([first, second]), COMPONENT)


def test_embed_refuses_another_number_of_features(dense: Case) -> None:
    ids = np.array([[1, dense.context_id, dense.context_id]])
    with pytest.raises(ValueError, match="2 context tokens for 1 features"):
        R.embed(dense.w, ids, np.zeros((1, 64), np.float32), dense.context_id)


def test_tower_refuses_another_number_of_patches(dense: Case) -> None:
    with pytest.raises(ValueError, match="grids name 4 patches"):
        R.vision_tower(
            dense.w, dense.config, R.VISION, np.zeros((6, 768), np.float32), np.array([[2, 2]])
        )


# --- options of the configuration that no checkpoint here uses ----------------------------------


def test_tied_head_is_the_embedding_table(dense: Case) -> None:
    hidden = dense.golden("text_prefill")["hidden_last"]
    table = dense.w["language_model.model.embed_tokens.weight"]
    untied = dense.w | {"language_model.lm_head.weight": table}
    tied = {name: a for name, a in dense.w.items() if name != "language_model.lm_head.weight"}
    expected = R.lm_head(untied, dense.config, hidden)
    llm = dense.config["llm_config"] | {"tie_word_embeddings": True}
    np.testing.assert_array_equal(
        R.lm_head(tied, dense.config | {"llm_config": llm}, hidden), expected
    )
    # The field of llm_config wins over the top-level one.
    llm = dense.config["llm_config"] | {"tie_word_embeddings": False}
    config = dense.config | {"llm_config": llm, "tie_word_embeddings": True}
    np.testing.assert_array_equal(R.lm_head(untied, config, hidden), expected)
    with pytest.raises(KeyError):
        R.lm_head(tied, config, hidden)


@pytest.mark.parametrize("suffix", [R.UNDERSTANDING, R.GENERATION])
def test_attention_bias_is_a_weight_of_a_constant_input(dense: Case, suffix: str) -> None:
    rng = np.random.default_rng(5)
    at = "language_model.model.layers.1."
    llm = dense.config["llm_config"]
    x = rng.standard_normal((1, 5, llm["hidden_size"]), dtype=np.float32)
    positions = np.array([[0, 1, 2, 2, 3], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0]])
    allowed = layers.block_causal(positions[0])
    biased, widened = dict(dense.w), dict(dense.w)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        full = f"{at}self_attn.{name}{suffix}"
        weight = dense.w[f"{full}.weight"]
        biased[f"{full}.bias"] = rng.standard_normal(len(weight), dtype=np.float32)
        if name != "o_proj":
            column = biased[f"{full}.bias"][:, None]
            widened[f"{full}.weight"] = np.concatenate([weight, column], axis=1)
    out, kv = layers.attention(
        biased, llm | {"attention_bias": True}, at, suffix, x, positions, None, allowed
    )
    with_one = np.concatenate([x, np.ones_like(x[..., :1])], axis=-1)
    expected, expected_kv = layers.attention(
        widened, llm, at, suffix, with_one, positions, None, allowed
    )
    close(out, expected + biased[f"{at}self_attn.o_proj{suffix}.bias"], COMPONENT)
    close(kv[0], expected_kv[0], COMPONENT)
    close(kv[1], expected_kv[1], COMPONENT)


def test_which_layers_have_experts(moe: Case, dense: Case) -> None:
    def sparse(suffix: str, **fields: object) -> list[bool]:
        llm = moe.config["llm_config"] | fields
        return [layers.is_sparse(llm, i, suffix) for i in range(4)]

    assert sparse(R.UNDERSTANDING) == [True] * 4
    assert sparse(R.UNDERSTANDING, mlp_only_layers=[0, 2]) == [False, True, False, True]
    assert sparse(R.UNDERSTANDING, decoder_sparse_step=2) == [False, True, False, True]
    assert sparse(R.UNDERSTANDING, decoder_sparse_step=3) == [False, False, True, False]
    mixed = {"decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert sparse(R.UNDERSTANDING, **mixed) == [False, False, False, True]
    assert sparse(R.GENERATION, **mixed) == [True] * 4
    # A number of experts alone does not make a backbone sparse.
    llm = dense.config["llm_config"] | {"num_experts": 6}
    assert not any(layers.is_sparse(llm, 0, s) for s in (R.UNDERSTANDING, R.GENERATION))


def test_dense_layers_inside_a_sparse_backbone(moe: Case) -> None:
    """Equal experts with weights that sum to 1 are one dense MLP."""
    golden = moe.golden("image_prefill")
    x, positions = golden["inputs_embeds"], golden["position_indexes"]
    at = "language_model.model.layers.1.mlp."
    w = dict(moe.w)
    for name in ("gate_proj", "up_proj", "down_proj"):
        one = w[f"{at}experts.0.{name}.weight"]
        w |= {f"{at}experts.{e}.{name}.weight": one for e in range(6)}
    expected, _ = R.decoder(w, moe.config, x, positions)
    w = {name: a for name, a in w.items() if not name.startswith(at)}
    for name in ("gate_proj", "up_proj", "down_proj"):
        w[f"{at}{name}.weight"] = moe.w[f"{at}experts.0.{name}.weight"]
    llm = moe.config["llm_config"] | {"mlp_only_layers": [1]}
    hidden, _ = R.decoder(w, moe.config | {"llm_config": llm}, x, positions)
    close(hidden, expected, COMPONENT)
    assert np.abs(expected - golden["hidden_last"]).max() > 0.1  # the layer was really changed


def test_route() -> None:
    logits = np.log(np.array([[1, 4, 2, 3]], np.float32))
    # Two roundings of values below 1.
    close(layers.route(logits, 2, True), np.array([[0, 4 / 7, 0, 3 / 7]], np.float32), 2e-7)
    close(layers.route(logits, 2, False), np.array([[0, 0.4, 0, 0.3]], np.float32), 2e-7)


def test_expert_numbers_of_each_branch() -> None:
    llm = {"num_experts": 6, "num_experts_per_tok": 3, "gen_num_experts": 4}
    assert layers.side_value(llm, "num_experts", R.UNDERSTANDING) == 6
    assert layers.side_value(llm, "num_experts", R.GENERATION) == 4
    assert layers.side_value(llm, "num_experts_per_tok", R.GENERATION) == 3
