"""Prefix files and latents: arrays in safetensors with a few words of metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..checkpoint.output_file import write_whole
from ..checkpoint.safetensors_header import read_header, require_sound
from ..checkpoint.strict_json import load_object
from ..checkpoint.writer import Entry, alignment, encode_header
from ..errors import SourceNotFound

Arrays = dict[str, np.ndarray]

METADATA = "ntool"
"""Key of the metadata entry: one JSON object."""
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""NumPy name -> safetensors name, of the types that prefixes, latents and traces have."""


def save(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, object]) -> None:
    """Write arrays as a safetensors file, as `write_whole` does it.

    Not through the library: its errors name no file, and it cannot write into a pipe.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    entries = [_entry(name, np.ascontiguousarray(a)) for name, a in arrays.items()]
    entries.sort(key=lambda e: (-alignment(e.nbytes), e.name))
    text = json.dumps(metadata, ensure_ascii=False, sort_keys=True)
    header = encode_header(entries, {"format": "np", METADATA: text})

    def fill(f: BinaryIO) -> None:
        f.write(header)
        for entry in entries:
            for band in entry.bands():
                f.write(band)

    write_whole(path, fill)


def _entry(name: str, array: np.ndarray) -> Entry:
    def bands() -> Iterator[memoryview]:
        yield array.reshape(-1).view(np.uint8).data

    return Entry(name, DTYPES[array.dtype.name], array.shape, array.nbytes, bands)


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
