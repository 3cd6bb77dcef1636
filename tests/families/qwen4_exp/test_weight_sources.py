"""Where weights come from: index and files that must agree, tied heads, and renames.

Rules of the format notes: Q6 (headers first) and Q8 (names).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint
from ntool.lib.errors import InputError, NtoolError
from ntool.lib.families.qwen4_exp import weights
from ntool.lib.families.qwen4_exp.config import read_config
from ntool.lib.families.qwen4_exp.contents import BUFFERS as BUFFER_NAMES

from ...conftest import DATA
from ...fp8.checkpoints import read, write
from .weight_cases import (
    MISSING,
    NGRAM,
    WRONG,
    Change,
    L,
    Tensors,
    bf16,
    check,
    edited,
    source,
)

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
