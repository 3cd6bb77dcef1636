"""Prefix files and latents: arrays in safetensors with a few words of metadata."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from ..checkpoint.safetensors_header import read_header, require_sound
from ..checkpoint.strict_json import load_object
from ..checkpoint.writer import new_file
from ..errors import SourceNotFound

Arrays = dict[str, np.ndarray]

METADATA = "ntool"
"""Key of the metadata entry: one JSON object."""


def save(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, object]) -> None:
    """Write arrays as a safetensors file that appears whole or not at all."""
    from safetensors.numpy import save_file

    contiguous = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    text = json.dumps(metadata, ensure_ascii=False, sort_keys=True)
    with new_file(path) as temporary:
        save_file(contiguous, temporary, metadata={"format": "np", METADATA: text})
        os.chmod(
            temporary, 0o666 & ~_umask()
        )  # the library makes files that only the user can read


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Arrays and metadata of a file that `save` (or any safetensors writer) made.

    Raises:
        SourceNotFound: no such file.
        InputError: not a sound safetensors file, or metadata that is not a JSON object.
    """
    from safetensors.numpy import load_file

    if not os.path.lexists(path):
        raise SourceNotFound(f"{path}: no such file")
    # strict first: the library accepts files that must be refused
    header = read_header(os.path.realpath(path), str(path))
    require_sound(header)
    words = load_object(
        header.metadata.get(METADATA, "{}").encode(), f"{path}: metadata '{METADATA}'"
    )
    return load_file(path), words
