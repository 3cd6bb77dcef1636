"""The NumPy reference against golden values, and against properties no golden covers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from . import reference as R
from . import reference_attention as attention
from . import reference_layers as layers
from . import reference_ple as ple
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
from .reference_sizes import Ngrams, read_ngrams, read_sizes

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


# --- one layer at a time, each from golden inputs -------------------------------------------------


@pytest.fixture
def inner() -> dict[str, Array]:
    return golden("text/golden/prefill_intermediates")


def ngrams_of(name: str) -> Ngrams:
    found = read_sizes(config_of(name)).ngrams
    assert found is not None
    return found


def past_of(decoder: R.Decoder, layer: int) -> dict[str, Array]:
    return scoped(R.first_state(decoder.c, 1), str(layer))


def streams_before(inner: dict[str, Array], decoder: R.Decoder, layer: int) -> Array:
    if layer:
        return inner[f"layer{layer - 1}.out0"]
    ids = golden("text/golden/prefill")["input_ids"]
    return np.tile(decoder.embed(ids), decoder.c.N)


def results_of(m: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Array]:
    """What a function returns from now on, call after call."""
    plain, results = getattr(module, name), []

    def kept(*args: Any) -> Array:
        results.append(plain(*args))
        return results[-1]

    m.setattr(module, name, kept)
    return results


@pytest.mark.parametrize("layer", range(8))
def test_layer(inner: dict[str, Array], layer: int) -> None:
    decoder = decoder_of("text")
    g = golden("text/golden/prefill")
    visible = R.visibility(g["attention_mask"], 21)
    x = streams_before(inner, decoder, layer)
    past = past_of(decoder, layer)
    positions = g["position_ids"]
    x, _ = decoder.layer(layer, x, g["input_ids"], past, positions, visible, None)
    close(x, inner[f"layer{layer}.out0"])


@pytest.mark.parametrize("layer", [0, 1, 3])
@pytest.mark.parametrize("part", ["attn", "mlp"])
def test_hyper_connection(inner: dict[str, Array], layer: int, part: str) -> None:
    decoder = decoder_of("text")
    w = scoped(decoder.w, f"layers.{layer}.{part}_hyper_connection")
    x = inner[f"layer{layer}.{part}_hc.out1"]  # the streams that came in
    h, inj = layers.hyper_connection_read(decoder.c, w, x)
    close(h, inner[f"layer{layer}.{part}_hc.out0"])
    close(inj, inner[f"layer{layer}.{part}_hc.out2"])


@pytest.mark.parametrize("layer", [0, 1])
def test_delta_net(inner: dict[str, Array], layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of("text")
    w = scoped(decoder.w, f"layers.{layer}.linear_attn")
    past = past_of(decoder, layer)
    normed = results_of(monkeypatch, layers, "gated_norm")
    h = inner[f"layer{layer}.attn_hc.out0"]
    o, _, _ = layers.delta_net(decoder.c, w, h, past["conv_state"], past["recurrent_state"])
    close(o, inner[f"layer{layer}.linear_attn.out0"])
    close(normed[0].reshape(-1, decoder.c.dv), inner[f"layer{layer}.gated_norm.out0"])


def test_qsa(inner: dict[str, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of("text")
    g = golden("text/golden/prefill")
    visible = R.visibility(g["attention_mask"], 21)
    past = past_of(decoder, 3)
    selected = results_of(monkeypatch, attention, "selection")
    weights = results_of(monkeypatch, attention, "attention_weights")
    o, _ = attention.qsa_attention(
        decoder.c,
        scoped(decoder.w, "layers.3.self_attn"),
        inner["layer3.attn_hc.out0"],
        (past["key"], past["value"], past["index_key"]),
        g["position_ids"],
        visible,
    )
    expected = inner["layer3.qsa_selected.out0"][0].astype(bool)
    assert not np.array_equal(expected, visible)
    np.testing.assert_array_equal(selected[0], expected)
    close(weights[0], inner["layer3.self_attn.out1"])
    close(o, inner["layer3.self_attn.out0"])


@pytest.mark.parametrize("layer", [1, 5])
def test_ple(inner: dict[str, Array], layer: int) -> None:
    decoder = decoder_of("text")
    g = golden("text/golden/prefill")
    past = past_of(decoder, layer)
    number = {1: 0, 5: 1}[layer]
    rows, _ = ple.row_ids(ngrams_of("text"), number, past["ple_context"], g["input_ids"])
    np.testing.assert_array_equal(rows, g[f"inter.layer{layer}.ngram_rows"])
    emb = ple.ple_embedding(scoped(decoder.w, f"layers.{layer}.ple"), rows)
    np.testing.assert_array_equal(emb, inner[f"layer{layer}.ple_embedding.out0"])
    x = streams_before(inner, decoder, layer)
    added, _ = decoder.ple(layer, x, g["input_ids"], past, None)
    close(added, inner[f"layer{layer}.ple.out0"])


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_moe(inner: dict[str, Array], layer: int) -> None:
    decoder = decoder_of("text")
    w = scoped(decoder.w, f"layers.{layer}.mlp")
    h = inner[f"layer{layer}.mlp_hc.out0"]
    logits = layers.linear(w, "gate", h[0])
    ids, weights = layers.route(decoder.c, logits)
    close(logits, inner[f"layer{layer}.router.out0"])
    close(weights, inner[f"layer{layer}.router.out1"])
    np.testing.assert_array_equal(ids, inner[f"layer{layer}.router.out2"])
    close(layers.routed_experts(w, h[0], ids, weights), inner[f"layer{layer}.experts.out0"])
    close(layers.moe(decoder.c, w, h), inner[f"layer{layer}.moe.out0"])


def test_final_mixer(inner: dict[str, Array]) -> None:
    decoder = decoder_of("text")
    w = scoped(decoder.w, "hyper_connection_mixer")
    close(layers.final_mixer(decoder.c, w, inner["layer7.out0"]), inner["final_mixer.out0"])


# --- single parts ---------------------------------------------------------------------------------

MOE = json.loads((DATA / "moe" / "meta.json").read_text())["cases"]


@pytest.mark.parametrize("case", MOE, ids=lambda case: case["name"])
def test_moe_alone(case: dict[str, Any]) -> None:
    g = scoped(golden("moe/moe"), case["name"])
    c = replace(read_sizes(config_of("text")), k=case["k"], renormalise=case["norm_topk_prob"])
    w = scoped(g, "w")
    x = g["x"].reshape(-1, g["x"].shape[-1])
    logits = layers.linear(w, "gate", x)
    ids, weights = layers.route(c, logits)
    close(logits, g["router_logits"])
    close(weights, g["route_weights"])
    # Experts of equal probability may be named in any order, and where all the others have
    # probability zero any of them may be second.
    if case["name"] not in ("ties", "saturated"):
        np.testing.assert_array_equal(ids, g["expert_ids"])
    close(layers.moe(c, w, g["x"]), g["y"])


def test_silu_in_float32() -> None:
    g = scoped(golden("silu/boundary"), "fp32")
    close(layers.silu(g["x"]), g["silu"])
    close(layers.silu(g["x"]) * g["up"], g["silu_times_up"])


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_silu_in_float32_rounded_once_is_that_of_16_bit_types(name: str, dtype: Any) -> None:
    g = scoped(golden("silu/boundary"), name)
    assert g["x"].dtype == dtype
    y = layers.silu(g["x"].astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(y, g["silu"])
    product = y.astype(np.float32) * g["up"].astype(np.float32)
    np.testing.assert_array_equal(product.astype(dtype), g["silu_times_up"])


@pytest.mark.parametrize("name", ["real", "tiny"])
def test_rotary(name: str) -> None:
    g = scoped(golden("positions/rotary"), name)
    c = read_sizes(config_of("text"))
    if name == "real":
        c = replace(c, rd=64, theta=1e7, sections=(11, 11, 10))
    channels = g["position_ids"]
    positions = np.concatenate([np.full_like(channels[:1], 999), channels])
    cos, sin = attention.rotary(c, positions)
    assert deviation(attention.frequencies(c), g["inv_freq"]) < 1e-3
    # A position of 300 times a frequency rounds to 1.5e-5, which is 0.015 of the tolerance.
    close(cos, g["cos"])
    close(sin, g["sin"])


def test_multipliers() -> None:
    table = json.loads((DATA / "ngram" / "multipliers.json").read_text())
    for case in table["cases"]:
        c = Ngrams(case["vocab_size"], case["ngram_size"], 1, 2, 1, case["seed"], 0, ())
        assert list(ple.multipliers(c, case["ple_index"])) == case["multipliers"]
    for x, expected in table["splitmix64"].items():
        assert ple.splitmix(int(x)) == int(expected)
    assert len(table["cases"]) == 9


def test_table_geometry() -> None:
    table = json.loads((DATA / "ngram" / "primes.json").read_text())
    for case in table["cases"]:
        for layer in case["layers"]:
            c = Ngrams(100, 2, case["heads"], case["base"], 128, 0, 0, ())
            p = layer["ple_index"]
            assert list(ple.head_sizes(c, p)) == layer["sizes"]
            assert list(ple.head_offsets(c, p)) == layer["offsets"]
            assert sum(ple.head_sizes(c, p)) == layer["total"]
            assert ple.table_rows(c, p) == layer["padded_128"]
            assert ple.table_rows(replace(c, divisible=32), p) == layer["padded_32"]


def test_rows() -> None:
    assert row_differences() == (0, 0)


def row_differences() -> tuple[int, int]:
    """How many recorded calls get other rows, and how many sequences end in another context."""
    calls = contexts = 0
    for case in json.loads((DATA / "ngram" / "rows.json").read_text())["cases"]:
        c = read_ngrams(case["config"])
        for sequence in case["sequences"]:
            assert c.layers[sequence["ple_index"]] == sequence["layer"]
            context = np.array([ple.first_context(c)])
            for ids, rows in zip(sequence["calls"], sequence["rows"], strict=True):
                found, context = ple.row_ids(c, sequence["ple_index"], context, np.array([ids]))
                calls += found[0].tolist() != rows
            contexts += context[0].tolist() != sequence["context_after"]
    return calls, contexts


@pytest.mark.parametrize("name", ["text", "image-text", "text-half", "text-fp8"])
def test_stored_hash_buffers_are_the_derived_ones(name: str) -> None:
    decoder = decoder_of(name) if name != "text-fp8" else None
    c = ngrams_of(name)
    w = decoder.w if decoder else R.decoder_weights(multiplied_out(rounded=False))
    for p, layer in enumerate(c.layers):
        buffers = scoped(w, f"layers.{layer}.ple.ple_embedding")
        assert buffers["layer_multipliers"].tolist() == list(ple.multipliers(c, p))
        assert buffers["ngram_heads_vocab_sizes"].tolist() == list(ple.head_sizes(c, p))
        assert buffers["ngram_heads_offsets"].tolist() == list(ple.head_offsets(c, p))
        assert len(buffers["ngram_embedding.weight"]) == ple.table_rows(c, p)


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
