"""Makes safetensors files byte by byte, sound and broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def pack(header: Any, payload: int = 0, padding: bytes = b"") -> bytes:
    """Bytes of a file: `header` as an object or as its JSON text, then `payload` zero bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header, ensure_ascii=False).encode()
    text += padding
    return struct.pack("<Q", len(text)) + text + bytes(payload)


def write(path: Path, header: Any, payload: int = 0, padding: bytes = b"") -> Path:
    path.write_bytes(pack(header, payload, padding))
    return path


def shard(path: Path, *names: str, dtype: str = "F32", shape: tuple[int, ...] = (2, 2)) -> Path:
    """A sound file of float32 tensors of one shape."""
    count = 4
    for d in shape:
        count *= d
    rows = {n: entry(dtype, list(shape), i * count, (i + 1) * count) for i, n in enumerate(names)}
    return write(path, rows, len(names) * count)


def index(path: Path, weight_map: dict[str, Any], **metadata: Any) -> Path:
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


class InMemory:
    """A `Readable` of bytes: a file without a file system."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.nbytes, self.bytes_read = raw, len(raw), 0

    def read(self, offset: int, count: int) -> bytes:
        piece = self.raw[offset : offset + count]
        self.bytes_read += len(piece)
        return piece

    def unchanged(self) -> bool:
        return True
