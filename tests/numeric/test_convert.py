"""Band conversion against ml_dtypes and NumPy, over all codes and in odd pieces."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntool.lib.errors import InputError, Unsupported
from ntool.lib.numeric import convert
from ntool.lib.numeric.convert import Tally

TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
CODES = np.arange(1 << 16, dtype=np.uint16)


def run(values: np.ndarray, stored: str, wanted: str, pieces: int = 7, tally=None) -> np.ndarray:
    raw = values.tobytes()
    bands = [raw[i : i + pieces] for i in range(0, len(raw), pieces)]
    out = b"".join(bytes(b) for b in convert.convert(bands, stored, wanted, "t", tally))
    return np.frombuffer(out, TYPES[wanted])


def same(a: np.ndarray, b: np.ndarray) -> None:
    """Equal bits, but any NaN is a NaN."""
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(a32), np.isnan(b32))
    keep = ~np.isnan(a32)
    unsigned = {2: "<u2", 4: "<u4"}[a.dtype.itemsize]
    np.testing.assert_array_equal(a.view(unsigned)[keep], b.view(unsigned)[keep])


@pytest.mark.parametrize("stored", ["BF16", "F16"])
def test_widening_is_exact_for_all_codes(stored: str) -> None:
    values = CODES.view(TYPES[stored])
    with np.errstate(invalid="ignore"):
        same(run(values, stored, "F32", 4096), values.astype(np.float32))


def test_all_bf16_codes_to_f16() -> None:
    values = CODES.view(TYPES["BF16"])
    inside = values[np.abs(values.astype(np.float32)) <= 65504]
    with np.errstate(over="ignore", invalid="ignore"):
        same(run(inside, "BF16", "F16", 4096), inside.astype(np.float32).astype(np.float16))


def test_all_f16_codes_to_bf16() -> None:
    values = CODES.view(TYPES["F16"])
    finite = values[np.isfinite(values)]
    same(run(finite, "F16", "BF16", 4096), finite.astype(np.float32).astype(ml_dtypes.bfloat16))


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 13))
def test_f32_to_bf16_is_nearest_even_in_any_pieces(codes: list[int], pieces: int) -> None:
    values = np.array(codes, np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16)
    values = values[np.isfinite(wanted.astype(np.float32)) | np.isnan(values)]
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16)
    same(run(values, "F32", "BF16", pieces), wanted)


@pytest.mark.parametrize("bits", [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x80000001])
def test_ties_go_to_even(bits: int) -> None:
    values = np.array([bits], np.uint32).view(np.float32)
    same(run(values, "F32", "BF16"), values.astype(ml_dtypes.bfloat16))


def test_nan_stays_nan() -> None:
    codes = convert.f32_to_bf16(np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32))
    assert np.isnan(codes.view(ml_dtypes.bfloat16).astype(np.float32)).all()


@pytest.mark.parametrize(("stored", "wanted"), [("BF16", "F16"), ("F32", "F16"), ("F32", "BF16")])
def test_overflow_is_refused_after_all_of_it_is_counted(stored: str, wanted: str) -> None:
    big = 3.4e38 if wanted == "BF16" else 1e6
    values = np.array([1.0, big, -big, 2.0], np.float32)
    if stored == "BF16":
        values = values.astype(ml_dtypes.bfloat16)
    elif wanted == "BF16":
        values[1:3] = np.array([0x7F7FFFFF, 0xFF7FFFFF], np.uint32).view(np.float32)
    with pytest.raises(InputError, match="tensor 't': values beyond the range") as caught:
        run(values, stored, wanted)
    assert "found 2" in str(caught.value)


def test_what_becomes_small_is_counted() -> None:
    tally = Tally()
    values = np.array([0, 1, 2.0**-14, 2.0**-15, 2.0**-24, 2.0**-26, -(2.0**-30)], np.float32)
    run(values, "F32", "F16", tally=tally)
    assert (tally.flushed, tally.subnormal, tally.largest) == (2, 2, 1.0)
    assert tally.fields()["flushed_to_zero"] == 2


@given(st.lists(st.integers(0, 0x477F), max_size=20), st.integers(0, (1 << 20) - 1))
def test_counts_of_codes_are_those_of_their_values(codes: list[int], signs: int) -> None:
    """BF16 to F16 looks codes up and counts by codes; this counts by values."""
    signed = [c | (signs >> i & 1) << 15 for i, c in enumerate(codes)]
    values = np.array(signed, np.uint16).view(TYPES["BF16"])
    wide, tally = np.abs(values.astype(np.float32)), Tally()
    narrow = run(values, "BF16", "F16", 7, tally)
    same(narrow, values.astype(np.float32).astype(np.float16))
    zero = (wide > 0) & (narrow == 0)
    assert tally.flushed == np.count_nonzero(zero)
    assert tally.subnormal == np.count_nonzero((wide > 0) & (wide < 2.0**-14) & ~zero)
    assert (tally.overflow, tally.largest) == (0, max(wide, default=0))


def test_a_pair_without_a_rule_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="w: cannot convert I64 to F32"):
        convert.check("I64", "F32", "w")
