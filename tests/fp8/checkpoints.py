"""Small checkpoints, written byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

STORED: dict[str, Any] = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F16": np.float16, "U8": np.uint8,
    "F8_E8M0": np.uint8, "I64": np.int64,
}  # fmt: skip
Stored = tuple[str, np.ndarray]
"""(dtype, array of its NumPy type)."""


def write(folder: Path, files: Mapping[str, Mapping[str, Stored]], config: Any) -> Path:
    """A checkpoint of these files; with an index where there are several."""
    folder.mkdir(parents=True)
    for file, tensors in files.items():
        at, header, payload = 0, {}, []
        for name, (dtype, array) in tensors.items():
            assert array.dtype == STORED[dtype]
            end = at + array.nbytes
            header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, end]}
            payload.append(array.tobytes())
            at = end
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(payload))
    if len(files) > 1:
        weight_map = {name: file for file, tensors in files.items() for name in tensors}
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def fp8_config(block: tuple[int, int] | None = (128, 128), **more: Any) -> dict[str, Any]:
    """A config that says FP8."""
    values = {"quant_method": "fp8", "weight_block_size": list(block) if block else None}
    return {"model_type": "other", "quantization_config": {**values, **more}}


def codes(shape: tuple[int, ...], seed: int = 0, dtype: str = "F8_E4M3") -> Stored:
    """Every finite code, both zeros and subnormals included."""
    found = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    limit = 0x7F if dtype == "F8_E4M3" else 0x7C
    found[(found & 0x7F) >= limit] = 0x80
    return dtype, found.view(STORED[dtype])


def scales(shape: tuple[int, ...], seed: int = 1, dtype: str = "BF16") -> Stored:
    """Scales between 0.001 and 0.1."""
    values = np.random.default_rng(seed).uniform(1e-3, 1e-1, shape)
    return dtype, values.astype(STORED[dtype])


def payloads(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """(dtype, shape, bytes) of every tensor of a folder's safetensors files, also below it.

    Goldens that lie in the folder of their checkpoint are left out.
    """
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        if "golden" in path.relative_to(folder).parts:
            continue
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        for name, t in json.loads(raw[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + at for at in t["data_offsets"])
                assert name not in found, f"{name} twice"
                found[name] = (t["dtype"], tuple(t["shape"]), raw[begin:end])
    return found


def read(folder: Path) -> dict[str, dict[str, Stored]]:
    """The files of a checkpoint as `write` takes them."""
    files: dict[str, dict[str, Stored]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        for name, t in json.loads(raw[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + at for at in t["data_offsets"])
                array = np.frombuffer(raw[begin:end], STORED[t["dtype"]]).reshape(t["shape"])
                files.setdefault(path.name, {})[name] = (t["dtype"], array)
    return files
