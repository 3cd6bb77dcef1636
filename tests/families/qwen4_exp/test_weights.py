"""Checkpoints whose tensors are not what their config demands, each refused by name.

Rules of the format notes: Q8 (names and shapes), Q9 (hash buffers), Q10 (text alone), Q40, Q41 and
Q44 (FP8).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import NtoolError, SourceNotFound, Unsupported
from ntool.lib.families.qwen4_exp import weights
from ntool.lib.families.qwen4_exp.config import read_config

from ...conftest import DATA
from ...fp8.checkpoints import codes, scales
from .weight_cases import (
    MISSING,
    NGRAM,
    NOT,
    WRONG,
    Change,
    L,
    Tensors,
    bf16,
    check,
    edited,
)

UP = f"{L}2.mlp.experts.1.up_proj.weight"
BUFFERS = f"{L}1.ple.ple_embedding."


def add_one(tensors: Tensors, name: str, at: int = 0) -> None:
    """Change one entry of a buffer."""
    dtype, array = tensors[name]
    array = array.copy()
    array[at] += 1
    tensors[name] = dtype, array


def one_bit(tensors: Tensors, name: str) -> None:
    dtype, array = tensors[name]
    bits = array.view(np.uint16) ^ np.uint16(1)
    tensors[name] = dtype, bits.view(array.dtype)


def set_block(config: dict[str, Any], *block: int) -> None:
    config["quantization_config"]["weight_block_size"] = list(block)


GRID = f"{UP}_scale_inv"
CASES: dict[str, tuple[str, Change, type[NtoolError], tuple[str, ...]]] = {
    # FP8: Q40 and the format notes' negative cases; where codes and scales lie: Q41
    "a scale is missing": ("text-fp8", lambda t, c: t.pop(GRID), MISSING,
        (f"'{GRID}'", "not there", "[2, 2]")),
    "grid [2, 1]": ("text-fp8", lambda t, c: t.update({GRID: scales((2, 1))}), WRONG,
        (f"'{GRID}'", "found [2, 1], expected [2, 2]")),
    "grid [3, 2]": ("text-fp8", lambda t, c: t.update({GRID: scales((3, 2))}), WRONG,
        (f"'{GRID}'", "found [3, 2], expected [2, 2]")),
    "grid [1]": ("text-fp8", lambda t, c: t.update({GRID: scales((1,))}), WRONG,
        (f"'{GRID}'", "found [1], expected [2, 2]")),
    "orphan scale": (
        "text-fp8", lambda t, c: t.update({f"{L}0.mlp.x.weight_scale_inv": scales((1, 1))}), WRONG,
        (f"'{L}0.mlp.x.weight_scale_inv'", "a scale without an FP8 weight")),
    "PLE scale, one bit": ("text-fp8", lambda t, c: one_bit(t, f"{NGRAM}.weight_scale"), WRONG,
        (f"'{NGRAM}.weight_scale'", "found 0x3950, expected 0x3951")),
    "PLE scale missing": ("text-fp8", lambda t, c: t.pop(f"{NGRAM}.weight_scale"), MISSING,
        (f"'{NGRAM}.weight_scale'", "not there", "[1]")),
    "PLE scale of two": (
        "text-fp8", lambda t, c: t.update({f"{NGRAM}.weight_scale": scales((2,))}), WRONG,
        (f"'{NGRAM}.weight_scale'", "found [2], expected one for all shards")),
    "PLE scale of each row": (
        "text-fp8", lambda t, c: t.update({f"{NGRAM}.weight_scale": scales((16,))}), WRONG,
        (f"'{NGRAM}.weight_scale'", "found [16], expected one for all shards")),
    "PLE scale of one shard": (
        "text-fp8", lambda t, c: t.update({f"{NGRAM}.shard_3.weight_scale": scales((1,))}), WRONG,
        (f"'{NGRAM}.shard_3.weight_scale'", "one for all shards")),
    "PLE scale F32": (
        "text-fp8", lambda t, c: t.update({f"{NGRAM}.weight_scale": scales((1,), dtype="F32")}),
        WRONG, (f"'{NGRAM}.weight_scale'", "found F32, expected BF16")),
    "shard 7 missing": ("text-fp8", lambda t, c: t.pop(f"{NGRAM}.shard_7.weight"), MISSING,
        (f"'{NGRAM}.shard_7.weight'", "not there", "[16, 8]")),
    "shard 16 added": (
        "text-fp8", lambda t, c: t.update({f"{NGRAM}.shard_16.weight": codes((16, 8))}), WRONG,
        (f"'{NGRAM}.shard_16.weight'", "not a tensor of the family")),
    "shard in BF16": (
        "text-fp8", lambda t, c: t.update({f"{NGRAM}.shard_3.weight": bf16(16, 8)}), WRONG,
        (f"'{NGRAM}.shard_3.weight'", "found BF16, expected F8_E4M3")),
    "expert in BF16": (
        "text-fp8", lambda t, c: (t.update({UP: bf16(136, 160)}), t.pop(GRID)), WRONG,
        (f"'{UP}'", "found BF16, expected F8_E4M3")),
    "codes are missing": ("text-fp8", lambda t, c: t.pop(UP), WRONG,
        (f"'{GRID}'", "a scale without an FP8 weight", "(and 1 more)")),
    "FP8 elsewhere": (
        "text-fp8", lambda t, c: t.update({
            f"{L}0.mlp.gate.weight": codes((4, 160)),
            f"{L}0.mlp.gate.weight_scale_inv": scales((1, 2))}), WRONG,
        (f"'{L}0.mlp.gate.weight'", "F8_E4M3 outside")),
    "scale dtype": (
        "text-fp8", lambda t, c: t.update({GRID: scales((2, 2), dtype="F32")}), WRONG,
        (f"'{GRID}'", "found F32, expected BF16")),
    "codes of another type": (
        "text-fp8", lambda t, c: t.update({UP: codes((136, 160), dtype="F8_E5M2")}), WRONG,
        (f"'{UP}'", "found F8_E5M2, expected F8_E4M3")),
    "codes of one axis": (
        "text-fp8", lambda t, c: t.update({UP: codes((136,)), GRID: scales((1,))}), WRONG,
        (f"'{UP}'", "found [136], expected [136, 160]")),
    "block size": ("text-fp8", lambda t, c: set_block(c, 100, 100), WRONG,
        ("weight_block_size", "found [100, 100], expected [128, 128]")),
    "listed module without tensor": (
        "text-fp8",
        lambda t, c: c["quantization_config"]["modules_to_not_convert"].append(f"{L}0.nothing"),
        WRONG, (f"{L}0.nothing", "no such tensor")),
    "listed module in FP8": (
        "text-fp8",
        lambda t, c: c["quantization_config"]["modules_to_not_convert"].append(UP[:-7]),
        WRONG, (UP[:-7], "stored as F8_E4M3")),
    "FP8 without settings": ("text-fp8", lambda t, c: c.pop("quantization_config"), WRONG,
        ("weight_block_size",)),
    "settings without FP8": (
        "image-text", lambda t, c: c.update(quantization_config={
            "quant_method": "fp8", "weight_block_size": [128, 128]}), WRONG,
        ("dtype of a routed expert", "found BF16")),
    "NVFP4": ("text-fp8", lambda t, c: c.update(quantization_config={
        "quant_method": "modelopt", "quant_algo": "NVFP4"}), NOT, ("NVFP4", "'fp8'")),
    "another quantisation": (
        "text-fp8", lambda t, c: c["quantization_config"].update(quant_method="awq"), NOT,
        ("quant_method", "'awq'", "'fp8'")),
    # hash buffers: Q9, with both values
    "a head's size": (
        "text-fp8", lambda t, c: add_one(t, f"{BUFFERS}ngram_heads_vocab_sizes", 2), WRONG,
        (f"'{BUFFERS}ngram_heads_vocab_sizes'", "entry 2: found 62, expected 61")),
    "a multiplier": (
        "image-text", lambda t, c: add_one(t, f"{BUFFERS}layer_multipliers"), WRONG,
        (f"'{BUFFERS}layer_multipliers'",
         "entry 0: found 40323955908725928, expected 40323955908725927, derived from the config")),
    "an offset": (
        "text", lambda t, c: add_one(
            t, "model.layers.5.ple.ple_embedding.ngram_heads_offsets", 3), WRONG,
        ("layers.5.ple.ple_embedding.ngram_heads_offsets'", "entry 3: found 224, expected 223")),
    "another seed": ("text", lambda t, c: c.update(seed=1235), WRONG,
        ("layer_multipliers'", "entry 0: found 45127795511254153, expected 68103748982915143",
         "(and 1 more)")),
    "buffer of another shape": (
        "text-half", lambda t, c: t.update({
            "model.layers.1.ple.ple_embedding.layer_multipliers": ("I64", np.ones(4, "i8"))}),
        WRONG, ("layer_multipliers'", "found [4], expected [3]")),
    "buffer of another type": (
        "text-half", lambda t, c: t.update({
            "model.layers.1.ple.ple_embedding.layer_multipliers": ("F32", np.ones(3, "f4"))}),
        WRONG, ("layer_multipliers'", "found F32, expected I64")),
    # names and shapes: Q8
    "unknown": ("image-text", lambda t, c: t.update({f"{L}0.foo.weight": bf16(3)}), WRONG,
        (f"'{L}0.foo.weight'", "not a tensor of the family")),
    "two unknown": (
        "image-text", lambda t, c: t.update({f"{L}0.foo": bf16(3), "x": bf16(1)}), WRONG,
        ("(and 1 more)",)),
    "a bias that the config denies": (
        "text", lambda t, c: t.update({"model.layers.3.self_attn.q_proj.bias": bf16(256)}), WRONG,
        ("'model.layers.3.self_attn.q_proj.bias'", "not a tensor")),
    "a bias that the config demands": ("text", lambda t, c: c.update(attention_bias=True), MISSING,
        ("'model.layers.3.self_attn.q_proj.bias'", "[256]", "(and 7 more)")),
    "missing": ("text", lambda t, c: t.pop("model.layers.6.mlp.gate.weight"), MISSING,
        ("'model.layers.6.mlp.gate.weight'", "not there", "[8, 48]")),
    "an expert is missing": (
        "text", lambda t, c: t.pop("model.layers.0.mlp.experts.7.up_proj.weight"), MISSING,
        ("'model.layers.0.mlp.experts.7.up_proj.weight'", "[20, 48]")),
    "an expert too many": (
        "text", lambda t, c: t.update({"model.layers.0.mlp.experts.8.up_proj.weight":
                                       bf16(20, 48)}), WRONG,
        ("'model.layers.0.mlp.experts.8.up_proj.weight'", "not a tensor")),
    "both layouts of experts": (
        "image-text", lambda t, c: t.update({f"{L}0.mlp.experts.0.up_proj.weight": bf16(20, 48)}),
        WRONG, (f"'{L}0.mlp.experts.0.up_proj.weight'", "not a tensor")),
    "half of a fused layer": (
        "image-text", lambda t, c: t.pop(f"{L}2.mlp.experts.down_proj"), MISSING,
        (f"'{L}2.mlp.experts.down_proj'", "[8, 48, 20]")),
    "a head is missing": ("text", lambda t, c: t.pop("lm_head.weight"), MISSING,
        ("'lm_head.weight'", "[120, 48]")),
    "the embedding is missing": (
        "image-text", lambda t, c: t.pop("model.language_model.embed_tokens.weight"), MISSING,
        ("'model.language_model.embed_tokens.weight'", "[128, 48]")),
    "shape": ("text", lambda t, c: t.update({"model.layers.0.linear_attn.A_log": bf16(5)}), WRONG,
        ("'model.layers.0.linear_attn.A_log'", "found [5], expected [4]")),
    "vocabulary": ("text", lambda t, c: c.update(vocab_size=121, seed=1), WRONG,
        ("'model.embed_tokens.weight'", "found [120, 48], expected [121, 48]", "(and 1 more)")),
    "PLE ids from zero": (
        "text-half", lambda t, c: c.update(ple_layer_ids=[3]), WRONG,
        ("'model.layers.1.ple.", "not a tensor of the family")),
    "another number of shards": ("text", lambda t, c: c.update(split_ngram_parts=8), WRONG,
        ("ngram_embedding.shard_0.weight'", "found [16, 6], expected [32, 6]")),
    "type": (
        "text", lambda t, c: t.update({"model.layers.0.linear_attn.A_log":
                                       ("I64", np.ones(4, "i8"))}), WRONG,
        ("'model.layers.0.linear_attn.A_log'", "found I64, expected BF16, F16 or F32")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name(tmp_path: Path, case: str) -> None:
    folder, change, error, said = CASES[case]
    checkpoint = edited(tmp_path / "c", folder, change)
    with pytest.raises(error) as e:
        check(checkpoint)
    assert type(e.value) is error
    assert e.value.message.startswith(f"{checkpoint.source}: ")
    for part in said:
        assert part in e.value.message, e.value.message


def test_a_missing_scale_is_one_finding(tmp_path: Path) -> None:
    """Both the pairing and the inventory lack it."""
    with pytest.raises(SourceNotFound) as e:
        check(edited(tmp_path / "c", "text-fp8", lambda t, c: t.pop(GRID)))
    assert "more)" not in e.value.message


VISUAL: dict[str, tuple[Change, type[NtoolError], tuple[str, ...]]] = {
    "missing": (lambda t, c: t.pop("model.visual.blocks.2.norm1.bias"), MISSING,
        ("'model.visual.blocks.2.norm1.bias'", "[32]")),
    "shape": (lambda t, c: t.update({"model.visual.merger.linear_fc2.weight": bf16(48, 32)}), WRONG,
        ("found [48, 32], expected [48, 128]",)),
    "unknown": (lambda t, c: t.update({"model.visual.deepstack.0.weight": bf16(2)}), WRONG,
        ("'model.visual.deepstack.0.weight'", "not a tensor")),
    "positions": (lambda t, c: c["vision_config"].update(num_position_embeddings=36), WRONG,
        ("'model.visual.pos_embed.weight'", "found [25, 32], expected [36, 32]")),
    "no vision_config": (lambda t, c: c.pop("vision_config"), WRONG,
        ("'model.visual.", "not a tensor")),
}  # fmt: skip


@pytest.mark.parametrize("case", VISUAL)
def test_the_tower_is_judged_where_it_is_loaded(tmp_path: Path, case: str) -> None:
    change, error, said = VISUAL[case]
    checkpoint = edited(tmp_path / "c", "image-text", change)
    with pytest.raises(error) as e:
        check(checkpoint, text_only=False)
    for part in said:
        assert part in e.value.message, e.value.message
    check(checkpoint, text_only=True)


def test_mtp_is_counted_and_not_judged(tmp_path: Path) -> None:
    """Q10: whatever it holds, FP8 without a scale among it."""

    def change(t: Tensors, c: dict[str, Any]) -> None:
        t["mtp.fc_hidden.weight"] = bf16(3)
        t["mtp.surprise"] = bf16(1)
        del t["mtp.fc_embedding.weight"]

    check(edited(tmp_path / "a", "image-text", change), text_only=False)
    gone = edited(
        tmp_path / "b", "text-fp8",
        lambda t, c: t.pop("mtp.layers.0.mlp.experts.0.up_proj.weight_scale_inv"),
    )  # fmt: skip
    check(gone)


def test_buffers_may_be_absent(tmp_path: Path) -> None:
    """Q9: they follow from the config."""

    def change(t: Tensors, c: dict[str, Any]) -> None:
        for name in [n for n in t if ".ple_embedding.ngram_heads_" in n or "multipliers" in n]:
            del t[name]

    check(edited(tmp_path / "c", "text", change))


def test_the_table_scale_may_have_no_axis(tmp_path: Path) -> None:
    name = f"{NGRAM}.weight_scale"
    scalar = edited(
        tmp_path / "c", "text-fp8", lambda t, c: t.update({name: ("BF16", t[name][1].reshape(()))})
    )
    assert scalar.tensors[name].shape == ()
    check(scalar)
    shapes = weights.renamed(read_config(scalar.config), scalar.tensors)(
        name.replace("language_model.", ""), (1,)
    )
    assert shapes[0] == [(name, ())]


def test_fp8_with_pictures() -> None:
    """Q44: refused, with the way out."""
    checkpoint = open_checkpoint(str(DATA / "qwen4-exp" / "text-fp8"))
    with pytest.raises(Unsupported, match="--text-only"):
        check(checkpoint, text_only=False)


def test_fused_fp8_experts_whose_halves_share_a_block(tmp_path: Path) -> None:
    """Gate and up of 136 rows each: the second block of scales lies over both."""

    def change(t: Tensors, c: dict[str, Any]) -> None:
        at = f"{L}0.mlp.experts"
        for name in [n for n in t if n.startswith(f"{at}.")]:
            del t[name]
        t[f"{at}.gate_up_proj"] = codes((4, 272, 160))
        t[f"{at}.gate_up_proj_scale_inv"] = scales((4, 3, 2))
        t[f"{at}.down_proj"] = codes((4, 160, 136))
        t[f"{at}.down_proj_scale_inv"] = scales((4, 2, 2))

    with pytest.raises(Unsupported, match=r"share a block of scales: found moe_.* 136"):
        check(edited(tmp_path / "c", "text-fp8", change))


def test_a_config_that_demands_millions_ends_soon(tmp_path: Path) -> None:
    def change(t: Tensors, c: dict[str, Any]) -> None:
        c.update(num_experts=65_536, num_hidden_layers=4096, layer_types=None)

    with pytest.raises(SourceNotFound, match=r"\(and at least 9999 more\)"):
        check(edited(tmp_path / "c", "text", change))
