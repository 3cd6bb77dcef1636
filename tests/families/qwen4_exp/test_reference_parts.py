"""Layers and single parts of the NumPy reference, each alone, against golden values."""

from __future__ import annotations

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
    DATA,
    close,
    config_of,
    decoder_of,
    deviation,
    golden,
    multiplied_out,
    row_differences,
)
from .reference_layers import Array, scoped
from .reference_sizes import Ngrams, read_sizes

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
