"""Every field of config.json with values that no checkpoint has: refused by name, or harmless."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint
from ntool.lib.errors import InputError, NtoolError
from ntool.lib.families import find
from ntool.lib.families.neo_chat.config import is_moe
from ntool.lib.families.neo_chat.export import NeoChat
from ntool.lib.package import export, manifest

from .golden_cases import DATA

ODD: list[Any] = [
    None, True, False, 0, -1, 7, 2**31 - 1, 2**63, 10**400, 0.3, 1e-320, 1e300, math.nan, math.inf,
    -math.inf, "", "moe", "\ud800", [], [0.5], ["Moe"], [None], {}, {"a": 1},
]  # fmt: skip
ABSENT = object()
CASES = ("dense-conv", "moe-mlp")


def checkpoint(case: str) -> Checkpoint:
    return open_checkpoint(str(DATA / case / "checkpoint"))


def places(case: str) -> list[tuple[str, ...]]:
    """Paths of all fields of a case's config, and of optional ones that it leaves out."""
    config = checkpoint(case).config
    inner = [(k, n) for k, v in config.items() if isinstance(v, dict) for n in v]
    llm = ("decoder_sparse_step", "mlp_only_layers", "tie_word_embeddings", "num_experts")
    optional = [("llm_config", n) for n in llm]
    return list(dict.fromkeys([*((k,) for k in config), *inner, *optional]))


FIELDS = [(case, place) for case in CASES for place in places(case)]


def with_value(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    out = copy.deepcopy(config)
    holder = out
    for key in place[:-1]:
        holder = holder[key]
    if value is ABSENT:
        holder.pop(place[-1], None)
    else:
        holder[place[-1]] = value
    return out


@pytest.mark.parametrize(("case", "place"), FIELDS, ids=lambda x: str(x))
def test_odd_values_end_in_a_refusal_or_in_a_sound_package(case: str, place) -> None:
    """Warnings are errors here, and anything but an NtoolError is a bug."""
    c = checkpoint(case)
    sound, usual = c.config, NeoChat(c).config
    for value in [*ODD, ABSENT]:
        c.config = with_value(sound, place, value)
        try:
            find(c.config, "config.json")
            if NeoChat(c).config == usual:
                continue  # nothing of the graphs depends on it
            plan = export.plan(c, dry_run=True)
        except NtoolError as e:
            assert e.exit_code in (3, 4, 5), (value, e)
            assert len(e.message) < 2500 and "\n" not in e.message
            continue
        json.dumps(manifest.package(plan), ensure_ascii=False, allow_nan=False).encode()
        for component in plan.components:
            export.graph_bytes(plan, component)


NAMED = [
    (("llm_config", "architectures"), [3, True, math.nan, {}, [3], "Moe"]),
    (("llm_config", "rope_theta"), [1e-320, 1e300, 0, math.inf, 0.5]),
    (("llm_config", "rope_theta_hw"), [1e-320, 1e300]),
    (("vision_config", "rope_theta_vision"), [1e-320, 1e300]),
    (("downsample_ratio",), [1e-320, 0, -1, math.nan, "x", None, 0.4]),
    (("noise_scale_mode",), ["\ud800", 3, None]),
    (("noise_scale",), [1e-320, 1e300, -1]),
    (("llm_config", "rms_norm_eps"), [1e-320, 2]),
    (("llm_config", "num_hidden_layers"), [2**31 - 1]),
    (("vision_config", "patch_size"), [2**20]),
]


@pytest.mark.parametrize(("place", "values"), NAMED)
def test_the_field_is_named_with_what_was_found_and_expected(place, values) -> None:
    c = checkpoint("dense-conv")
    sound = c.config
    for value in values:
        c.config = with_value(sound, place, value)
        with pytest.raises(InputError) as e:
            export.plan(c, dry_run=True)
        for word in (c.source, "config.json", place[-1], "found ", "expected "):
            assert word in e.value.message, (value, e.value.message)


def test_a_list_of_one_is_its_element() -> None:
    c = checkpoint("dense-conv")
    for place in (("downsample_ratio",), ("vision_config", "patch_size")):
        value = c.config
        for key in place:
            value = value[key]
        c.config = with_value(c.config, place, [value])
    export.plan(c, dry_run=True)


def test_the_type_of_the_backbone_is_told_by_strings_only() -> None:
    assert is_moe({"architectures": ["Qwen3MoeForCausalLM"]})
    assert is_moe({"model_type": "qwen3_moe"})
    for names in (3, True, math.nan, {"Moe": 1}, None, "Moe"):
        assert not is_moe({"architectures": names})


SAMPLER = [
    ({"text-to-image": {"steps": 0}}, "$.steps"),
    ({"text-to-image": {"cfg": "4"}}, "$.cfg"),
    ({"text-to-image": {"cfg_interval": [0]}}, "$.cfg_interval"),
    ({"text-to-image": {"cfg_interval": ["a", 1]}}, "$.cfg_interval[0]"),
    ({"text-to-image": {"shift": math.inf}}, "$.shift"),
    ({"text-to-image": {"cfg_norm": "loud"}}, "$.cfg_norm"),
    ({"text-to-image": {"volume": 11}}, "some of"),
    ({"interleave": 5}, "some of"),
    (5, "an object"),
]


@pytest.mark.parametrize(("values", "words"), SAMPLER)
def test_sampler_defaults_of_the_checkpoint(values: Any, words: str) -> None:
    c = checkpoint("dense-conv")
    c.generation_config = {"image_generation": values}
    with pytest.raises(InputError) as e:
        manifest.package(export.plan(c, dry_run=True))
    assert "generation_config.json: image_generation" in e.value.message
    assert words in e.value.message


def test_a_whole_number_is_a_number() -> None:
    c = checkpoint("dense-conv")
    c.generation_config = {"image_generation": {"text-to-image": {"cfg": 7}}}
    found = manifest.package(export.plan(c, dry_run=True))
    assert found["defaults"]["text-to-image"]["cfg"] == 7
