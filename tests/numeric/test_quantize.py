"""Quantising against a plain loop with the peer's casts, in bands, and what it tells of errors."""

from __future__ import annotations

from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntool.lib.errors import InputError
from ntool.lib.numeric import quantize as module
from ntool.lib.numeric.blocks import Blocks, blocks_of, grid_shape
from ntool.lib.numeric.convert import bf16_to_f32
from ntool.lib.numeric.dequantize import dequantize_rows
from ntool.lib.numeric.float8 import E4M3, E5M2, Format
from ntool.lib.numeric.quantize import Quantized, Quantizer, quantize_rows, stored_scales

PEERS = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
TYPES = {"F32": np.dtype("<f4"), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype("<f2")}
DTYPE = pytest.mark.parametrize("dtype", list(TYPES))


def stored(values: np.ndarray) -> np.ndarray:
    """BF16 values as the codes that this project holds them as."""
    return values.view("<u2") if values.dtype == TYPES["BF16"] else values


def loop(values: np.ndarray, block: tuple[int, int], fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """The definition for [E, R, C]: codes, and scales as BF16 values [E, ., .]."""
    values, peer = values.astype(np.float32), PEERS[fmt.name]
    largest = np.float32(ml_dtypes.finfo(peer).max)
    (e, r, c), (h, w) = values.shape, block
    scales = np.ones((e, -(-r // h), -(-c // w)), TYPES["BF16"])
    codes = np.empty(values.shape, np.uint8)
    for i, j, k in np.ndindex(scales.shape):
        part = np.s_[i, j * h : (j + 1) * h, k * w : (k + 1) * w]
        greatest = np.abs(values[part]).max()
        if greatest:
            scales[i, j, k] = greatest / largest
        quotients = values[part] / np.float32(scales[i, j, k])
        codes[part] = np.clip(quotients, -largest, largest).astype(peer).view(np.uint8)
    return codes, scales


def some(size: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Values over a wide range, some zero, of both signs."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size) * 2.0 ** rng.integers(-12, 6, size)
    values[rng.random(size) < 0.1] = 0
    values[rng.random(size) < 0.05] = -0.0
    return values.astype(TYPES[dtype])


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 19)),
    st.tuples(st.integers(1, 12), st.integers(1, 22)),
    st.sampled_from(list(TYPES)),
    st.sampled_from([E4M3, E5M2]),
    st.sampled_from([1, 20, 1 << 16]),
    st.sampled_from([1, 16]),
    st.data(),
)
def test_odd_shapes_equal_the_loop_in_any_bands(size, block, dtype, fmt, tile, low, data) -> None:
    e, r, c = size
    values = some(size, dtype, data.draw(st.integers(0, 1 << 32), label="seed"))
    codes, scales = loop(values, block, fmt)
    blocks = Blocks(e, r, c, block)
    starts = [i for i in range(e * r) if blocks.starts_block(i)]
    cuts = [i for i in starts[1:] if data.draw(st.booleans(), label="cut")]
    with mock.patch.multiple(module, TILE=tile, LOW=low):
        quantizer = Quantizer(blocks, dtype, fmt, met=Quantized())
        rows = stored(values).reshape(-1, c)
        parts = [
            quantizer.rows(rows[a:b].tobytes(), a)
            for a, b in zip([0, *cuts], [*cuts, e * r], strict=True)
        ]
    np.testing.assert_array_equal(np.concatenate([p[0] for p in parts]), codes.reshape(-1, c))
    ours = np.concatenate([p[1] for p in parts])
    np.testing.assert_array_equal(ours, scales.view("<u2").reshape(ours.shape))


@DTYPE
@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda f: f.name)
def test_real_block_size_and_what_is_said_of_the_errors(dtype: str, fmt: Format) -> None:
    values = some((1, 300, 400), dtype, 4)
    values[0, :128, 128:256] = 0
    codes, scales = loop(values, (128, 128), fmt)
    met = Quantized()
    blocks = blocks_of((300, 400), grid_shape((300, 400), (128, 128)), (128, 128), "w")
    ours, ours_scales = Quantizer(blocks, dtype, fmt, met=met).rows(stored(values)[0])
    np.testing.assert_array_equal(ours, codes[0])
    np.testing.assert_array_equal(ours_scales, scales.view("<u2")[0])
    again = dequantize_rows(ours, bf16_to_f32(ours_scales), blocks, "F32", fmt=fmt)
    x = values[0].astype(np.float64)
    error = again.astype(np.float64) - x
    assert (met.elements, met.saturated, met.zero_blocks) == (120_000, 0, 1)
    assert met.flushed == np.count_nonzero((again == 0) & (x != 0))
    assert met.flushed or fmt is E5M2
    # the difference is rounded to float32 once, and sums of float32 squares to about 1e-5
    assert met.largest_error == pytest.approx(np.abs(error).max(), rel=1e-6)
    assert met.error_squares == pytest.approx((error**2).sum(), rel=1e-4)
    assert met.value_squares == pytest.approx((x**2).sum(), rel=1e-4)
    assert met.fields()["relative_error"] == pytest.approx(
        np.linalg.norm(error) / np.linalg.norm(x), rel=1e-4
    )


@pytest.mark.parametrize("size", [1e-30, 1e30, 1e-42])
def test_errors_of_numbers_whose_squares_float32_cannot_hold(size: float) -> None:
    values = (np.random.default_rng(0).normal(size=(8, 8)) * size).astype(np.float32)
    met = Quantized()
    codes, scales = Quantizer(Blocks(1, 8, 8, (8, 8)), "F32", met=met).rows(values)
    again = dequantize_rows(codes, bf16_to_f32(scales), Blocks(1, 8, 8, (8, 8)), "F32")
    error = again.astype(np.float64) - values
    assert met.relative_error == pytest.approx(
        np.linalg.norm(error) / np.linalg.norm(values.astype(np.float64)), rel=1e-6
    )
    assert 0 < met.relative_error < 0.06 if size > 1e-40 else met.relative_error < 1


def test_a_block_of_zeros_has_scale_one_and_stays_zeros() -> None:
    values = np.array([[0, -0.0, 1, 2], [0, 0, 3, 4]], np.float32)
    codes, scales = quantize_rows(values, Blocks(1, 2, 4, (2, 2)), "F32")
    assert scales.tolist()[0][0] == 0x3F80
    assert codes[:, :2].tolist() == [[0, 0x80], [0, 0]]
    again = dequantize_rows(codes, bf16_to_f32(scales), Blocks(1, 2, 4, (2, 2)), "F32")
    assert again[:, :2].tobytes() == values[:, :2].tobytes()


def test_the_stored_scale_never_makes_a_quotient_overflow() -> None:
    rng = np.random.default_rng(7)
    bits = np.concatenate([np.arange(1, 4000), rng.integers(1, 0x7F800000, 200_000)])
    largest = bits.astype("<u4").view("<f4")
    for fmt in (E4M3, E5M2):
        scales = bf16_to_f32(stored_scales(largest, fmt))
        assert np.isfinite(scales).all() and (scales > 0).all()
        with np.errstate(over="ignore"):
            codes = (largest / scales).astype(PEERS[fmt.name]).view(np.uint8)
        assert codes.max() == fmt.largest_code
        normal = scales >= 2.0**-126
        assert codes[normal].min() >= fmt.largest_code - 1
        exact = (largest / np.float32(fmt.largest)).astype(TYPES["BF16"]).view("<u2")
        np.testing.assert_array_equal(stored_scales(largest, fmt)[normal], exact[normal])


@DTYPE
def test_the_greatest_value_of_a_block_takes_the_largest_code(dtype: str) -> None:
    values = some((1, 64, 64), dtype, 9)[0]
    codes, scales = quantize_rows(stored(values), Blocks(1, 64, 64, (64, 64)), dtype)
    greatest = np.unravel_index(np.abs(values.astype(np.float32)).argmax(), values.shape)
    assert codes[greatest] & 0x7F == 0x7E and scales.shape == (1, 1)


@DTYPE
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(dtype: str, bad: float) -> None:
    values = some((1, 8, 6), dtype, 1)[0]
    values[5, 2] = values[6, 3] = bad
    quantizer = Quantizer(Blocks(1, 8, 6, (4, 4)), dtype, name="w")
    quantizer.rows(stored(values)[:4])
    words = "tensor 'w': rows 4 to 7: values that are not finite: found 2, expected none"
    with pytest.raises(InputError, match=words):
        quantizer.rows(stored(values)[4:], 4)
    with pytest.raises(InputError, match="tensor 'w': values that are not finite: found 2"):
        quantizer.rows(stored(values)[4:], 4, np.full((1, 2), 0x3F80, np.uint16))


@DTYPE
@pytest.mark.parametrize("step", [1, 3, 50])
def test_one_scale_for_a_tensor_takes_two_passes(dtype: str, step: int) -> None:
    values = some((1, 50, 7), dtype, 2)[0]
    blocks = blocks_of(values.shape, (), None, "w")
    quantizer = Quantizer(blocks, dtype, met=Quantized())
    bands = [(i, stored(values)[i : i + step]) for i in range(0, 50, step)]
    largest = np.maximum.reduce([quantizer.largest(band, i) for i, band in bands])
    scale = stored_scales(largest)
    codes = np.concatenate([quantizer.rows(band, i, scale)[0] for i, band in bands])
    wanted, wanted_scale = loop(values[None], (50, 7), E4M3)
    assert scale.tolist() == wanted_scale.view("<u2").reshape(1, 1).tolist()
    np.testing.assert_array_equal(codes, wanted[0])
    assert quantizer.met is not None and quantizer.met.saturated == 0


def test_a_given_scale_that_is_too_small_saturates_and_says_so() -> None:
    values = np.array([[448, 464, 465, -1e30, 3e38, 0.001, 0]], np.float32)
    met = Quantized()
    quantizer = Quantizer(Blocks(1, 1, 7, (1, 7)), "F32", met=met)
    codes, _ = quantizer.rows(values, 0, np.array([[0x3F80]], np.uint16))
    assert codes.tolist() == [[0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0x01, 0]]
    assert (met.saturated, met.flushed) == (3, 0)
    tiny = np.array([[0x0080]], np.uint16)  # 2^-126: quotients beyond float32 too
    assert quantizer.rows(values, 0, tiny)[0].tolist() == [[0x7E] * 3 + [0xFE] + [0x7E] * 2 + [0]]


def test_parts_of_a_tensor_add_up() -> None:
    values = some((1, 40, 8), "F32", 3)[0]
    blocks = Blocks(1, 40, 8, (4, 4))
    whole, first, second = Quantized(), Quantized(), Quantized()
    Quantizer(blocks, "F32", met=whole).rows(values)
    Quantizer(blocks, "F32", met=first).rows(values[:16])
    Quantizer(blocks, "F32", met=second).rows(values[16:], 16)
    first.add(second)
    assert (first.elements, first.flushed) == (whole.elements, whole.flushed)
    assert (first.zero_blocks, first.largest_error) == (whole.zero_blocks, whole.largest_error)
    assert first.relative_error == pytest.approx(whole.relative_error, rel=1e-6)
    assert Quantized().relative_error == 0


def test_codes_can_be_written_into_an_array_that_is_there() -> None:
    values = some((1, 8, 6), "F32", 8)[0]
    out = np.zeros((8, 6), np.uint8)
    blocks = Blocks(1, 8, 6, (4, 4))
    codes, _ = Quantizer(blocks, "F32").rows(values, out=out)
    assert codes is out
    np.testing.assert_array_equal(out, quantize_rows(values, blocks, "F32")[0])


@pytest.mark.parametrize("size", [(0, 4), (4, 0)])
def test_empty_tensors(size: tuple[int, int]) -> None:
    blocks = blocks_of(size, grid_shape(size, (3, 3)), (3, 3), "w")
    codes, scales = quantize_rows(b"", blocks, "BF16")
    assert codes.shape[1] == size[1] and scales.size == 0
