"""Checkpoints whose tensors stand in an order and type of the test's choosing, so that a package
can point at them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import BITS, Tensor
from ntool.lib.checkpoint.writer import Entry, encode_header
from ntool.lib.numeric.convert import convert


def natural(t: Tensor) -> list[object]:
    """Sorts `shard_2` before `shard_10`."""
    return [(p.isdigit(), int(p) if p.isdigit() else p) for p in re.split(r"(\d+)", t.name)]


def relaid(source: Path, folder: Path, dtype: str | None = None, files: int = 2) -> Path:
    """A checkpoint with all floats in `dtype` (None: as they are), in numeric order of the names,
    over some files without an index; every other file is copied."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model*", "golden"))
    checkpoint = open_checkpoint(str(source))
    tensors = sorted(checkpoint.tensors.values(), key=natural)
    for i in range(files):
        part = tensors[i * len(tensors) // files : (i + 1) * len(tensors) // files]
        entries, payload = [], b""
        for t in part:
            kind = t.dtype if dtype is None or t.dtype == "I64" else dtype
            entries.append(Entry(t.name, kind, t.shape, t.params * BITS[kind] // 8))
            payload += b"".join(map(bytes, convert(checkpoint.bands(t), t.dtype, kind)))
        (folder / f"part-{i}.safetensors").write_bytes(encode_header(entries) + payload)
    return folder
