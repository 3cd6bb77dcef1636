"""Reads an ONNX file as `inspect-headers` does, for tests of the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import ModelProto

from ntool.lib.checkpoint.folder import LocalFolder
from ntool.lib.checkpoint.onnx_header import OnnxHeader, onnx_header_of


def read(folder: Path, model: ModelProto | bytes, name: str = "m.onnx") -> OnnxHeader:
    raw = model if isinstance(model, bytes) else model.SerializeToString()
    (folder / name).write_bytes(raw)
    return again(folder, name)


def again(folder: Path, name: str = "m.onnx") -> OnnxHeader:
    header = onnx_header_of(LocalFolder(str(folder), named=name), name)
    assert all(p.malformed for p in header.problems if p.severity == "error")
    assert all(p.severity in ("error", "info") for p in header.problems)
    return header


def codes(header: OnnxHeader) -> list[str]:
    return [p.code for p in header.problems]


def rows(header: OnnxHeader) -> list[tuple[Any, ...]]:
    return [(t.name, t.dtype, t.shape, t.file, t.nbytes) for t in header.tensors]
