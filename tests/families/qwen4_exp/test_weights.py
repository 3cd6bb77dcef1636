"""Checkpoints that are not what their config demands, each refused by name; and renames.

Rules of the format notes: Q6 (headers first), Q8 (names and shapes), Q9 (hash buffers), Q10 (text
alone), Q40, Q41 and Q44 (FP8).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint
from ntool.lib.errors import InputError, NtoolError, SourceNotFound, Unsupported
from ntool.lib.families.qwen4_exp import weights
from ntool.lib.families.qwen4_exp.config import read_config
from ntool.lib.families.qwen4_exp.contents import BUFFERS as BUFFER_NAMES

from ...conftest import DATA
from ...fp8.checkpoints import codes, read, scales, write

Tensors = dict[str, tuple[str, np.ndarray]]
Change = Callable[[Tensors, dict[str, Any]], object]
L = "model.language_model.layers."
UP = f"{L}2.mlp.experts.1.up_proj.weight"
NGRAM = f"{L}1.ple.ple_embedding.ngram_embedding"
BUFFERS = f"{L}1.ple.ple_embedding."


def bf16(*shape: int) -> tuple[str, np.ndarray]:
    return "BF16", np.ones(shape, ml_dtypes.bfloat16)


def source(case: str) -> tuple[Tensors, dict[str, Any]]:
    folder = DATA / "qwen4-exp" / case
    tensors = {n: t for file in read(folder).values() for n, t in file.items()}
    return tensors, json.loads((folder / "config.json").read_text())


def edited(folder: Path, case: str, change: Change) -> Checkpoint:
    """A golden checkpoint in one file, changed."""
    tensors, config = source(case)
    change(tensors, config)
    return open_checkpoint(str(write(folder, {"model.safetensors": tensors}, config)))


def check(checkpoint: Checkpoint, text_only: bool = True) -> None:
    c = read_config(checkpoint.config, f"{checkpoint.source}: config.json", text_only=text_only)
    weights.check(checkpoint, c, text_only)


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
MISSING, WRONG, NOT = SourceNotFound, InputError, Unsupported
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


# files


def copied(folder: Path, case: str) -> Path:
    folder.mkdir()
    for path in (DATA / "qwen4-exp" / case).iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def repacked(folder: Path, case: str, change: Callable[[dict[str, Tensors]], object]) -> Path:
    """The files of a golden, changed; the index is that of the golden."""
    files = read(DATA / "qwen4-exp" / case)
    index = (DATA / "qwen4-exp" / case / "model.safetensors.index.json").read_text()
    change(files)
    config = json.loads((DATA / "qwen4-exp" / case / "config.json").read_text())
    write(folder, files, config)
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


ONE, TWO = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"
HEAD = "lm_head.weight"
FILES: dict[str, tuple[Callable[[dict[str, Tensors]], object], type[NtoolError], str]] = {
    "in two files": (lambda f: f[TWO].update({HEAD: bf16(120, 48)}), WRONG,
                     f"{HEAD}: in 2 files: found {ONE} and {TWO}"),
    "named, not there": (lambda f: f[ONE].pop(HEAD), MISSING,
                         f"{ONE}: {HEAD}: named by the index, absent from the header"),
    "there, not named": (lambda f: f[ONE].update({"model.more": bf16(2)}), WRONG,
                         f"{ONE}: tensor 'model.more': in the file, and not named by the index"),
    "elsewhere": (lambda f: f[TWO].update({HEAD: f[ONE].pop(HEAD)}), WRONG,
                  f"{HEAD}: the index says {ONE}, but it is in {TWO}"),
    "no such file": (lambda f: f.pop(TWO), MISSING, TWO),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_index_and_files_must_agree(tmp_path: Path, case: str) -> None:
    """Q8: a name in two files, and names that one of index and header has."""
    change, error, said = FILES[case]
    home = json.loads((DATA / "qwen4-exp/text/model.safetensors.index.json").read_text())
    assert home["weight_map"][HEAD] == ONE
    checkpoint = open_checkpoint(str(repacked(tmp_path / "c", "text", change)))
    with pytest.raises(error, match=re.escape(said)) as e:
        check(checkpoint)
    assert type(e.value) is error


def test_a_name_twice_in_the_index(tmp_path: Path) -> None:
    """Q8: of two entries of one name no reader takes the same one."""
    folder = copied(tmp_path / "c", "text")
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    entry = f'"{HEAD}": "{ONE}"'
    assert text.count(entry) == 1
    index.write_text(text.replace(entry, f'{entry}, "{HEAD}": "{TWO}"'))
    with pytest.raises(InputError, match=HEAD):
        check(open_checkpoint(str(folder)))


def test_headers_are_told_before_payloads(tmp_path: Path) -> None:
    """Q6. Of a file that ends in its payload: first what its header says of shapes."""
    folder = copied(tmp_path / "c", "text")
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        header = 8 + int.from_bytes(raw[:8], "little")
        path.write_bytes(raw[: header + 100])
    checkpoint = open_checkpoint(str(folder))
    assert len(checkpoint.cut) > 300
    with pytest.raises(InputError, match="file is short by"):
        check(checkpoint)
    checkpoint.config["vocab_size"] = 64
    with pytest.raises(InputError, match=r"found \[120, 48\], expected \[64, 48\]"):
        check(checkpoint)
    checkpoint.config["vocab_size"] = 120
    checkpoint.config["hc_lowrank"] = 11
    with pytest.raises(InputError, match="shape: found"):
        check(checkpoint)


def test_a_file_that_ends_in_its_header_is_told_first(tmp_path: Path) -> None:
    folder = copied(tmp_path / "c", "text")
    raw = (folder / TWO).read_bytes()
    (folder / TWO).write_bytes(raw[:500])
    checkpoint = open_checkpoint(str(folder))
    checkpoint.config["vocab_size"] = 64
    with pytest.raises(InputError, match="file ends before its header"):
        check(checkpoint)


# a tied head


def tied(folder: Path, change: Change = lambda t, c: None) -> Checkpoint:
    def edit(t: Tensors, c: dict[str, Any]) -> None:
        c["tie_word_embeddings"] = True
        t["lm_head.weight"] = t["model.embed_tokens.weight"]
        change(t, c)

    return edited(folder, "text-half", edit)


def test_a_tied_head_may_be_there_and_must_be_the_embedding(tmp_path: Path) -> None:
    for i, change in enumerate((lambda t, c: None, lambda t, c: t.pop("lm_head.weight"))):
        checkpoint = tied(tmp_path / str(i), change)
        check(checkpoint)
        weights.check_tied(checkpoint)
    weights.check_tied(open_checkpoint(str(DATA / "qwen4-exp" / "text-half")))  # not tied


def test_a_tied_head_that_differs(tmp_path: Path) -> None:
    def change(t: Tensors, c: dict[str, Any]) -> None:
        dtype, array = t["lm_head.weight"]
        array = array.copy()
        array.view(np.uint16)[119, 47] ^= 0x100
        t["lm_head.weight"] = dtype, array

    checkpoint = tied(tmp_path / "c", change)
    check(checkpoint)
    with pytest.raises(InputError, match=r"byte 11519, in row 119: found .., expected .."):
        weights.check_tied(checkpoint)
    halves = tied(tmp_path / "d", lambda t, c: t.update(
        {"lm_head.weight": ("F16", t["lm_head.weight"][1].astype(np.float16))}))  # fmt: skip
    with pytest.raises(InputError, match="dtype: found F16, expected BF16"):
        weights.check_tied(halves)


# renames


def bound(case: str, name: str, shape: tuple[int, ...]) -> tuple[bytes, str | None, int]:
    """Bytes of a parameter as it is bound, the reason, and the number of its sources."""
    tensors, config = source(case)
    checkpoint = open_checkpoint(str(DATA / "qwen4-exp" / case))
    sources, reason = weights.renamed(read_config(config), checkpoint.tensors)(name, shape)
    for stored, each in sources:
        assert checkpoint.tensors[stored].shape == each
    return b"".join(tensors[n][1].tobytes() for n, _ in sources), reason, len(sources)


def test_split_experts_are_banks() -> None:
    tensors, _ = source("text")
    at = "model.layers.5.mlp.experts"
    parts = {r: np.stack([tensors[f"{at}.{e}.{r}_proj.weight"][1] for e in range(8)])
             for r in ("gate", "up", "down")}  # fmt: skip
    bank = np.concatenate([parts["gate"], parts["up"]], axis=1)
    assert bank.shape == (8, 40, 48)
    assert bound("text", f"{at}.gate_up_proj", bank.shape) == (bank.tobytes(), weights.EXPERTS, 16)
    found = bound("text", f"{at}.down_proj", (8, 48, 20))
    assert found == (parts["down"].tobytes(), weights.EXPERTS, 8)


def test_split_fp8_experts_and_their_scales() -> None:
    tensors, _ = source("text-fp8")
    at = "model.layers.2.mlp.experts"
    stored = f"{L}2.mlp.experts"
    for suffix, into, out in (("", (4, 272, 160), (4, 160, 136)),
                              ("_scale_inv", (4, 4, 2), (4, 2, 2))):  # fmt: skip
        bank = np.stack([
            np.concatenate([tensors[f"{stored}.{e}.{r}_proj.weight{suffix}"][1]
                            for r in ("gate", "up")]) for e in range(4)
        ])  # fmt: skip
        assert bank.shape == into
        found = bound("text-fp8", f"{at}.gate_up_proj{suffix}", into)
        assert found == (bank.tobytes(), weights.EXPERTS, 8)
        down = b"".join(
            tensors[f"{stored}.{e}.down_proj.weight{suffix}"][1].tobytes() for e in range(4)
        )
        found = bound("text-fp8", f"{at}.down_proj{suffix}", out)
        assert found == (down, weights.EXPERTS, 4)


def test_fused_experts_are_taken_as_they_are() -> None:
    tensors, _ = source("image-text")
    raw = tensors[f"{L}1.mlp.experts.gate_up_proj"][1].tobytes()
    found = bound("image-text", "model.layers.1.mlp.experts.gate_up_proj", (8, 40, 48))
    assert found == (raw, weights.COMPOSITE, 1)


@pytest.mark.parametrize("case", ["text", "image-text"])
def test_a_table_is_its_shards_in_numeric_order(case: str) -> None:
    tensors, _ = source(case)
    start = "model." if case == "text" else "model.language_model."
    at = "layers.1.ple.ple_embedding.ngram_embedding"
    table = np.concatenate([tensors[f"{start}{at}.shard_{j}.weight"][1] for j in range(16)])
    found = bound(case, f"model.{at}.weight", table.shape)
    assert found == (table.tobytes(), weights.SHARDS, 16)


def test_shards_of_fp8_are_parameters_of_their_own() -> None:
    tensors, _ = source("text-fp8")
    for part, shape in (("shard_11.weight", (16, 8)), ("weight_scale", (1,))):
        name = f"{NGRAM}.{part}"
        found = bound("text-fp8", name.replace("language_model.", ""), shape)
        assert found == (tensors[name][1].tobytes(), weights.COMPOSITE, 1)


def test_plain_names() -> None:
    tensors, config = source("image-text")
    rename = weights.renamed(read_config(config), tensors)
    assert rename("lm_head.weight", (1, 2)) == ([("lm_head.weight", (1, 2))], None)
    visual = "model.visual.blocks.0.norm1.weight"
    assert rename(visual, (3,)) == ([(visual, (3,))], None)
    embed = ("model.language_model.embed_tokens.weight", (1, 2))
    assert rename("model.embed_tokens.weight", (1, 2)) == ([embed], weights.COMPOSITE)
    config["text_config"]["tie_word_embeddings"] = True
    rename = weights.renamed(read_config(config), tensors)
    assert rename("lm_head.weight", (1, 2)) == ([embed], weights.TIED)
    tensors, config = source("text")
    rename = weights.renamed(read_config(config), frozenset(tensors))
    assert rename("model.layers.0.mlp.gate.weight", (1, 2)) == (
        [("model.layers.0.mlp.gate.weight", (1, 2))], None)  # fmt: skip


@pytest.mark.parametrize("case", ["text", "text-fp8", "image-text"])
def test_every_tensor_is_a_source_of_some_parameter(case: str) -> None:
    """Renaming the inventory, as graphs spell it, uses each stored tensor once."""
    checkpoint = open_checkpoint(str(DATA / "qwen4-exp" / case))
    c = read_config(checkpoint.config)
    rename = weights.renamed(c, checkpoint.tensors)
    wanted: dict[str, tuple[int, ...]] = {}
    for name, t in checkpoint.tensors.items():
        name = name.replace("model.language_model.", "model.")
        if name.startswith("mtp.") or name.endswith(BUFFER_NAMES):
            continue
        if ".mlp.experts." in name and case != "image-text":
            at, rest = name.split(".mlp.experts.")
            scale = "_scale_inv" if rest.endswith("_scale_inv") else ""
            rows, columns = t.shape
            if ".down_proj" in rest:
                wanted[f"{at}.mlp.experts.down_proj{scale}"] = (c.text.E, rows, columns)
            else:
                wanted[f"{at}.mlp.experts.gate_up_proj{scale}"] = (c.text.E, 2 * rows, columns)
        elif ".shard_" in name and case != "text-fp8":
            rows = t.shape[0] * c.text.parts
            wanted[re.sub(r"shard_\d+\.", "", name)] = (rows, t.shape[1])
        else:
            wanted[name] = t.shape
    used = [s for name, shape in wanted.items() for s in rename(name, shape)[0]]
    assert len(used) == len(set(used))
    stored = {
        n: t.shape for n, t in checkpoint.tensors.items()
        if not n.startswith("mtp.") and not n.endswith(BUFFER_NAMES)
    }  # fmt: skip
    assert dict(used) == stored
