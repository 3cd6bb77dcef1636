"""Fields of config.json: what they become, and every value that is refused by name.

Rules of the format notes: Q1 to Q5, over the rows that they are for.
"""

from __future__ import annotations

import copy
import json
import math
from itertools import islice
from typing import Any

import pytest

from ntool.lib.errors import InputError, NtoolError, Unsupported
from ntool.lib.families.qwen4_exp.config import INDEXER, Text, read_config
from ntool.lib.families.qwen4_exp.contents import expected

from ...conftest import DATA
from ...sparse_files import CENSUS

CASES = ("text", "text-half", "text-fp8", "image-text", "vision-gelu")
ABSENT = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""A field that is left out; the address of a bare object would make the names of tests unsteady."""
TEXT, VISION, ROPE = ("text_config",), ("vision_config",), ("text_config", "rope_parameters")


def config(case: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((DATA / "qwen4-exp" / case / "config.json").read_text())
    return values


def published() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((CENSUS / "fp8-full.config.json").read_text())
    return values


def changed(values: dict[str, Any], place: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    out = copy.deepcopy(values)
    holder = out
    for key in place:
        holder = holder[key]
    for key, value in changes.items():
        if value is ABSENT:
            holder.pop(key, None)
        else:
            holder[key] = value
    return out


def test_the_published_config() -> None:
    c = read_config(published())
    t = c.text
    assert (t.H, t.L, t.V, t.N, t.r) == (2560, 48, 248_320, 4, 320)
    assert (t.nh, t.nkv, t.D, t.rd, t.theta, t.sections) == (24, 2, 256, 64, 1e7, (11, 11, 10))
    assert (t.gk, t.gv, t.dk, t.dv, t.K, t.Tc) == (16, 48, 128, 128, 4, 10_240)
    assert (t.E, t.k, t.I, t.Is, t.renormalise) == (512, 10, 640, 640, True)
    assert (t.nx, t.Dx, t.R, t.budget) == (4, 128, 4, 2048)
    assert (t.n, t.hp, t.heads, t.M, t.W, t.kp) == (3, 8, 16, 2560, 160, 4)
    assert (t.ple, t.base, t.divisible, t.seed, t.parts) == ((1,), 20_000_000, 128, 1234, 128)
    assert (t.gate, t.eos, t.tied, t.attention_bias) == ("sigmoid", (248_046,), False, False)
    assert [i for i, linear in enumerate(t.linear) if not linear] == list(range(3, 48, 4))
    v = c.vision
    assert v is not None
    assert (v.depth, v.C, v.F, v.heads, v.side, v.theta) == (27, 1152, 4304, 16, 48, 10_000)
    assert (v.P, v.frames, v.merge) == (16, 2, 2)
    assert (c.image_token_id, c.video_token_id) == (248_056, 248_057)
    assert (c.vision_start_token_id, c.vision_end_token_id) == (248_053, 248_054)
    assert c.composite and c.notes == {"mtp_num_hidden_layers": 1}
    assert hash(c) == hash(read_config(published()))


@pytest.mark.parametrize("case", CASES)
def test_the_goldens(case: str) -> None:
    values = config(case)
    c = read_config(values)
    assert c.composite == ("text_config" in values) == (c.vision is not None)
    alone = read_config(values, text_only=True)
    assert alone.vision is None and alone.image_token_id is None and alone.text == c.text


def test_values_that_may_be_absent() -> None:
    """The published config lacks two of them; null is as good as absent where it can mean nothing
    else."""
    names = ("norm_topk_prob", "seed", "layer_types", "ple_embed_dim", "attention_bias")
    values = changed(published(), TEXT, **dict.fromkeys(names, ABSENT))
    values = changed(values, ROPE, mrope_section=ABSENT, rope_type=ABSENT, mrope_interleaved=ABSENT)
    values = changed(values, TEXT, full_attention_interval=ABSENT)
    assert read_config(values) == read_config(published())
    nulls = dict.fromkeys(("seed", "layer_types", "ple_embed_dim", "attention_bias"))
    assert read_config(changed(published(), TEXT, **nulls)) == read_config(published())
    assert read_config(changed(values, TEXT, split_ngram_parts=ABSENT)).text.parts == 512
    assert read_config(changed(values, TEXT, ple_layer_ids=ABSENT)).text.ple == ()
    three = read_config(changed(values, TEXT, full_attention_interval=3, ple_layer_ids=None))
    assert three.text.linear[:6] == (True, True, False, True, True, False)


def test_spellings() -> None:
    values = published()
    assert read_config(changed(values, VISION, model_type="qwen4_exp")) == read_config(values)
    types = ["indexed_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(48)]
    assert read_config(changed(values, TEXT, layer_types=types)) == read_config(values)
    assert read_config(changed(values, TEXT, eos_token_id=[5, 9])).text.eos == (5, 9)
    assert read_config(changed(values, TEXT, ple_layer_ids=[6, 2, 6])).text.ple == (1, 5)
    assert read_config(changed(values, TEXT, output_gate_type=None)).text.gate == "silu"
    assert read_config(changed(values, TEXT, output_gate_type=ABSENT)).text.gate == "silu"
    assert read_config(changed(values, TEXT, output_gate_type="silu")).text.gate == "silu"
    assert read_config(changed(values, TEXT, attention_bias=True)).text.attention_bias
    assert read_config(changed(values, (), tie_word_embeddings=True)).text.tied is False
    tied = changed(values, TEXT, tie_word_embeddings=ABSENT)
    assert read_config(changed(tied, (), tie_word_embeddings=True)).text.tied is True
    assert read_config(changed(values, (), vision_config=ABSENT)).vision is None


def test_a_model_without_ngrams_or_without_sparse_attention() -> None:
    """Fields of what no layer has may be absent."""
    names = ("ngram_size", "heads_per_ngram", "ngram_vocab_size_base", "ple_conv_kernel_size")
    none = dict.fromkeys((*names, "ple_layer_ids", "eos_token_id"), ABSENT)
    t = read_config(changed(published(), TEXT, **none)).text
    assert (t.ple, t.heads, t.W, t.eos) == ((), 0, 0, ())
    linear = {"layer_types": ["linear_attention"] * 48, **dict.fromkeys(INDEXER)}
    t = read_config(changed(published(), TEXT, **linear)).text
    assert all(t.linear) and (t.nx, t.Dx, t.budget, t.R) == (0, 0, 0, 0)


LINEAR_48 = ["linear_attention"] * 48
REFUSED: list[tuple[tuple[str, ...], dict[str, Any], type[NtoolError], tuple[str, ...]]] = [
    # Q1
    (TEXT, {"layer_types": ["linear_attention"] * 47 + ["swa"]}, InputError, ("'swa'",)),
    (TEXT, {"layer_types": LINEAR_48[:3]}, InputError, ("'layer_types'", "3 types", "48")),
    (TEXT, {"hc_count": 1}, InputError, ("'hc_count'", "found 1", "from 2")),
    (TEXT, {"num_experts_per_tok": 513}, InputError, ("'num_experts_per_tok'", "513", "512")),
    (TEXT, {"num_experts_per_tok": 0}, InputError, ("'num_experts_per_tok'", "found 0")),
    (TEXT, {"moe_intermediate_size": 0}, InputError, ("'moe_intermediate_size'", "found 0")),
    (TEXT, {"shared_expert_intermediate_size": -1}, InputError, ("'shared_expert_", "found -1")),
    (TEXT, {"num_experts": 0}, InputError, ("'num_experts'", "found 0")),
    (TEXT, {"output_gate_type": "tanh"}, Unsupported, ("'output_gate_type'", "'tanh'")),
    (TEXT, {"indexer_budget": None}, InputError, ("'indexer_budget'", "found none")),
    (TEXT, {"indexer_kv_heads": 2}, Unsupported, ("'indexer_kv_heads'", "found 2", "expected 1")),
    (TEXT, {"indexer_budget": 2047}, InputError, ("'indexer_budget'", "2047", "multiple of 4")),
    (TEXT, {"indexer_head_dim": 32}, InputError, ("'indexer_head_dim'", "32", "at least 64")),
    (TEXT, {"ple_embed_dim": 2561}, InputError, ("'ple_embed_dim'", "2561", "multiple of 16")),
    (TEXT, {"ple_layer_ids": [0]}, InputError, ("'ple_layer_ids'", "[0]", "1 to 48")),
    (TEXT, {"ple_layer_ids": [49]}, InputError, ("'ple_layer_ids'", "[49]")),
    (TEXT, {"ple_layer_ids": [2, 4]}, InputError, ("'ple_layer_ids'", "found 4, of sparse")),
    (TEXT, {"eos_token_id": None}, InputError, ("'eos_token_id'", "found none", "n-gram")),
    (TEXT, {"eos_token_id": []}, InputError, ("'eos_token_id'", "found none")),
    (TEXT, {"eos_token_id": [3, 248_320]}, InputError, ("'eos_token_id'", "248320", "248319")),
    # Q2
    (ROPE, {"rope_type": "yarn"}, Unsupported, ("'rope_type'", "'yarn'", "'default'")),
    (ROPE, {"mrope_interleaved": False}, Unsupported, ("'mrope_interleaved'", "found False")),
    (TEXT, dict.fromkeys(INDEXER), Unsupported, ("'indexer_n_heads'", "none", "layer 3")),
    (TEXT, {"hidden_act": "gelu"}, Unsupported, ("'hidden_act'", "'gelu'", "'silu'")),
    (TEXT, {"num_attention_heads": 23}, InputError, ("'num_attention_heads'", "23")),
    (TEXT, {"linear_num_value_heads": 47}, InputError, ("'linear_num_value_heads'", "47")),
    (ROPE, {"mrope_section": [11, 11, 11]}, InputError, ("'mrope_section'", "sum 32")),
    (ROPE, {"mrope_section": [16, 16]}, InputError, ("'mrope_section'", "[16, 16]")),
    (ROPE, {"partial_rotary_factor": ABSENT}, InputError, ("'partial_rotary_factor'", "none")),
    (ROPE, {"rope_theta": ABSENT}, InputError, ("'rope_theta'", "none")),
    (TEXT, {"rope_scaling": {"type": "linear"}}, Unsupported, ("'rope_scaling'",)),
    (TEXT, {"rope_parameters": ABSENT}, InputError, ("'rope_parameters'", "an object")),
    (TEXT, {"norm_topk_prob": None}, InputError, ("'norm_topk_prob'", "null")),
    # Q3
    (TEXT, {"mtp_use_dedicated_embeddings": True}, Unsupported,
     ("'mtp_use_dedicated_embeddings'", "found True", "no cache interface")),
    ((), {"mtp_use_dedicated_embeddings": True}, Unsupported,
     ("'mtp_use_dedicated_embeddings'", "no cache interface")),
    # Q4
    (VISION, {"deepstack_visual_indexes": [1]}, Unsupported,
     ("vision_config: 'deepstack_visual_indexes'", "found [1]")),
    (VISION, {"patch_size": 14}, Unsupported, ("'patch_size'", "found 14", "expected 16")),
    (VISION, {"temporal_patch_size": 1}, Unsupported, ("'temporal_patch_size'", "found 1")),
    (VISION, {"spatial_merge_size": 4}, Unsupported, ("'spatial_merge_size'", "found 4")),
    (VISION, {"in_channels": 4}, Unsupported, ("'in_channels'", "found 4")),
    (VISION, {"hidden_act": "gelu"}, Unsupported, ("vision_config: 'hidden_act'", "'gelu'")),
    (VISION, {"num_position_embeddings": 2305}, InputError, ("'num_position_embeddings'",)),
    (VISION, {"out_hidden_size": 2048}, InputError, ("'out_hidden_size'", "2048", "2560")),
    (VISION, {"num_heads": 7}, InputError, ("vision_config: 'hidden_size'", "7 heads")),
    (VISION, {"num_heads": 64}, InputError, ("'hidden_size'", "multiple of 4", "64 heads")),
    (VISION, {"rope_parameters": {"rope_type": "default"}}, Unsupported, ("'rope_type'", "axial")),
    (VISION, {"depth": None}, InputError, ("'depth'", "none")),
    (VISION, {"model_type": "siglip"}, Unsupported, ("vision_config: 'model_type'", "'siglip'")),
    # Q5
    ((), {"video_token_id": None}, InputError, ("'video_token_id'", "none")),
    ((), {"video_token_id": "x"}, InputError, ("'video_token_id'", "'x'")),
    ((), {"video_token_id": 248_056}, InputError, ("'video_token_id'", "another", "image")),
    ((), {"video_token_id": 248_320}, InputError, ("'video_token_id'", "248320", "248319")),
    ((), {"image_token_id": None}, InputError, ("'image_token_id'", "none")),
    # forms
    ((), {"model_type": "llama"}, Unsupported, ("'model_type'", "'llama'")),
    ((), {"text_config": ABSENT}, InputError, ("'text_config'", "none")),
    ((), {"text_config": []}, InputError, ("'text_config'", "list", "an object")),
    (TEXT, {"model_type": "qwen3"}, Unsupported, ("text_config: 'model_type'", "'qwen3'")),
    (TEXT, {"hidden_size": ABSENT}, InputError, ("text_config: 'hidden_size'", "none")),
    (TEXT, {"rms_norm_eps": 0}, InputError, ("'rms_norm_eps'", "found 0")),
    (TEXT, {"seed": -1}, InputError, ("'seed'", "found -1")),
    # sizes that nobody has
    (TEXT, {"num_hidden_layers": 10**6, "layer_types": None}, InputError, ("'num_hidden_layers'",)),
    (TEXT, {"num_experts": 10**7}, InputError, ("'num_experts'", "65536")),
    (TEXT, {"heads_per_ngram": 10**6, "ple_embed_dim": 2 * 10**6}, InputError, ("heads",)),
]  # fmt: skip


@pytest.mark.parametrize(("place", "change", "error", "said"), REFUSED, ids=lambda x: str(x)[:60])
def test_refused_by_name(
    place: tuple[str, ...], change: dict[str, Any], error: type[NtoolError], said: tuple[str, ...]
) -> None:
    values = changed(published(), place, **change)
    with pytest.raises(error) as e:
        read_config(values, "m/config.json")
    assert type(e.value) is error
    assert e.value.message.startswith("m/config.json: ")
    for part in said:
        assert part in e.value.message


def test_a_tower_that_is_not_loaded_is_not_judged() -> None:
    values = changed(published(), VISION, patch_size=14)
    values = changed(values, (), video_token_id=None)
    assert read_config(values, text_only=True).text == read_config(published()).text


ODD: list[Any] = [
    None, True, False, 0, -1, 7, 2**31 - 1, 2**63, 10**400, 0.3, 1e-320, 1e300, math.nan, math.inf,
    -math.inf, "", "silu", "\ud800", [], [0.5], [4], ["linear_attention"], [None], {}, {"a": 1},
]  # fmt: skip


def places(values: dict[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in values.items():
        found.append((*at, key))
        if isinstance(value, dict) and key in ("text_config", "vision_config", "rope_parameters"):
            found += places(value, (*at, key))
    return found


@pytest.mark.parametrize("case", ["text", "image-text"])
def test_odd_values_end_in_a_refusal_or_in_a_sound_config(case: str) -> None:
    """Anything but an NtoolError is a bug, and so is a size that no tensor can have."""
    values = config(case)
    usual = read_config(values)
    refused = 0
    for place in places(values):
        for value in [*ODD, ABSENT]:
            try:
                c = read_config(changed(values, place[:-1], **{place[-1]: value}))
            except NtoolError as e:
                assert e.exit_code in (3, 5), (place, value, e)
                assert len(e.message) < 2500 and "\n" not in e.message
                e.message.encode()
                refused += 1
                continue
            if c != usual:
                sound(c.text)
                for _, shape, _ in islice(expected(c, frozenset()), 3000):
                    assert all(type(n) is int and n > 0 for n in shape)
    assert refused > 500


def sound(t: Text) -> None:
    assert len(t.linear) == t.L and t.sections and 2 * sum(t.sections) == t.rd <= t.D
    assert t.gate in ("sigmoid", "silu") and 0 < t.eps <= 1 and 1 <= t.k <= t.E
    assert not t.ple or (t.eos and 0 <= t.eos[0] < t.V and t.W * t.heads == t.M)
    assert all(t.linear[i] for i in t.ple)
