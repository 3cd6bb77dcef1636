"""A GGUF set of the published geometry: 1,224 tensors in three files, a vocabulary of 248,000.

`python -m bench.gguf_files FOLDER` writes it, in a process of its own (`bench.checkpoints` says
why). The payload is a hole, so the set of 100 GB takes some 15 MB of disk.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from ntool.lib.checkpoint.gguf_types import TENSORS, TensorType
from ntool.lib.families.qwen4_exp.gguf_contract import TABLE, expected
from ntool.lib.families.qwen4_exp.gguf_geometry import geometry

PUBLISHED: dict[str, Any] = {
    "block_count": 48,
    "context_length": 262_144,
    "embedding_length": 2560,
    "attention.head_count": 24,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 2048,
    "attention.compress_ratios": [4 * (i % 4 == 3) for i in range(48)],
    "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0],
    "rope.freq_base": 1e7,
    "expert_count": 512,
    "expert_used_count": 10,
    "expert_feed_forward_length": 640,
    "expert_shared_feed_forward_length": 640,
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "ssm.time_step_rank": 48,
    "ssm.inner_size": 6144,
    "hyper_connection.count": 4,
    "hyper_connection.low_rank": 320,
    "ple.layers": [1],
    "ple.ngram_size": 3,
    "ple.heads_per_ngram": 8,
    "ple.conv_kernel": 4,
    "ple.eos_token_id": 248_046,
    "ple.image_token_id": 248_056,
    "ple.layer_multipliers": [23703573157769, 20109073645365, 8052911324071],
    "embedding_length_per_layer_input": 160,
    "vocab_size": 248_320,
}
"""Metadata of the published geometry; the sizes of the n-gram heads are its 16 primes."""
PRIMES = [
    20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081,
    20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
]  # fmt: skip
TABLE_ROWS = 320_001_536
TOKENS = 248_000
PARTS = (0, 595, 629)
_ALIGNMENT = 32


def metadata() -> dict[str, Any]:
    """All pairs of the family, keys with their prefix."""
    pairs = {
        **PUBLISHED,
        "ple.head_vocab_sizes": PRIMES,
        "ple.head_offsets": [sum(PRIMES[:i]) for i in range(len(PRIMES))],
    }
    return {f"qwen4exp.{key}": value for key, value in pairs.items()}


def string(text: str) -> bytes:
    """A string as GGUF stores it: its length in bytes, its UTF-8."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: Any) -> bytes:
    """A key with a value: UINT32, FLOAT32, STRING, or an array of UINT64, INT32 or strings."""
    if isinstance(value, str):
        body = struct.pack("<I", 8) + string(value)
    elif isinstance(value, float):
        body = struct.pack("<If", 6, value)
    elif isinstance(value, int):
        body = struct.pack("<II", 4, value)
    elif isinstance(value[0], str):
        body = struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    elif isinstance(value[0], float):
        body = struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    else:
        body = struct.pack("<IIQ", 9, 10, len(value)) + struct.pack(f"<{len(value)}Q", *value)
    return string(key) + body


def tokens(count: int) -> list[str]:
    """Words of a byte-level vocabulary: mostly short, many not ASCII, a few very long."""
    marks = ("", "\u0120", "\u010a", "\u00c3\u00a9", "\u4e2d")
    return [
        f"{marks[i % 5]}{i:x}" + "a" * (i % 7) + "=" * (i % 997 == 0) * 130 for i in range(count)
    ]


def vocabulary(count: int) -> dict[str, Any]:
    """Pairs of a tokenizer: tokens, scores, types and merges, as many of each (one merge less)."""
    words = tokens(count)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [0.0] * count,
        "tokenizer.ggml.token_type": [1] * count,
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairwise(words)],
    }


def kind_of(name: str, dims: tuple[int, ...]) -> int:
    """A type for each tensor: that of the published set where it is known."""
    if name == TABLE or name.endswith("ffn_down_exps.weight"):
        return 20
    if name.endswith(("ffn_gate_exps.weight", "ffn_up_exps.weight")):
        return 19
    return 0 if len(dims) == 1 or dims[0] % 32 else 8


Row = tuple[str, tuple[int, ...], int]
"""Name, dims (innermost first), number of the type."""


def write_file(
    path: Path, pairs: dict[str, Any], rows: Iterable[Row], split: tuple[int, ...]
) -> None:
    """One file with a hole as payload.

    Args:
        split: `split.no`, `split.count`, `split.tensors.count`.
    """
    keys = ("split.no", "split.count", "split.tensors.count")
    pairs = {**pairs, **dict(zip(keys, split, strict=True))}
    head = b"".join(pair(k, v) for k, v in pairs.items())
    records, at, count = [], 0, 0
    for name, dims, number in rows:
        kind: TensorType = TENSORS[number]
        shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        records.append(string(name) + shape + struct.pack("<IQ", number, at))
        at += prod(dims) // kind.elements * kind.nbytes
        at += -at % _ALIGNMENT
        count += 1
    raw = struct.pack("<4sIQQ", b"GGUF", 3, count, len(pairs)) + head + b"".join(records)
    raw += bytes(-len(raw) % _ALIGNMENT)
    with open(path, "wb") as f:
        f.write(raw)
        f.truncate(len(raw) + at)


def write_set(folder: Path, count: int = TOKENS) -> None:
    """The three files."""
    pairs = metadata()
    found, problems = geometry(pairs, None)
    assert found is not None and not problems, problems
    names = expected(found)
    names[TABLE] = (PUBLISHED["embedding_length_per_layer_input"], TABLE_ROWS)
    rows = [(name, dims, kind_of(name, dims)) for name, dims in names.items()]
    assert len(rows) == sum(PARTS)
    first = {"general.architecture": "qwen4exp", **pairs, **vocabulary(count)}
    at = 0
    for i, length in enumerate(PARTS):
        path = folder / f"model-{i + 1:05d}-of-{len(PARTS):05d}.gguf"
        part = rows[at : at + length]
        write_file(path, {} if i else first, part, (i, len(PARTS), len(rows)))
        at += length


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write_set(Path(sys.argv[1]))
