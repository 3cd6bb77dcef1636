"""Prefix files and latents: arrays in safetensors with a few words of metadata."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from ..checkpoint.safetensors_header import read_header
from ..checkpoint.writer import new_file
from ..errors import InputError, SourceNotFound

METADATA = "ntool"
"""Key of the metadata entry: one JSON object."""


def save(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, object]) -> None:
    """Write arrays as a safetensors file that appears whole or not at all."""
    from safetensors.numpy import save_file

    contiguous = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    text = json.dumps(metadata, ensure_ascii=False, sort_keys=True)
    with new_file(path) as temporary:
        save_file(contiguous, temporary, metadata={"format": "np", METADATA: text})


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Arrays and metadata of a file that `save` (or any safetensors writer) made.

    Raises:
        SourceNotFound: no such file.
        InputError: not a sound safetensors file, or metadata that is not a JSON object.
    """
    from safetensors.numpy import load_file

    if not os.path.lexists(path):
        raise SourceNotFound(f"{path}: no such file")
    header = read_header(path)  # strict: the library accepts files that must be refused
    for problem in header.problems:
        if problem.severity == "error":
            raise InputError(f"{path}: {problem.message}")
    arrays = load_file(path)
    try:
        metadata = json.loads((header.metadata or {}).get(METADATA, "{}"))
    except ValueError as e:
        raise InputError(f"{path}: metadata '{METADATA}' is not JSON ({e})") from e
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: metadata '{METADATA}'", found=type(metadata).__name__, expected="object")
    return arrays, metadata
