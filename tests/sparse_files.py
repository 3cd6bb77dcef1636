"""Checkpoints at their published size whose payloads are holes."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CENSUS = Path(__file__).parent / "data" / "census"
NGRAM = Path(__file__).parent / "data" / "qwen4-exp" / "ngram"
ITEM = {"I64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}


def write_shard(
    path: Path, rows: Sequence[Sequence[Any]], values: Mapping[str, bytes] | None = None
) -> None:
    """A real header of (name, dtype, shape), and a hole where the payload would be.

    Args:
        values: payloads of some tensors.
    """
    at, header = 0, {}
    for name, dtype, shape in rows:
        end = at + ITEM[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
        for name in header.keys() & (values or {}).keys():
            f.seek(8 + len(text) + header[name]["data_offsets"][0])
            f.write((values or {})[name])


def fp8_listing() -> list[tuple[str, str, list[int], str]]:
    """(name, dtype, shape, file) of the published FP8 repository."""
    with gzip.open(CENSUS / "fp8-full.tensors.json.gz") as f:
        rows = json.load(f)["tensors"]
    return [(n, d, s, f"model-{k:05d}-of-00131.safetensors") for n, d, s, k in rows]


def known_values() -> dict[str, bytes]:
    """Payloads of the published FP8 repository that follow from its geometry: the buffers of the
    n-gram hash, from the goldens, and the scale of the table."""
    primes = json.loads((NGRAM / "primes.json").read_text())["cases"]
    layer = next(c for c in primes if c["base"] == 20_000_000)["layers"][0]
    cases = json.loads((NGRAM / "multipliers.json").read_text())["cases"]
    published = {"vocab_size": 248_320, "ngram_size": 3, "ple_index": 0, "seed": 1234}
    case = next(c for c in cases if published.items() <= c.items())
    at = "model.language_model.layers.1.ple.ple_embedding"
    numbers = {
        "layer_multipliers": case["multipliers"],
        "ngram_heads_vocab_sizes": layer["sizes"],
        "ngram_heads_offsets": layer["offsets"],
    }
    return {f"{at}.{name}": struct.pack(f"<{len(v)}q", *v) for name, v in numbers.items()} | {
        f"{at}.ngram_embedding.weight_scale": b"\x51\x39"
    }


def write_fp8_full(folder: Path) -> Path:
    """The published FP8 repository: 152,089 tensors, 131 files, 185 GB of holes but for the few
    bytes that are known."""
    folder.mkdir(parents=True)
    files: dict[str, list[tuple[str, str, list[int]]]] = {}
    weight_map = {}
    for name, dtype, shape, file in fp8_listing():
        files.setdefault(file, []).append((name, dtype, shape))
        weight_map[name] = file
    values = known_values()
    for file, rows in files.items():
        write_shard(folder / file, rows, values)
    total = sum(ITEM[d] * math.prod(s) for rows in files.values() for _, d, s in rows)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(CENSUS / "fp8-full.config.json", folder / "config.json")
    return folder
