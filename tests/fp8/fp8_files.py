"""FP8 checkpoints made in code: random codes, scales, and tensors that stay as they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ntool.lib.numeric.convert import f32_to_bf16

Arrays = Mapping[str, tuple[str, np.ndarray]]
CONFIG = {
    "model_type": "made",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
NUMPY = {"F8_E4M3": "u1", "F8_E5M2": "u1", "BF16": "<u2", "F32": "<f4", "F16": "<f2", "I64": "<i8"}


def write(path: Path, arrays: Arrays) -> None:
    """A safetensors file of (dtype, array) values; BF16 as its codes."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, array) in arrays.items():
        shape, end = list(array.shape), at + array.nbytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    payload = b"".join(np.ascontiguousarray(a).tobytes() for _, a in arrays.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)


def read(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """All tensors of a file, as `write` takes them."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    out = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + n for n in row["data_offsets"])
        array = np.frombuffer(raw[begin:end], NUMPY[row["dtype"]]).reshape(row["shape"])
        out[name] = (row["dtype"], array)
    return out


def everything(folder: Path) -> dict[str, tuple[str, np.ndarray]]:
    """All tensors of all files of a folder."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out.update(read(path))
    return out


def codes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random E4M3 codes without NaN."""
    drawn = rng.integers(0, 255, shape, np.uint8)
    return np.where(drawn & 0x7F == 0x7F, np.uint8(0x70), drawn)


def scales(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random positive BF16 codes around 2^-10."""
    return f32_to_bf16(rng.uniform(2**-12, 2**-8, shape).astype("<f4"))


def checkpoint(folder: Path, layers: int = 4, files: int = 2, seed: int = 0) -> Path:
    """Linear layers in FP8 with odd sizes, and BF16 tensors beside them; an index."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, tuple[str, np.ndarray]] = {
        "model.embed_tokens.weight": ("BF16", scales(rng, 40, 16)),
        "model.ids": ("I64", rng.integers(0, 9, (3,))),
    }
    for i in range(layers):
        r, c = 100 + 61 * (i % 5), 300 - 37 * (i % 8)
        at = f"model.layers.{i}.mlp.down_proj.weight"
        tensors[at] = ("F8_E4M3", codes(rng, r, c))
        tensors[f"{at}_scale_inv"] = ("BF16", scales(rng, -(-r // 128), -(-c // 128)))
        tensors[f"model.layers.{i}.norm.weight"] = ("F32", rng.standard_normal(16, "<f4"))
    names = list(tensors)
    weight_map = {}
    for k in range(files):
        file = f"model-{k + 1:05d}-of-{files:05d}.safetensors"
        part = names[k * len(names) // files : (k + 1) * len(names) // files]
        write(folder / file, {n: tensors[n] for n in part})
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    return folder


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }
