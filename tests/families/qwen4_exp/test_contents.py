"""The inventory with shapes: against the published listing, the goldens and inventory.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import InputError
from ntool.lib.families.qwen4_exp import contents, inventory, weights
from ntool.lib.families.qwen4_exp.config import read_config
from ntool.lib.families.values import Values

from ...conftest import DATA
from ...sparse_files import fp8_listing, write_fp8_full
from .test_config import CASES, changed, config, published

SCALE = ".ngram_embedding.weight_scale"


@pytest.fixture(scope="module")
def listing() -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (dtype, tuple(shape)) for name, dtype, shape, _ in fp8_listing()}


def demanded(values: dict[str, Any], names: Any, **options: Any) -> dict[str, tuple[int, ...]]:
    rows = list(contents.expected(read_config(values), names, **options))
    found = {name: shape for name, shape, _ in rows}
    assert len(found) == len(rows)
    return found


def test_the_published_listing(listing: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Every name and shape of text and vision, and no other."""
    wanted = demanded(published(), listing, fp8=True)
    stored = {n: shape for n, (_, shape) in listing.items() if not n.startswith("mtp.")}
    at = next(n for n in stored if n.endswith(SCALE))
    assert wanted.pop(at) == (1,) and stored.pop(at) in ((), (1,))
    assert wanted == stored


def test_the_published_numbers_of_the_bf16_release(
    listing: dict[str, tuple[str, tuple[int, ...]]],
) -> None:
    """1,658 tensors and 179,999,981,424 parameters, of which MTP has 31 when its experts are
    fused."""
    fused = [f"model.language_model.layers.{i}.mlp.experts.gate_up_proj" for i in range(48)]
    sign = "model.language_model.embed_tokens.weight"
    wanted = demanded(published(), {sign, *fused})
    mtp = {n: s for n, (_, s) in listing.items() if n[:4] == "mtp." and "_scale" not in n}
    experts = [n for n in mtp if ".mlp.experts." in n]
    assert len(wanted) + len(mtp) - len(experts) + 2 == 1658
    shapes = [s for n, s in wanted.items() if not n.endswith(contents.BUFFERS)]
    assert sum(map(math.prod, [*shapes, *mtp.values()])) == 179_999_981_424


def test_names_are_those_that_census_counts() -> None:
    values = published()
    names = frozenset({"model.language_model.embed_tokens.weight"})
    wanted = frozenset(demanded(values, names, fp8=True))
    components = ("text", "experts", "scales", "ple", "visual")
    assert inventory.complete(values, wanted) == dict.fromkeys(components, True)
    text = Values(values["text_config"], "text_config")
    counted = set(inventory.wanted_text(text, inventory.COMPOSITE, tied=False))
    counted |= set(inventory._visual(Values(values["vision_config"], "vision_config")))
    others = {n for n in wanted - counted if ".mlp.experts." not in n and ".ple." not in n}
    assert counted <= wanted and not others


def test_options() -> None:
    """Biases, a tied head, and text alone."""
    values = config("image-text")
    names = open_checkpoint(str(DATA / "qwen4-exp" / "image-text")).tensors
    plain = demanded(values, names)
    biased = demanded(changed(values, ("text_config",), attention_bias=True), names)
    at = "model.language_model.layers.3.self_attn"
    new = {n: s for n, s in biased.items() if n not in plain and ".layers.3." in n}
    assert new == {f"{at}.q_proj.bias": (256,), f"{at}.k_proj.bias": (64,),
                   f"{at}.v_proj.bias": (64,), f"{at}.o_proj.bias": (48,)}  # fmt: skip
    tied = read_config(changed(values, ("text_config",), tie_word_embeddings=True))
    assert ("lm_head.weight", (128, 48), False) in contents.expected(tied, names)
    alone = demanded(values, names, text_only=True)
    assert plain.keys() - alone.keys() == {n for n in plain if n.startswith("model.visual.")}


def test_a_shorter_last_shard_and_missing_ones() -> None:
    """256 rows in 60 parts are 51 shards of 5 rows and one of 1."""
    values = changed(config("text"), (), split_ngram_parts=60)
    wanted = demanded(values, frozenset())
    at = "model.layers.1.ple.ple_embedding.ngram_embedding"
    shards = {n: s for n, s in wanted.items() if n.startswith(at)}
    assert len(shards) == 52 and shards[f"{at}.shard_50.weight"] == (5, 6)
    assert shards[f"{at}.shard_51.weight"] == (1, 6)


@pytest.mark.parametrize("case", CASES)
def test_sound_checkpoints_pass(case: str) -> None:
    checkpoint = open_checkpoint(str(DATA / "qwen4-exp" / case))
    c = read_config(checkpoint.config)
    if case != "text-fp8":
        weights.check(checkpoint, c, text_only=False)
    weights.check(checkpoint, c, text_only=True)
    weights.check(checkpoint, read_config(checkpoint.config, text_only=True), text_only=True)


def test_the_published_repository_passes(tmp_path: Path) -> None:
    """152,089 tensors whose payloads are holes but for the few values that are known."""
    checkpoint = open_checkpoint(str(write_fp8_full(tmp_path / "full")))
    assert len(checkpoint.tensors) == 152_089
    weights.check(checkpoint, read_config(checkpoint.config), text_only=True)
    name = "model.language_model.layers.47.mlp.gate.weight"
    checkpoint.tensors[name] = checkpoint.tensors[name]._replace(shape=(512, 2561))
    with pytest.raises(InputError, match=r"47\.mlp\.gate\.weight.*\[512, 2561\]"):
        weights.check(checkpoint, read_config(checkpoint.config), text_only=True)
