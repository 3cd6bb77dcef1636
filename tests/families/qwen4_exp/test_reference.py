"""Whole runs of the NumPy reference against golden values, and properties that no golden covers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from . import reference as R
from . import reference_attention as attention
from . import reference_layers as layers
from .decoder_cases import (
    CLOSE,
    DATA,
    close,
    config_of,
    decoder_of,
    deviation,
    deviations,
    golden,
    multiplied_out,
    run_call,
    step_goldens,
    stored,
)
from .reference_layers import Array, scoped
from .reference_sizes import read_sizes

ROLES = {"conv_state", "recurrent_state", "key", "value", "index_key"}
PLE_ROLES = {"ple_conv_state", "ple_context"}


def check(outputs: dict[str, Array], g: dict[str, Array]) -> None:
    """All that a golden has, and that it has logits, is close."""
    found = deviations(outputs, g)
    assert max(found.values()) < CLOSE, found


def check_all(outputs: dict[str, Array], g: dict[str, Array]) -> None:
    """The golden holds every output of the call, and they are close."""
    assert outputs.keys() <= g.keys()
    check(outputs, g)


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("run", "steps"), [("", 6), ("leftpad_", 3), ("short_", 6)])
def test_text(run: str, steps: int) -> None:
    decoder = decoder_of("text")
    g = golden(f"text/golden/{run}prefill")
    outputs, state = run_call(decoder, g, None)
    roles = {name.rpartition(".")[2] for name in outputs if name.startswith("present.")}
    assert roles == ROLES | PLE_ROLES
    check_all(outputs, g)
    token = outputs["logits"][:, -1].argmax(-1)
    following = step_goldens(golden(f"text/golden/{run}decode"))
    assert len(following) == steps
    for step in following:
        np.testing.assert_array_equal(token, step["input_ids"][:, 0])
        outputs, state = run_call(decoder, step, state)
        check_all(outputs, step)
        token = outputs["logits"][:, -1].argmax(-1)


def test_image_text() -> None:
    decoder = decoder_of("image-text")
    g = golden("image-text/golden/prefill")
    outputs, state = run_call(decoder, g, None)
    check_all(outputs, g)
    following = step_goldens(golden("image-text/golden/decode"))
    assert len(following) == 4
    for step in following:
        close(decoder.embed(step["input_ids"]), step["inputs_embeds"])
        outputs, state = run_call(decoder, step, state)
        check_all(outputs, step)


def test_text_alone_of_image_text() -> None:
    g = golden("image-text/golden/text_only_prefill")
    outputs, _ = run_call(decoder_of("image-text"), g, None)
    del outputs["present_position_ids"]
    check_all(outputs, g)


@pytest.mark.parametrize("reading", ["exact", "bf16"])
def test_fp8(reading: str) -> None:
    decoder = R.Decoder(config_of("text-fp8"), multiplied_out(rounded=reading == "bf16"))
    values = golden("text-fp8/golden/prefill")
    inputs = {k: values[k] for k in ("input_ids", "attention_mask", "position_ids")}
    g = scoped(values, reading)
    outputs, state = run_call(decoder, inputs, None)
    check_all(outputs, inputs | g)
    following = step_goldens(g)
    assert len(following) == 2
    for step in following:
        outputs, state = run_call(decoder, step, state)
        check(outputs, step)


@pytest.mark.parametrize("reading", ["exact", "bf16"])
def test_fp8_is_multiplied_out_as_recorded(reading: str) -> None:
    meta = json.loads((DATA / "text-fp8" / "golden" / "meta.json").read_text())
    field = {"exact": "sha256_exact_f32", "bf16": "sha256_product_rounded_bf16"}[reading]
    dtype = {"exact": np.float32, "bf16": ml_dtypes.bfloat16}[reading]
    weights = multiplied_out(rounded=reading == "bf16")
    recorded = {name: value for name, value in meta[field].items() if name in weights}
    assert len(recorded) >= 64  # 48 matrices of experts, 16 shards
    for name, sha256 in recorded.items():
        assert hashlib.sha256(weights[name].astype(dtype).tobytes()).hexdigest() == sha256, name


def test_text_half_in_float32() -> None:
    decoder = decoder_of("text-half")
    values = golden("text-half/golden/fp32")
    inputs = golden("text-half/golden/inputs")
    outputs, state = run_call(decoder, inputs, None)
    g = scoped(values, "prefill")
    del outputs["present_position_ids"]
    check_all(outputs, inputs | g)
    following = step_goldens(values)
    assert len(following) == 3
    for step in following:
        outputs, state = run_call(decoder, step, state)
        check(outputs, step)
        assert len(deviations(outputs, step)) == len(g)


# --- properties -----------------------------------------------------------------------------------


def split_run(decoder: R.Decoder, g: dict[str, Array], sizes: list[int]) -> dict[str, Array]:
    """The outputs of a golden's inputs given in several calls, logits joined."""
    state, logits, done = None, [], 0
    outputs: dict[str, Array] = {}
    for size in sizes:
        piece = slice(done, done + size)
        done += size
        inputs = {
            "input_ids": g["input_ids"][:, piece],
            "attention_mask": g["attention_mask"][:, :done],
            "position_ids": g["position_ids"][:, :, piece],
        }
        outputs, state = run_call(decoder, inputs, state)
        logits.append(outputs["logits"])
    assert done == g["input_ids"].shape[1]
    return outputs | {"logits": np.concatenate(logits, axis=1)}


@pytest.mark.parametrize("sizes", [[10, 11], [1, 2, 3, 15], [20, 1], [1] * 21], ids=str)
def test_prompt_in_several_calls(sizes: list[int]) -> None:
    g = golden("text/golden/prefill")
    check_all(split_run(decoder_of("text"), g, sizes), g)


@pytest.mark.parametrize("sizes", [[9, 10], [3, 2, 7, 7], [18, 1], [7, 1, 11]], ids=str)
def test_padded_prompt_in_several_calls(sizes: list[int]) -> None:
    """A call of one token masks nothing (section 4, step 3), so none here has padding."""
    g = golden("text/golden/leftpad_prefill")
    check_all(split_run(decoder_of("text"), g, sizes), g)


def test_padding_changes_no_row() -> None:
    decoder = decoder_of("text")
    g = golden("text/golden/leftpad_prefill")
    together, state = run_call(decoder, g, None)
    for row, length in enumerate([19, 12]):
        real = slice(19 - length, 19)
        alone = {"input_ids": g["input_ids"][row : row + 1, real]}
        outputs, own = run_call(decoder, alone, None)
        close(together["logits"][row : row + 1, real], outputs["logits"])
        for i, linear in enumerate(decoder.c.linear):
            if linear:
                role = f"{i}.recurrent_state"
                close(state[role][row : row + 1], own[role])
            else:
                close(state[f"{i}.index_key"][row : row + 1, real], own[f"{i}.index_key"])
    assert np.isfinite(together["logits"]).all()


def test_embeddings_with_ids_are_ids() -> None:
    decoder = decoder_of("text")
    g = golden("text/golden/prefill")
    given = g | {"inputs_embeds": decoder.embed(g["input_ids"])}
    check_all(run_call(decoder, given, None)[0], g)


def test_ids_of_the_ple_are_independent_of_the_embeddings() -> None:
    decoder = decoder_of("text")
    g = golden("text/golden/prefill")
    e = decoder.embed(g["input_ids"])
    inputs = (g["attention_mask"], g["position_ids"])
    other, _ = decoder.forward(e, g["input_ids"] + 1, *inputs)
    assert deviation(other, g["logits"]) > 100


def test_everything_is_selected_within_the_budget() -> None:
    """Section 6.2, step 8."""
    c = replace(read_sizes(config_of("text")), budget=24)  # 6 blocks; 21 tokens have 5
    w = scoped(decoder_of("text").w, "layers.3.self_attn")
    rng = np.random.default_rng(1)
    visible = R.visibility(np.ones((1, 21), np.int64), 21)
    selected = attention.selection(
        c,
        w,
        rng.standard_normal((1, 21, c.nx, c.Dx), np.float32),
        rng.standard_normal((1, 21, c.Dx), np.float32),
        golden("text/golden/prefill")["position_ids"],
        visible,
    )
    np.testing.assert_array_equal(selected, visible)


def test_fused_and_separate_experts_are_the_same() -> None:
    fused = {k: v for k, v in decoder_of("text").w.items() if ".experts." in k}
    again = R.decoder_weights({f"model.language_model.{k}": v for k, v in fused.items()})
    assert again.keys() == fused.keys()
    one = stored("text")["model.layers.2.mlp.experts.5.up_proj.weight"]
    np.testing.assert_array_equal(fused["layers.2.mlp.experts.gate_up_proj"][5, 20:], one)


def test_tied_head_is_the_embedding() -> None:
    g = golden("text/golden/prefill")
    weights = {k: v for k, v in stored("text").items() if k != "lm_head.weight"}
    tied = R.Decoder(config_of("text") | {"tie_word_embeddings": True}, weights)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    untied = R.Decoder(config_of("text"), weights)
    expected = run_call(untied, g, None)[0]["logits"]
    np.testing.assert_array_equal(run_call(tied, g, None)[0]["logits"], expected)
    assert deviation(expected, g["logits"]) > 10


def test_a_bias_is_added_where_the_module_has_one() -> None:
    w = {"q_proj.weight": np.eye(2, dtype=np.float32), "q_proj.bias": np.array([3, 4], np.float32)}
    y = layers.linear(w, "q_proj", np.array([[1, 2]], np.float32))
    assert y.tolist() == [[4, 6]]


def test_defaults_of_the_config() -> None:
    text = dict(config_of("text"))
    for name in ("layer_types", "norm_topk_prob", "seed", "ple_embed_dim"):
        del text[name]
    text |= {"output_gate_type": None, "eos_token_id": [9, 7], "ple_layer_ids": [6, 2, 6]}
    text["rope_parameters"] = {"rope_theta": 1000.0, "partial_rotary_factor": 0.5}
    c = read_sizes(text)
    assert c.linear == (True, True, True, False) * 2
    assert c.renormalise is True
    assert c.ngrams is not None
    assert (c.ngrams.seed, c.ngrams.eos, c.ngrams.layers) == (1234, 9, (1, 5))
    assert (c.M, c.gate, c.sections) == (48, "silu", (11, 11, 10))
    assert read_sizes(text | {"full_attention_interval": 2}).linear == (True, False) * 4


@pytest.mark.parametrize(
    ("name", "spelling"), [("text", "indexed_attention"), ("image-text", "full_attention")]
)
def test_both_spellings_of_a_qsa_layer(name: str, spelling: str) -> None:
    config = config_of(name)
    assert spelling in config.get("text_config", config)["layer_types"]
    assert sum(read_sizes(config).linear) == 6
