from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ntool.lib.errors import InputError
from ntool.lib.families import recognise
from ntool.lib.families.qwen4_exp import groups, inventory

from ...sparse_files import CENSUS, fp8_listing

CONFIG: dict[str, Any] = json.loads((CENSUS / "fp8-full.config.json").read_text())


@pytest.fixture(scope="module")
def names() -> frozenset[str]:
    return frozenset(row[0] for row in fp8_listing())


ALL = {"text", "experts", "scales", "ple", "visual", "mtp"}


def test_the_published_repository_is_complete(names: frozenset[str]) -> None:
    assert inventory.complete(CONFIG, names) == dict.fromkeys(ALL, True)
    assert recognise.recognise(CONFIG, names) == recognise.recognise({}, names) == "qwen4_exp"


@pytest.mark.parametrize(
    "name, component",
    [
        ("lm_head.weight", "text"),
        ("model.language_model.layers.3.self_attn.indexer.index_qk_proj.weight", "text"),
        ("model.language_model.layers.0.linear_attn.dt_bias", "text"),
        ("model.language_model.layers.47.mlp.experts.511.up_proj.weight", "experts"),
        ("model.language_model.layers.5.mlp.experts.0.down_proj.weight_scale_inv", "scales"),
        (
            "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale",
            "scales",
        ),
        ("model.language_model.layers.1.ple.conv1d.weight", "ple"),
        (
            "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_127.weight",
            "ple",
        ),
        ("model.visual.blocks.26.mlp.linear_fc2.bias", "visual"),
        ("mtp.layers.0.mlp.experts.7.gate_proj.weight_scale_inv", "mtp"),
        ("mtp.fc_hidden.weight", "mtp"),
    ],
)
def test_one_absent_tensor(name: str, component: str, names: frozenset[str]) -> None:
    assert name in names
    judged = inventory.complete(CONFIG, names - {name})
    assert judged == {c: c != component for c in ALL}


def test_every_name_but_the_hash_buffers_is_demanded(names: frozenset[str]) -> None:
    """The inventory yields no name beyond the listing and leaves none out."""
    text = inventory.Values(CONFIG["text_config"], "text_config")
    demanded = set(inventory.wanted_text(text, inventory.COMPOSITE, tied=False))
    demanded |= set(inventory._visual(inventory.Values(CONFIG["vision_config"], "v")))
    demanded |= set(inventory._mtp())
    demanded |= set(inventory._ple("model.language_model.layers.1.ple", 128))
    rest = {n for n in names - demanded if ".mlp.experts." not in n}
    at = "model.language_model.layers.1.ple.ple_embedding"
    buffers = ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")
    assert rest == {f"{at}.{b}" for b in buffers} | {f"{at}.ngram_embedding.weight_scale"}
    assert demanded <= names


def text_only(names: frozenset[str]) -> frozenset[str]:
    return frozenset(
        n.replace("model.language_model.", "model.")
        for n in names
        if not n.startswith(("mtp.", "model.visual."))
    )


def test_a_checkpoint_of_the_text_model_alone(names: frozenset[str]) -> None:
    config = {**CONFIG["text_config"], "quantization_config": {}}
    judged = inventory.complete(config, text_only(names))
    assert judged == dict.fromkeys(("text", "experts", "scales", "ple"), True)
    assert recognise.recognise(config, frozenset()) == "qwen4_exp"


def test_fused_experts_and_no_quantisation(names: frozenset[str]) -> None:
    fused = {n for n in names if ".mlp.experts." not in n and not n.endswith("_scale")}
    homes = [f"model.language_model.layers.{i}" for i in range(48)] + ["mtp.layers.0"]
    for home in homes:
        fused |= {f"{home}.mlp.experts.gate_up_proj", f"{home}.mlp.experts.down_proj"}
    assert len(fused) == 1658  # published: the BF16 release
    config = {k: v for k, v in CONFIG.items() if k != "quantization_config"}
    judged = inventory.complete(config, frozenset(fused))
    assert judged == dict.fromkeys(ALL - {"scales"}, True)
    fused.remove("model.language_model.layers.9.mlp.experts.down_proj")
    assert not inventory.complete(config, frozenset(fused))["experts"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_experts": 0}, "num_experts"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"layer_types": ["x"] * 48}, "layer_types"),
        ({"ple_layer_ids": [0]}, "ple_layer_ids"),
        ({"ple_layer_ids": "2"}, "ple_layer_ids"),
        ({"num_hidden_layers": "48"}, "num_hidden_layers"),
    ],
)
def test_configs_that_cannot_be(
    change: dict[str, Any], message: str, names: frozenset[str]
) -> None:
    config = {**CONFIG, "text_config": {**CONFIG["text_config"], **change}}
    with pytest.raises(InputError, match=message):
        inventory.complete(config, names)


def test_counts_of_a_config_that_lies_cost_nothing(names: frozenset[str]) -> None:
    text = {**CONFIG["text_config"], "num_experts": 10**6, "num_hidden_layers": 10**6}
    del text["layer_types"]
    judged = inventory.complete({**CONFIG, "text_config": text}, names)
    assert not judged["experts"] and not judged["text"]


@pytest.mark.parametrize("rules", [groups.GROUPS, groups.COMPONENTS])
def test_rules_look_at_no_digit(rules: tuple[tuple[str, str], ...]) -> None:
    for _, pattern in rules:
        assert not re.search(r"\d|\\d|\\w|\[", pattern)
