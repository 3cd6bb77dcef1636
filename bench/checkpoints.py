"""Checkpoints that the benchmarks make for themselves, each in a process of its own.

`python -m bench.checkpoints KIND FOLDER` writes one. It is a process because a child's peak memory
as the kernel counts it begins at that of its parent, so the process that measures must stay small.

Where payloads do not matter they are holes: a checkpoint of 50 GB takes a few MB of disk.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
TINY = DATA / "neo-chat" / "dense-conv" / "checkpoint"
"""The tiny checkpoint whose tokenizer and config the big one takes over."""

NBYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4, "I64": 8}

Row = tuple[str, str, tuple[int, ...]]
"""Name, dtype, shape."""

PLE_SCALE = 0x3951
"""Bits of the one scale of the released n-gram table, BF16."""


def write_shard(
    path: Path,
    rows: Iterable[Row],
    payload: Iterable[bytes] | None = None,
    known: Mapping[str, bytes] | None = None,
) -> None:
    """One safetensors file: its header, then `payload`, or a hole of the right size with the bytes
    of the tensors that are `known` in it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    places = {}
    for name, dtype, shape in rows:
        places[name] = at
        end = at + prod(shape) * NBYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for piece in payload or ():
            f.write(piece)
        if payload is None:
            f.truncate(8 + len(text) + at)
            for name in places.keys() & (known or {}):
                f.seek(8 + len(text) + places[name])
                f.write((known or {})[name])
        assert f.seek(0, os.SEEK_END) == 8 + len(text) + at


def write_index(folder: Path, shards: dict[str, list[Row]]) -> None:
    """The index as the Hub's tools write it: names sorted, indented by two."""
    weight_map = {row[0]: file for file, rows in shards.items() for row in rows}
    total = sum(prod(s) * NBYTES[d] for rows in shards.values() for _, d, s in rows)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    text = json.dumps(index, indent=2) + "\n"
    (folder / "model.safetensors.index.json").write_text(text)


def write_sparse(folder: Path, rows: list[Row], count: int) -> None:
    """`rows` over `count` shards of about as many tensors each, payloads as holes; the index."""
    shards = {}
    for i in range(count):
        part = rows[i * len(rows) // count : (i + 1) * len(rows) // count]
        shards[f"model-{i + 1:05d}-of-{count:05d}.safetensors"] = part
    for file, part in shards.items():
        write_shard(folder / file, part)
    write_index(folder, shards)


def buffers(config: dict[str, Any]) -> dict[str, list[int]]:
    """What a config of Qwen4-Exp gives for the buffers of its n-gram hash, by name below the text
    model."""
    from ntool.lib.families.qwen4_exp.config import read_config
    from ntool.lib.families.qwen4_exp.ngram_table import hash_buffers

    text = read_config(config).text
    return {
        f"layers.{i}.ple.ple_embedding.{name}": values
        for place, i in enumerate(text.ple)
        for name, values in hash_buffers(text, place).items()
    }


def fp8(folder: Path) -> None:
    """The published FP8 repository as far as headers go: 152,089 tensors in 131 shards, 185 GB of
    holes."""
    with gzip.open(DATA / "census" / "fp8-full.tensors.json.gz") as f:
        listing = json.load(f)["tensors"]
    shards: dict[str, list[Row]] = {}
    for name, dtype, shape, k in listing:
        file = f"model-{k:05d}-of-00131.safetensors"
        shards.setdefault(file, []).append((name, dtype, tuple(shape)))
    config = json.loads((DATA / "census" / "fp8-full.config.json").read_text())
    known = {
        f"model.language_model.{name}": struct.pack(f"<{len(values)}q", *values)
        for name, values in buffers(config).items()
    }
    at = next(iter(known)).rpartition(".")[0]
    known[f"{at}.ngram_embedding.weight_scale"] = struct.pack("<H", PLE_SCALE)
    for file, rows in shards.items():
        write_shard(folder / file, rows, known=known)
    write_index(folder, shards)
    (folder / "config.json").write_text(json.dumps(config))


def u15(folder: Path) -> None:
    """SenseNova-U1.5-8B-MoT as far as headers go: 1,116 tensors, 50 GB of holes."""
    with gzip.open(DATA / "census" / "u1.5-8b-mot.tensors.json.gz") as f:
        listing = json.load(f)["tensors"]
    write_sparse(folder, [(t["name"], t["dtype"], tuple(t["shape"])) for t in listing], 16)
    shutil.copy(DATA / "census" / "u1.5-8b-mot.config.json", folder / "config.json")


def dense_config(D: int = 512, layers: int = 15) -> dict[str, Any]:
    """The config of the tiny checkpoint, widened until its weights take about 300 MB."""
    config: dict[str, Any] = json.loads((TINY / "config.json").read_text())
    config["llm_config"].update(
        hidden_size=D,
        intermediate_size=3 * D,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
    )
    config["vision_config"].update(hidden_size=256, llm_hidden_size=D)
    return config


def dense(folder: Path, D: int = 512, layers: int = 15) -> None:
    """A checkpoint that runs: BF16 understanding, F32 generation, noise of size 0.02 as weights.

    The norms' weights are noise too: nothing here looks at what comes out, only at the bytes.
    """
    import ml_dtypes
    import numpy as np

    from ntool.lib.families.neo_chat import inventory

    config = dense_config(D, layers)
    wanted: dict[str, tuple[int | None, ...]] = {}
    for tensors in inventory.expected(config).values():
        wanted.update(tensors)
    open_widths = {"conv1": 256, "conv2": 256 // 4}  # of the pixel head: the config does not say
    understanding: list[Row] = []
    generation: list[Row] = []
    for name, shape in wanted.items():
        whole = tuple(open_widths[name.split(".")[-2]] if d is None else d for d in shape)
        drawn = "mot_gen" in name or name.startswith("fm_modules")
        (generation if drawn else understanding).append((name, "F32" if drawn else "BF16", whole))
    rng = np.random.Generator(np.random.PCG64(1))

    def payload(rows: list[Row]) -> Iterable[bytes]:
        for _, dtype, shape in rows:
            values = rng.standard_normal(prod(shape), np.float32) * np.float32(0.02)
            yield (values if dtype == "F32" else values.astype(ml_dtypes.bfloat16)).tobytes()

    shards = {
        "model-00001-of-00002.safetensors": understanding,
        "model-00002-of-00002.safetensors": generation,
    }
    for file, rows in shards.items():
        write_shard(folder / file, rows, payload(rows))
    write_index(folder, shards)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for path in TINY.iterdir():
        if "model" not in path.name and path.name != "config.json":
            shutil.copy(path, folder)


def qwen3(folder: Path, D: int = 1536, layers: int = 15) -> None:
    """A Qwen3 of 1.43 GB of F32, for exporters that know no neo_chat. Its matrices are as large as
    those of the generation half of `dense-mid`."""
    import numpy as np

    heads, kv, width, vocabulary = 8, 4, 64, 1024
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": vocabulary,
        "hidden_size": D, "intermediate_size": 3 * D, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": width,
        "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False,
        "torch_dtype": "float32",
    }  # fmt: skip
    rows: list[Row] = [
        (f"{name}.weight", "F32", (vocabulary, D)) for name in ("model.embed_tokens", "lm_head")
    ]
    for layer in range(layers):
        shapes = {
            "self_attn.q_proj": (heads * width, D),
            "self_attn.k_proj": (kv * width, D),
            "self_attn.v_proj": (kv * width, D),
            "self_attn.o_proj": (D, heads * width),
            "self_attn.q_norm": (width,),
            "self_attn.k_norm": (width,),
            "mlp.gate_proj": (3 * D, D),
            "mlp.up_proj": (3 * D, D),
            "mlp.down_proj": (D, 3 * D),
            "input_layernorm": (D,),
            "post_attention_layernorm": (D,),
        }
        rows += [(f"model.layers.{layer}.{n}.weight", "F32", s) for n, s in shapes.items()]
    rows.append(("model.norm.weight", "F32", (D,)))
    rng = np.random.Generator(np.random.PCG64(4))
    payload = (
        (rng.standard_normal(prod(s), np.float32) * np.float32(0.02)).tobytes() for _, _, s in rows
    )
    write_shard(folder / "model.safetensors", rows, payload)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def codes(folder: Path) -> None:
    """1.07 GB of random FP8 codes in 8 files, with BF16 scales of 128x128 blocks."""
    import numpy as np

    rng = np.random.Generator(np.random.PCG64(2))
    R, C, B = 4096, 2048, 128
    drawn = rng.integers(0, 255, (R, C), np.uint8)
    matrix = np.where(drawn & 0x7F == 0x7F, np.uint8(0x70), drawn).tobytes()
    scales = rng.integers(0x3A00, 0x3C00, (R // B, C // B)).astype("<u2").tobytes()
    shards: dict[str, list[Row]] = {}
    for k in range(8):
        rows = shards[f"model-{k + 1:05d}-of-00008.safetensors"] = []
        for i in range(16):
            rows.append((f"layers.{16 * k + i}.weight", "F8_E4M3", (R, C)))
            rows.append((f"layers.{16 * k + i}.weight_scale_inv", "BF16", (R // B, C // B)))
    for file, rows in shards.items():
        write_shard(folder / file, rows, (matrix if d[0] == "F" else scales for _, d, _ in rows))
    write_index(folder, shards)
    quantization = {"quant_method": "fp8", "weight_block_size": [B, B]}
    config = {"model_type": "bench", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))


def experts(folder: Path) -> None:
    """1.6 GB of BF16 experts, split: 8 layers of 32 experts."""
    H, I = 2048, 512  # noqa: E741
    shards: dict[str, list[Row]] = {}
    for layer in range(8):
        rows = shards[f"model-{layer + 1:05d}-of-00008.safetensors"] = []
        for e in range(32):
            at = f"model.layers.{layer}.mlp.experts.{e}"
            rows += [(f"{at}.{r}_proj.weight", "BF16", (I, H)) for r in ("gate", "up")]
            rows.append((f"{at}.down_proj.weight", "BF16", (H, I)))
    piece = os.urandom(2 * H * I)
    for file, rows in shards.items():
        write_shard(folder / file, rows, (piece for _ in rows))
    write_index(folder, shards)
    config = {"model_type": "bench", "hidden_size": H, "num_experts": 32}
    (folder / "config.json").write_text(json.dumps(config))


def qwen4(folder: Path, config: dict[str, Any], dtype: str) -> None:
    """A Qwen4-Exp text checkpoint of a config: noise of size 0.03 as matrices, norms that do
    nothing, moderate decays."""
    import ml_dtypes
    import numpy as np

    from ntool.lib.families.qwen4_exp.config import read_config
    from ntool.lib.families.qwen4_exp.contents import BUFFERS, expected

    c = read_config(config)
    integers = {f"model.{name}": values for name, values in buffers(config).items()}
    rows = [
        (name, "I64" if name.endswith(BUFFERS) else dtype, shape)
        for name, shape, _ in expected(c, ())
    ]
    rng = np.random.Generator(np.random.PCG64(3))
    given = np.float32 if dtype == "F32" else ml_dtypes.bfloat16

    def payload() -> Iterable[bytes]:
        for name, _, shape in rows:
            if name in integers:
                yield np.array(integers[name], np.int64).tobytes()
            elif len(shape) > 1:
                for _ in range(shape[0]):
                    row = rng.standard_normal(prod(shape[1:]), np.float32) * np.float32(0.03)
                    yield row.astype(given).tobytes()
            else:
                ones = name.endswith("linear_attn.norm.weight")
                yield np.full(shape, 1 if ones else 0, given).tobytes()

    write_shard(folder / "model.safetensors", rows, payload())
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def qwen4_config(**fields: object) -> dict[str, Any]:
    """The config of the small text golden with other sizes."""
    config: dict[str, Any] = json.loads((DATA / "qwen4-exp" / "text" / "config.json").read_text())
    return config | fields


def qwen4_mid(folder: Path) -> None:
    """540 million parameters in F32: eight layers of width 1024, 64 experts of which eight are
    chosen, two layers of sparse attention."""
    config = qwen4_config(
        vocab_size=32000, hidden_size=1024, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=2, head_dim=128, linear_key_head_dim=64, linear_value_head_dim=64,
        linear_num_key_heads=8, linear_num_value_heads=16, moe_intermediate_size=256,
        shared_expert_intermediate_size=256, num_experts=64, num_experts_per_tok=8,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2, hc_lowrank=128,
        ple_layer_ids=[2], ple_embed_dim=512, ngram_vocab_size_base=20011, heads_per_ngram=4,
        split_ngram_parts=16, indexer_head_dim=64, indexer_budget=512,
    )  # fmt: skip
    config["rope_parameters"] |= {"partial_rotary_factor": 0.5, "mrope_section": [11, 11, 10]}
    qwen4(folder, config, "F32")


def qwen4_table(folder: Path, base: int) -> None:
    """Two small layers and an n-gram table of 16 parts of about `base` rows of 128 bytes."""
    config = qwen4_config(
        num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], ple_layer_ids=[1],
        ngram_vocab_size_base=base, ple_embed_dim=1024, heads_per_ngram=8, split_ngram_parts=128,
    )  # fmt: skip
    qwen4(folder, config, "BF16")


KINDS: dict[str, Callable[[Path], None]] = {
    "experts": experts,
    "fp8": fp8,
    "codes": codes,
    "qwen3": qwen3,
    "u15": u15,
    "dense": dense,
    "dense-mid": partial(dense, D=1536, layers=15),
    "dense-large": partial(dense, D=2048, layers=18),
    "qwen4-mid": qwen4_mid,
    "qwen4-table-small": partial(qwen4_table, base=50_000),
    "qwen4-table-large": partial(qwen4_table, base=1_000_000),
}


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    Path(where).mkdir(parents=True)
    KINDS[kind](Path(where))
