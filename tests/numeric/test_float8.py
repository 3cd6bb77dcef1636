"""Codes of eight-bit floats and scales against ml_dtypes: all of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ntool.lib.errors import InputError, Unsupported
from ntool.lib.numeric import float8
from ntool.lib.numeric.float8 import E4M3, E5M2, Encoded, Format, decode, encode

PEERS = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
BOTH = pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda f: f.name)
CODES = np.arange(256, dtype=np.uint8)


def bits(values: np.ndarray) -> np.ndarray:
    return values.astype("<f4").view("<u4")


def peer_codes(values: np.ndarray, fmt: Format) -> np.ndarray:
    """The peer's codes of values brought into range first: it does not saturate."""
    largest = np.float32(ml_dtypes.finfo(PEERS[fmt.name]).max)
    with np.errstate(invalid="ignore"):
        return np.clip(values, -largest, largest).astype(PEERS[fmt.name]).view(np.uint8)


@BOTH
def test_all_256_codes_have_the_bits_of_the_peer(fmt: Format) -> None:
    theirs = CODES.view(PEERS[fmt.name]).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(decode(CODES, fmt)), np.isnan(theirs))
    keep = ~np.isnan(theirs)
    np.testing.assert_array_equal(bits(decode(CODES, fmt))[keep], bits(theirs)[keep])
    np.testing.assert_array_equal(np.signbit(decode(CODES, fmt)), CODES >= 128)


def test_codes_that_are_easy_to_get_wrong() -> None:
    v = E4M3.values
    assert (v[0x7E], v[0x01], v[0x07], v[0x08], v[0x38]) == (448, 2**-9, 7 * 2**-9, 2**-6, 1)
    assert np.isnan(v[[0x7F, 0xFF]]).all() and np.isnan(v).sum() == 2 and not np.isinf(v).any()
    assert v[0x80] == 0 and np.signbit(v[0x80])
    w = E5M2.values
    assert (w[0x7B], w[0x01], w[0x04], w[0x7C], w[0xFC]) == (57344, 2**-16, 2**-14, np.inf, -np.inf)
    assert np.isnan(w).sum() == 6


def test_the_table_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        E4M3.values[0] = 1


@BOTH
@pytest.mark.parametrize("source", [np.float16, ml_dtypes.bfloat16], ids=["F16", "BF16"])
def test_every_16_bit_value_encodes_as_the_peer_does(fmt: Format, source: type) -> None:
    with np.errstate(invalid="ignore"):
        values = np.arange(1 << 16, dtype=np.uint16).view(source).astype(np.float32)
    np.testing.assert_array_equal(encode(values, fmt), peer_codes(values, fmt))


@BOTH
def test_random_float32_encode_as_the_peer_does(fmt: Format) -> None:
    random = np.random.default_rng(3).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    random[: 1 << 19] = (random[: 1 << 19] & 0x8FFFFFFF) | 0x38000000  # most near the range
    values = random.view(np.float32)
    np.testing.assert_array_equal(encode(values, fmt), peer_codes(values, fmt))


@BOTH
def test_ties_go_to_the_even_code_and_their_neighbours_do_not(fmt: Format) -> None:
    low = np.arange(fmt.largest_code, dtype=np.uint8)
    tie = (fmt.values[low].astype(np.float64) + fmt.values[low + 1]) / 2
    assert (tie == tie.astype(np.float32)).all()
    tie = tie.astype(np.float32)
    for sign in (1, -1):
        half = np.uint8(0 if sign > 0 else 128)
        below, above = np.nextafter(tie, np.float32(0)), np.nextafter(tie, np.float32(np.inf))
        np.testing.assert_array_equal(encode(sign * below, fmt), low | half)
        np.testing.assert_array_equal(encode(sign * above, fmt), low + 1 | half)
        np.testing.assert_array_equal(encode(sign * tie, fmt), low + (low & 1) | half)


@pytest.mark.parametrize(
    ("fmt", "last", "first"), [(E4M3, 464.0, 464.00003), (E5M2, None, 61440.0)]
)
def test_what_rounds_beyond_the_largest_saturates_and_is_counted(
    fmt: Format, last: float | None, first: float
) -> None:
    first32 = np.float32(first)
    if last is not None:
        assert np.nextafter(np.float32(last), np.float32(np.inf)) == first32
    inside = np.nextafter(first32, np.float32(0))
    met = Encoded()
    values = np.array([inside, first32, -first32, np.inf, -np.inf, 3e38], np.float32)
    largest = fmt.largest_code
    wanted = [largest, largest, largest | 128, largest, largest | 128, largest]
    assert encode(values, fmt, met).tolist() == wanted
    assert met == Encoded(saturated=5)


@BOTH
def test_what_becomes_zero_and_what_is_no_number_is_counted(fmt: Format) -> None:
    met = Encoded()
    least = fmt.values[1]
    values = np.array([[0, -0.0, least / 2, -least / 4], [np.nan, -np.nan, least, 1e-44]], "<f4")
    assert encode(values, fmt, met).tolist() == [[0, 128, 0, 128], [fmt.nan, fmt.nan | 128, 1, 0]]
    assert met == Encoded(flushed=3, nan=2)


@BOTH
def test_encoding_undoes_decoding(fmt: Format) -> None:
    finite = CODES[np.isfinite(fmt.values)]
    np.testing.assert_array_equal(encode(decode(finite, fmt), fmt), finite)
    assert encode(np.empty((0, 3), np.float32), fmt).shape == (0, 3)


def test_every_exponent_only_scale() -> None:
    ours = float8.e8m0_to_f32(CODES)
    np.testing.assert_array_equal(
        bits(ours)[:255], bits(CODES.view(ml_dtypes.float8_e8m0fnu))[:255]
    )
    assert np.isnan(ours[255])
    assert (ours[0], ours[127], ours[254]) == (2.0**-127, 1, 2.0**127)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_16_bit_scale_is_widened_exactly(dtype: str) -> None:
    codes = np.arange(1 << 16, dtype="<u2")
    with np.errstate(invalid="ignore"):
        values = codes.view(ml_dtypes.bfloat16 if dtype == "BF16" else np.float16).astype("<f4")
    ours = float8.scales_to_f32(codes.tobytes(), dtype, "s")
    keep = ~np.isnan(values)
    np.testing.assert_array_equal(np.isnan(ours), ~keep)
    np.testing.assert_array_equal(bits(ours)[keep], bits(values)[keep])


def test_other_scales() -> None:
    raw = np.array([1e-45, -3.5], "<f4").tobytes()
    assert float8.scales_to_f32(raw, "F32", "s").tobytes() == raw
    assert float8.scales_to_f32(b"\x7f\x80", "F8_E8M0", "s").tolist() == [1, 2]
    assert float8.scales_to_f32(b"\x7f\x80", "U8", "s").tolist() == [1, 2]
    with pytest.raises(InputError, match=r"a\.safetensors 's': type of a scale: found I64"):
        float8.scales_to_f32(b"", "I64", "a.safetensors 's'")


@pytest.mark.parametrize("dtype", ["F8_E4M3FNUZ", "F8_E5M2FNUZ", "U8", "BF16"])
def test_formats_that_are_not_meant_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(Unsupported, match=f"w: no decoding for this type: found {dtype}"):
        float8.format_of(dtype, "w")
    assert float8.format_of("F8_E5M2", "w") is E5M2
