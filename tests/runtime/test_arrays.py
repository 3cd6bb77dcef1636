"""Prefix and latent files: only what is asked for is read, and that only as expected."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ntool.lib.checkpoint.tensor import BITS
from ntool.lib.errors import InputError, SourceNotFound
from ntool.lib.runtime import arrays

ODD = [
    *((dtype, [4], BITS[dtype] // 2) for dtype in BITS if dtype != "F32"),
    ("F32", [2**40, 0, 2**22], 0),
    ("F32", [1] * 65, 4),
    ("F32", [], 4),
]


def stored(path: Path, *tensors: tuple[str, str, list[int], bytes], words: str = "{}") -> Path:
    """A safetensors file of (name, dtype, shape, bytes)."""
    entries: dict[str, object] = {"__metadata__": {"ntool": words}}
    at = 0
    for name, dtype, shape, raw in tensors:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(t[3] for t in tensors))
    return path


@pytest.mark.parametrize(("dtype", "shape", "nbytes"), ODD, ids=str)
def test_tensors_that_nobody_asks_for_may_be_anything(tmp_path, dtype, shape, nbytes) -> None:
    wanted = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = arrays.load(
        stored(
            tmp_path / "a",
            ("extra", dtype, shape, bytes(nbytes)),
            ("x", "F32", [2, 3], wanted.tobytes()),
        )
    )
    file.check("x", ["F32"], [2, None])
    np.testing.assert_array_equal(file.finite("x"), wanted)


@pytest.mark.parametrize(("dtype", "shape", "nbytes"), ODD, ids=str)
def test_a_wanted_tensor_of_another_type_or_shape(tmp_path, dtype, shape, nbytes) -> None:
    file = arrays.load(stored(tmp_path / "a", ("x", dtype, shape, bytes(nbytes))))
    with pytest.raises(InputError, match=r"a: tensor 'x': found .*, expected F32 \[2, n\]"):
        file.check("x", ["F32"], [2, None])


def test_bf16_keeps_its_bits(tmp_path) -> None:
    value = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    file = arrays.load(stored(tmp_path / "a", ("x", "BF16", [2], value.tobytes())))
    file.check("x", ["BF16"], [2])
    assert file.finite("x").dtype == value.dtype and (file.read("x") == value).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("odd", ["nan", "inf", "-inf"])
def test_what_is_not_finite_names_file_and_tensor(tmp_path, dtype: str, odd: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    raw = np.array([1, float(odd)], np.float32).astype(kind).tobytes()
    name = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    file = arrays.load(stored(tmp_path / "a", ("x", name, [2], raw)))
    with pytest.raises(InputError, match="a: tensor 'x': found 1 of 2 values NaN or infinite"):
        file.finite("x")


def test_missing_things(tmp_path) -> None:
    file = arrays.load(stored(tmp_path / "a"))
    with pytest.raises(InputError, match="a: tensor 'x' is missing"):
        file.check("x", ["F32"], [1])
    for path in ("nowhere", "no\0where"):
        with pytest.raises(SourceNotFound, match="no such file"):
            arrays.load(tmp_path / path)
    with pytest.raises(InputError, match="metadata 'ntool'"):
        arrays.load(stored(tmp_path / "b", words="[1]"))


def test_a_file_that_shrinks_is_noticed(tmp_path) -> None:
    path = stored(tmp_path / "a", ("x", "F32", [4], bytes(16)))
    file = arrays.load(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="changed while it was read"):
        file.read("x")
