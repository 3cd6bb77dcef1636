"""Prefix files and latents: arrays in safetensors with a few words of metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..checkpoint.output_file import write_whole
from ..checkpoint.regular_file import Changed, open_regular
from ..checkpoint.safetensors_header import read_header, require_sound
from ..checkpoint.strict_json import load_object
from ..checkpoint.tensor import Tensor
from ..checkpoint.writer import Entry, alignment, encode_header
from ..errors import InputError, SourceNotFound

Arrays = dict[str, np.ndarray]
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""Types that prefix, latent and golden files use, by their safetensors name."""
BAND = 8 << 20
"""Bytes read at a time."""

METADATA = "ntool"
"""Key of the metadata entry: one JSON object."""
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""NumPy name -> safetensors name, of the types that prefixes, latents and traces have."""


def records(tensors: Arrays) -> list[dict[str, Any]]:
    """Fields of the `tensor` record of each array: name, dtype, shape, nbytes."""
    return [
        {"name": k, "dtype": NAMES[v.dtype.name], "shape": list(v.shape), "nbytes": v.nbytes}
        for k, v in tensors.items()
    ]


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

    return Entry(name, NAMES[array.dtype.name], array.shape, array.nbytes, bands)


@dataclass(frozen=True)
class ArrayFile:
    """A safetensors file whose header was read and is sound; payloads are read one by one.

    Attributes:
        tensors: what the header says of each, by name.
        words: metadata.
        texts: all metadata as it stands in the header.
    """

    path: Path
    tensors: dict[str, Tensor]
    words: dict[str, object]
    texts: dict[str, str] = field(default_factory=dict)

    def check(
        self, name: str, dtypes: Sequence[str], shape: Sequence[int | None], words: str = ""
    ) -> None:
        """Refuse a tensor that is not there or is not what it should be.

        Args:
            dtypes: those allowed, in safetensors spelling.
            shape: None stands for any length from 1.
            words: the shape in the reader's words, for the message.
        Raises:
            InputError: names file, tensor, found and expected.
        """
        t = self.tensors.get(name)
        if t is None:
            raise InputError(f"{self.path}: tensor '{name}' is missing")
        fits = len(t.shape) == len(shape) and all(
            d >= 1 if s is None else d == s for d, s in zip(t.shape, shape, strict=True)
        )
        if t.dtype not in dtypes or not fits:
            raise InputError(
                f"{self.path}: tensor '{name}'",
                found=f"{t.dtype} {_shape(t.shape)}",
                expected=f"{' or '.join(dtypes)} {words or _shape(shape)}",
            )

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor that `check` let pass.

        Raises:
            InputError: the file changed meanwhile.
        """
        t = self.tensors[name]
        array = np.empty(t.shape, DTYPES[t.dtype])
        with open_regular(os.path.realpath(self.path), str(self.path)) as f:
            at, view = 0, array.reshape(-1).view(np.uint8).data
            while at < t.nbytes:
                piece = f.read(t.offset + at, min(BAND, t.nbytes - at))
                if not piece or not f.unchanged():
                    raise Changed(f"{self.path}: changed while it was read")
                view[at : at + len(piece)] = piece
                at += len(piece)
        return array

    def finite(self, name: str) -> np.ndarray:
        """`read`, with NaN and infinities refused.

        Raises:
            InputError: names file and tensor.
        """
        array = self.read(name)
        bad = array.size - int(np.count_nonzero(np.isfinite(array)))
        if bad:
            raise InputError(
                f"{self.path}: tensor '{name}'",
                found=f"{bad} of {array.size} values NaN or infinite",
                expected="finite values",
            )
        return array


def _shape(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('n' if d is None else str(d) for d in shape)}]"


def load(path: Path) -> ArrayFile:
    """A file that `save` (or any safetensors writer) made, its header alone read so far.

    Tensors that nobody asks for may be of any type and shape: they are never read.

    Raises:
        SourceNotFound: no such file.
        InputError: not a sound safetensors file, or metadata that is not a JSON object.
    """
    if "\0" in str(path) or not os.path.lexists(path):
        raise SourceNotFound(f"{path}: no such file")
    header = read_header(os.path.realpath(path), str(path))
    require_sound(header)
    words = load_object(
        header.metadata.get(METADATA, "{}").encode(), f"{path}: metadata '{METADATA}'"
    )
    return ArrayFile(path, {t.name: t for t in header.tensors}, words, dict(header.metadata))
