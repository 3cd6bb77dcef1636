"""Which numbers of a config are about a group."""

from __future__ import annotations

from typing import Any

import pytest

from ntool.lib.experts.config_sizes import ConfigSizes

GROUP = "model.layers.1.mlp.experts"
OMNI = {
    "thinker_config": {
        "text_config": {"num_experts": 4, "hidden_size": 8, "moe_intermediate_size": 6},
        "vision_config": {"hidden_size": 32, "intermediate_size": 64},
    },
    "talker_config": {"text_config": {"num_experts": 3, "hidden_size": 6}},
}


@pytest.mark.parametrize(
    "key",
    [
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
        "num_routed_experts",
        "num_moe_experts",
    ],
)
@pytest.mark.parametrize("nest", ["", "text_config", "llm_config", "language_config"])
def test_names_and_nesting(key: str, nest: str) -> None:
    values = {key: 4, "hidden_size": 8, "moe_intermediate_size": 6, "intermediate_size": 9}
    sizes = ConfigSizes({nest: values, "vision_config": {"hidden_size": 3}} if nest else values)
    got = sizes.of(GROUP)
    assert (got.experts, got.hidden, got.inner) == ({4}, {8}, {6})


@pytest.mark.parametrize(
    "key", ["num_experts_per_tok", "n_shared_experts", "num_shared_experts", "moe_k", "n_group"]
)
def test_other_counts(key: str) -> None:
    assert ConfigSizes({key: 2, "hidden_size": 8}).of(GROUP).experts == set()


@pytest.mark.parametrize("value", [None, True, 0, -1, 4.0, "4", [], ["4"], {"a": 1}, [4, None]])
def test_values_that_are_no_sizes(value: Any) -> None:
    got = ConfigSizes({"num_experts": value, "hidden_size": value}).of(GROUP)
    assert (got.experts, got.hidden) == (set(), set())


def test_towers() -> None:
    sizes = ConfigSizes(OMNI)
    thinker = sizes.of("thinker.model.layers.0.mlp.experts")
    talker = sizes.of("talker.model.layers.0.mlp.experts")
    assert (thinker.experts, thinker.hidden, thinker.inner) == ({4}, {8}, {6})
    assert (talker.experts, talker.hidden) == ({3}, {6})
    assert sizes.of("thinker.visual.blocks.0.mlp.experts").hidden == {32}


def test_plain_words_are_the_language_model() -> None:
    towers = {"text_config": {"num_experts": 4}, "vision_config": {"num_experts": 2}}
    assert ConfigSizes(towers).of(GROUP).experts == {4}
    assert ConfigSizes(towers).of("vision_tower.blocks.0.mlp.experts").experts == {2}


def test_a_tower_of_unknown_name_may_be_any() -> None:
    got = ConfigSizes(OMNI).of("decoder.layers.0.mlp.experts")
    assert (got.experts, got.hidden) == ({3, 4}, {6, 8})


def test_two_kinds_of_experts_of_one_model() -> None:
    config = {"llm_config": {"num_experts": 128, "gen_num_experts": 32, "hidden_size": 8}}
    sizes = ConfigSizes(config)
    assert sizes.of("language_model.model.layers.0.mlp.experts").experts == {128}
    assert sizes.of("language_model.model.layers.0.mlp_mot_gen.experts").experts == {32}


def test_lists() -> None:
    per_layer = {"num_experts": [0, 4, 6], "num_hidden_layers": 3}
    assert ConfigSizes(per_layer).of(GROUP).experts == {4}
    assert ConfigSizes(per_layer).of("model.layers.7.experts").experts == {4, 6}
    populations = {"moe_num_experts": [64, 64], "moe_intermediate_size": [9, 3]}
    got = ConfigSizes(populations).of(GROUP)
    assert (got.experts, got.inner) == ({128}, {9, 3})


def test_sizes_of_the_section_around() -> None:
    config = {"d_model": 8, "ffn_config": {"moe_num_experts": 4, "ffn_hidden_size": 6}}
    got = ConfigSizes(config).of("transformer.blocks.0.ffn.experts")
    assert (got.experts, got.hidden, got.inner) == ({4}, {8}, {6})


@pytest.mark.parametrize("where", ["", "text_config"])
def test_block(where: str) -> None:
    quantization = {"quantization_config": {"weight_block_size": [4, 8]}}
    inner = {"num_experts": 4, **(quantization if where else {})}
    got = ConfigSizes({"text_config": inner, **({} if where else quantization)}).of(GROUP)
    assert (got.block, got.run) == ((4, 8), 32)


@pytest.mark.parametrize(
    "value", [None, 128, [], [128], [0, 4], [4, 4, 4], ["4", "4"], [4.0, 4.0], [True, True]]
)
def test_no_block(value: Any) -> None:
    config = {"quantization_config": {"weight_block_size": value, "group_size": value}}
    assert ConfigSizes(config).of(GROUP).block is None


def test_configs_nested_beyond_sense() -> None:
    deep: dict[str, Any] = {"num_experts": 4}
    for _ in range(900):
        deep = {"a_config": deep}
    assert ConfigSizes(deep).of(GROUP).experts == set()
    wide = {f"x{i}_config": {"num_experts": i + 1} for i in range(5000)}
    assert len(ConfigSizes(wide).of(GROUP).experts) < 5000
