from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import InputError
from ntool.lib.families.neo_chat.groups import COMPONENTS, GROUPS
from ntool.lib.families.neo_chat.inventory import expected

DATA = Path(__file__).parents[2] / "data"
CHECKPOINTS = ["demo:shapes"] + [
    str(p.parent) for p in sorted((DATA / "neo-chat").glob("*/checkpoint/config.json"))
]


def published() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((DATA / "census" / "u1.5-8b-mot.config.json").read_text())
    return config


def count(config: dict[str, Any]) -> int:
    return len({n for names in expected(config).values() for n in names})


def test_all_kinds_of_checkpoint_are_here() -> None:
    assert [Path(c).parent.name for c in CHECKPOINTS[1:]] == ["dense-conv", "dense-mlp", "moe-mlp"]


@pytest.mark.parametrize("source", CHECKPOINTS)
def test_demands_exactly_what_is_there(source: str) -> None:
    checkpoint = open_checkpoint(source)
    demanded = {n: s for names in expected(checkpoint.config).values() for n, s in names.items()}
    assert set(demanded) == set(checkpoint.tensors)
    for name, shape in demanded.items():
        got = checkpoint.tensors[name].shape
        assert len(got) == len(shape), name
        assert all(d in (None, g) for d, g in zip(shape, got, strict=True)), name


def test_published_counts() -> None:
    config = published()
    assert count(config) == 1116
    moe = copy.deepcopy(config)
    moe["use_pixel_head"] = False
    moe["llm_config"] |= {
        "model_type": "qwen3_moe", "architectures": [], "num_hidden_layers": 48,
        "hidden_size": 2048, "num_experts": 128, "gen_num_experts": 32,
        "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip
    assert count(moe) == 24_120


def test_variants() -> None:
    config = published()
    config["add_noise_scale_embedding"] = False
    assert count(config) == 1112
    config["llm_config"]["attention_bias"] = True
    assert count(config) == 1112 + 42 * 8
    config["llm_config"]["tie_word_embeddings"] = True
    assert count(config) == 1112 + 42 * 8 - 1
    assert "language_model.model.embed_tokens.weight" in expected(config)["decoder"]


def test_dense_layers_of_a_moe() -> None:
    config = published()
    config["llm_config"] |= {
        "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4, "num_experts": 2,
        "moe_intermediate_size": 8, "decoder_sparse_step": 2, "mlp_only_layers": [1],
    }  # fmt: skip
    out = expected(config)
    gates = [n for n in out["decoder"] if n.endswith("mlp.gate.weight")]
    assert gates == ["language_model.model.layers.3.mlp.gate.weight"]
    generation = [n for n in out["image_gen_denoiser"] if n.endswith("mlp_mot_gen.gate.weight")]
    assert len(generation) == 4
    assert out["decoder"]["language_model.model.layers.1.mlp.up_proj.weight"] == (12288, 4096)


@pytest.mark.parametrize(
    "where, key, value",
    [
        ("llm_config", "num_hidden_layers", -1),
        ("llm_config", "num_hidden_layers", True),
        ("llm_config", "num_hidden_layers", 10**12),
        ("llm_config", "num_hidden_layers", 500_000),
        ("llm_config", "hidden_size", "4096"),
        ("llm_config", "num_key_value_heads", None),
        ("llm_config", "attention_bias", 1),
        ("vision_config", "patch_size", 0),
        (None, "downsample_ratio", 0.3),
        (None, "downsample_ratio", 0),
        (None, "llm_config", []),
    ],
)
def test_impossible_values_are_named(where: str | None, key: str, value: Any) -> None:
    config = published()
    (config[where] if where else config)[key] = value
    with pytest.raises(InputError) as e:
        expected(config)
    assert key in e.value.message or "layers" in e.value.message


@pytest.mark.parametrize("rules", [GROUPS, COMPONENTS])
def test_rules_leave_nothing_over(rules: tuple[tuple[str, str], ...]) -> None:
    import re

    for component, names in expected(published()).items():
        for name in names:
            first = next(group for group, pattern in rules if re.search(pattern, name))
            if rules is COMPONENTS:
                assert first == component, name
