"""Checkpoints at their published size whose payloads are holes."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CENSUS = Path(__file__).parent / "data" / "census"
ITEM = {"I64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}


def write_shard(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    """A real header of (name, dtype, shape), and a hole where the payload would be."""
    at, header = 0, {}
    for name, dtype, shape in rows:
        end = at + ITEM[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


def fp8_listing() -> list[tuple[str, str, list[int], str]]:
    """(name, dtype, shape, file) of the published FP8 repository."""
    with gzip.open(CENSUS / "fp8-full.tensors.json.gz") as f:
        rows = json.load(f)["tensors"]
    return [(n, d, s, f"model-{k:05d}-of-00131.safetensors") for n, d, s, k in rows]


def write_fp8_full(folder: Path) -> Path:
    """The published FP8 repository: 152,089 tensors, 131 files, 185 GB of holes."""
    folder.mkdir(parents=True)
    files: dict[str, list[tuple[str, str, list[int]]]] = {}
    weight_map = {}
    for name, dtype, shape, file in fp8_listing():
        files.setdefault(file, []).append((name, dtype, shape))
        weight_map[name] = file
    for file, rows in files.items():
        write_shard(folder / file, rows)
    total = sum(ITEM[d] * math.prod(s) for rows in files.values() for _, d, s in rows)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(CENSUS / "fp8-full.config.json", folder / "config.json")
    return folder
