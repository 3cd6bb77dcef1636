"""Dequantising against a plain loop, the digests of the reference sets, and itself in bands."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import tracemalloc
from pathlib import Path
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from ntool.lib.errors import InputError
from ntool.lib.numeric import dequantize as module
from ntool.lib.numeric.blocks import Blocks, blocks_of
from ntool.lib.numeric.dequantize import Dequantized, Dequantizer, dequantize, dequantize_rows
from ntool.lib.numeric.float8 import E4M3, E5M2, FORMATS, Format, scales_to_f32

DATA = Path(__file__).parents[1] / "data"
PEERS = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
TYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
UNSIGNED = {2: "<u2", 4: "<u4"}
TO = pytest.mark.parametrize("to", list(TYPES))

ROUTES = {
    "as it is": {},
    "tables": {"LEAST_AREA": 1, "LEAST_PAIRS": 1 << 60},
    "small tiles": {"LEAST_AREA": 1, "LEAST_PAIRS": 1 << 60, "TILE": 7, "TABLES": 5},
    "few tables": {"LEAST_AREA": 1, "LEAST_PAIRS": 1 << 60, "TABLES": 3},
    "pairs": {"LEAST_AREA": 1, "LEAST_PAIRS": 1, "TILE": 3},
    "each": {"LEAST_AREA": 1 << 60, "LEAST_PAIRS": 1 << 60},
    "each in tiles": {"LEAST_AREA": 1 << 60, "LEAST_PAIRS": 1 << 60, "EACH_TILE": 11},
}
"""Limits that send small tensors through every way there is."""


def loop(codes: np.ndarray, scales: np.ndarray, block: tuple[int, int], fmt: Format) -> np.ndarray:
    """The definition, for codes [E, R, C] and scales [E, ., .]; values by the peer."""
    values, out = codes.view(PEERS[fmt.name]).astype(np.float32), np.empty(codes.shape, np.float32)
    with np.errstate(all="ignore"):
        for e, r, c in np.ndindex(codes.shape):
            out[e, r, c] = values[e, r, c] * scales[e, r // block[0], c // block[1]]
    return out


def narrowed(products: np.ndarray, to: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return products.astype(TYPES[to])


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal bits; where the peer has a NaN, ours is one."""
    unsigned = UNSIGNED[theirs.dtype.itemsize]
    with np.errstate(invalid="ignore"):
        nan = np.isnan(theirs.astype(np.float32))
        ours_nan = np.isnan(ours.view(theirs.dtype).astype(np.float32))
    np.testing.assert_array_equal(ours_nan, nan)
    np.testing.assert_array_equal(ours.view(unsigned)[~nan], theirs.view(unsigned)[~nan])


@contextlib.contextmanager
def route(name: str):
    with mock.patch.multiple(module, **ROUTES[name]) if ROUTES[name] else contextlib.nullcontext():
        yield


def odd_scales() -> np.ndarray:
    """Extremes of float32 and of BF16, both signs, subnormal, zero, infinite, NaN, and any bits."""
    rng = np.random.default_rng(1)
    ends = [0, 1, 2, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x437FFFFF, 0x43800000, 0x7F7FFFFF]
    ends += [0x00010000, 0x00400000, 0x00410000, 0x39510000, 0x7F7F0000, 0x7F800000, 0x7FC00000]
    ends += [(127 + k) << 23 for k in range(-126, 128, 9)]
    bits = np.concatenate(
        [ends, rng.integers(0, 1 << 31, 400), rng.integers(0, 1 << 15, 800) << 16]
    )
    bits = np.concatenate([bits, bits | 1 << 31]).astype(np.uint32)
    return bits.view(np.float32)


@TO
@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda f: f.name)
@pytest.mark.parametrize("way", ["tables", "each"])
def test_every_code_with_scales_of_every_kind(way: str, fmt: Format, to: str) -> None:
    scales = odd_scales()
    codes = np.tile(np.arange(256, dtype=np.uint8), (scales.size, 1))
    with np.errstate(all="ignore"):
        products = codes.view(PEERS[fmt.name]).astype(np.float32) * scales[:, None]
    with route(way):
        ours = dequantize_rows(codes, scales, Blocks(1, *codes.shape, (1, 256)), to, fmt=fmt)
    same(ours, narrowed(products, to))


@TO
def test_every_code_with_every_bf16_scale_of_one_sign(to: str) -> None:
    scales = (np.arange(1 << 15, dtype=np.uint32) << 16).view(np.float32)[::3]
    codes = np.tile(np.arange(256, dtype=np.uint8), (scales.size, 1))
    with np.errstate(all="ignore"):
        products = codes.view(PEERS["F8_E4M3"]).astype(np.float32) * scales[:, None]
    with route("tables"):
        ours = dequantize_rows(codes, scales, Blocks(1, *codes.shape, (1, 256)), to)
    same(ours, narrowed(products, to))


@TO
def test_every_pair_of_codes_with_one_scale(to: str) -> None:
    codes = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 256)
    for scale in (0.00019931793212890625, 3e38, 1e-45, -0.3, np.inf):
        with np.errstate(all="ignore"):
            products = codes.view(PEERS["F8_E4M3"]).astype(np.float32) * np.float32(scale)
        with route("pairs"):
            blocks = Blocks(1, *codes.shape, codes.shape, scalar=True)
            same(dequantize_rows(codes, np.float32([scale]), blocks, to), narrowed(products, to))


@pytest.mark.parametrize("way", ["tables", "pairs", "each"])
def test_nan_keeps_the_sign_of_its_code_and_zero_its_own(way: str) -> None:
    codes = np.array([[0x7F, 0xFF, 0x80, 0x00, 0x7F]], np.uint8)
    blocks = Blocks(1, 1, 5, (1, 5), scalar=True)
    wanted = {"BF16": "c07fc0ff00800000c07f", "F16": "007e00fe00800000007e"}
    for to, text in wanted.items():
        with route(way):
            assert dequantize_rows(codes, np.float32([0.5]), blocks, to).tobytes().hex() == text
    with route(way):
        out = dequantize_rows(codes, np.float32([0.5]), blocks, "F32")
    assert out.view("<u4")[0].tolist() == [0x7FC00000, 0xFFC00000, 0x80000000, 0, 0x7FC00000]


sizes = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 19))
sides = st.tuples(st.integers(1, 12), st.integers(1, 22))


@settings(max_examples=60)
@given(sizes, sides, st.sampled_from(list(ROUTES)), st.sampled_from([E4M3, E5M2]), st.data())
def test_odd_shapes_equal_the_loop_whatever_the_route_and_the_bands(
    size, block, way, fmt, data
) -> None:
    e, r, c = size
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32), label="seed"))
    codes = rng.integers(0, 256, size, dtype=np.uint8)
    grid = (e, -(-r // block[0]), -(-c // block[1]))
    scales = rng.choice(odd_scales(), grid)
    to = data.draw(st.sampled_from(list(TYPES)))
    wanted = narrowed(loop(codes, scales, block, fmt), to)
    shape, of = (size, grid) if e > 1 else (size[1:], grid[1:])
    with route(way):
        dequantizer = Dequantizer(scales, blocks_of(shape, of, block, "w"), to, fmt)
        row, pieces = 0, []
        while row < e * r:
            rows = data.draw(st.integers(1, e * r - row), label="rows")
            pieces.append(dequantizer.rows(codes.reshape(-1, c)[row : row + rows], row))
            row += rows
    same(np.concatenate(pieces), wanted.reshape(-1, c))


@pytest.mark.parametrize("scale_shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("shape", [(), (7,), (5, 7), (2, 5, 7)])
def test_a_scale_of_one_element_holds_for_any_shape(shape, scale_shape) -> None:
    codes = np.random.default_rng(0).integers(0, 127, shape, dtype=np.uint8)
    blocks = blocks_of(shape, scale_shape, (2, 2), "w")
    ours = dequantize_rows(codes.tobytes(), np.full(scale_shape, 0.3, "<f4"), blocks, "F32")
    np.testing.assert_array_equal(ours.reshape(shape), E4M3.values[codes] * np.float32(0.3))


@TO
def test_a_large_matrix_in_its_real_block_size(to: str) -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 256, (1000, 900), dtype=np.uint8)
    scales = rng.random((8, 8), np.float32)
    spread = np.repeat(np.repeat(scales, 128, 0)[:1000], 128, 1)[:, :900]
    products = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * spread
    blocks = blocks_of(codes.shape, scales.shape, (128, 128), "w")
    with mock.patch.object(module, "TILE", 1 << 15):
        same(dequantize_rows(codes, scales, blocks, to), narrowed(products, to))


@TO
def test_one_scale_for_millions(to: str) -> None:
    codes = np.random.default_rng(6).integers(0, 256, (1100, 1001), dtype=np.uint8)
    blocks = blocks_of(codes.shape, (), None, "w")
    assert blocks.area >= module.LEAST_PAIRS
    products = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(0.01)
    same(dequantize_rows(codes, np.float32([0.01]), blocks, to), narrowed(products, to))


@TO
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E8M0"])
def test_the_result_does_not_depend_on_the_type_of_the_scales(dtype: str, to: str) -> None:
    stored = {"BF16": "803e8041", "F16": "0034004c", "F32": "0000803e00008041", "F8_E8M0": "7d83"}
    scales = scales_to_f32(bytes.fromhex(stored[dtype]), dtype, "s")
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    products = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32([[0.25], [16]])
    blocks = blocks_of((2, 128), (2, 1), (1, 128), "w")
    same(dequantize_rows(codes, scales, blocks, to), narrowed(products, to))


@pytest.mark.parametrize("way", ["tables", "pairs", "each"])
@pytest.mark.parametrize("to", ["BF16", "F16", "F32"])
def test_what_is_met_is_counted(way: str, to: str) -> None:
    codes = np.array([[0x7F, 0xFF, 0x7E, 0xFE, 0x01, 0x81, 0x00, 0x38]], np.uint8)
    blocks = Blocks(1, 1, 8, (1, 8), scalar=True)
    big = {"BF16": 3.3e38, "F16": 1e5, "F32": 3.3e38}[to]
    small = {"BF16": 1e-40, "F16": 2.0**-20, "F32": 1e-44}[to]
    for scale, wanted in [
        (1.0, Dequantized(nan=2)),
        (big, Dequantized(nan=2, overflow=3 if to == "F16" else 2)),
        (small, Dequantized(nan=2, flushed=2)),
        (0.0, Dequantized(nan=2)),
        (np.nan, Dequantized(nan=2)),
    ]:
        met = Dequantized()
        with route(way):
            Dequantizer(np.float32([scale]), blocks, to, met=met).rows(codes)
        assert met == wanted, scale
    for code in (0x7F, 0xFF):
        met = Dequantized()
        with route(way):
            Dequantizer(np.float32([1]), blocks, to, met=met).rows(np.full((1, 8), code, np.uint8))
        assert met == Dequantized(nan=8)
    met = Dequantized()
    codes = np.array([[0x7C, 0xFC, 0x7D, 0xFF, 0x7B, 0x01, 0x80, 0x40]], np.uint8)
    with route(way):
        Dequantizer(np.float32([1]), blocks, to, E5M2, met).rows(codes)
    assert met == Dequantized(nan=2, infinite=2)


@settings(max_examples=30)
@given(st.integers(1, 97), st.sampled_from(list(ROUTES)))
def test_pieces_of_any_size_give_the_same_bytes(piece: int, way: str) -> None:
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, (2, 7, 9), dtype=np.uint8).tobytes()
    scales = rng.random((2, 2, 3), np.float32)
    blocks = blocks_of((2, 7, 9), (2, 2, 3), (4, 4), "w")
    whole = dequantize_rows(raw, scales, blocks, "BF16").tobytes()
    bands = [raw[i : i + piece] for i in range(0, len(raw), piece)]
    with route(way):
        parts = list(dequantize(bands, Dequantizer(scales, blocks, "BF16")))
    assert b"".join(bytes(p) for p in parts) == whole


def test_codes_that_end_early_are_refused() -> None:
    dequantizer = Dequantizer(np.float32([1]), blocks_of((3, 4), (), None, "w"), "BF16")
    for size in (11, 8, 0):
        with pytest.raises(InputError, match=r"tensor 'w': codes: found .* expected 3 rows of 4"):
            list(dequantize([bytes(size)], dequantizer, "w"))


def test_overflow_is_refused_after_the_last_piece() -> None:
    dequantizer = Dequantizer(
        np.float32([300]), blocks_of((1, 2), (), None, "w"), "F16", met=Dequantized()
    )
    stream = dequantize([b"\x7e\x38"], dequantizer, "w")
    assert np.frombuffer(next(stream), "<f2").tolist() == [np.inf, 300]
    with pytest.raises(InputError, match="tensor 'w': values beyond the range of F16: found 1"):
        next(stream)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 4)])
@pytest.mark.parametrize("scalar", [True, False])
def test_empty_tensors(shape: tuple[int, ...], scalar: bool) -> None:
    grid = () if scalar else (*shape[:-2], -(-shape[-2] // 3), -(-shape[-1] // 3))
    blocks = blocks_of(shape, grid, (3, 3), "w")
    dequantizer = Dequantizer(np.zeros(grid, np.float32), blocks, "BF16")
    assert dequantizer.rows(b"").size == 0
    assert list(dequantize([b""], dequantizer)) == []


def test_memory_is_that_of_a_band_whatever_the_size() -> None:
    band = bytes(1 << 18)
    blocks = blocks_of((1 << 15, 1 << 10), (256, 8), (128, 128), "w")
    dequantizer = Dequantizer(np.ones((256, 8), np.float32), blocks, "BF16", met=Dequantized())
    tracemalloc.start()
    try:
        total = sum(len(p) for p in dequantize((band for _ in range(128)), dequantizer))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 2 << 25  # 64 MiB came out
    assert peak < 5 << 20


def tensors(files) -> dict[str, dict]:
    found = {}
    for raw in files:
        found.update(deserialize(raw))
    return found


def result(found: dict[str, dict], name: str, scale: str, block, to: str) -> np.ndarray:
    codes, scales = found[name], found[scale or f"{name}_scale_inv"]
    shape = tuple(codes["shape"])
    blocks = blocks_of(shape, tuple(scales["shape"]), block, name)
    values = scales_to_f32(bytes(scales["data"]), scales["dtype"], scale)
    fmt = FORMATS[codes["dtype"]]
    return dequantize_rows(bytes(codes["data"]), values, blocks, to, fmt=fmt).reshape(shape)


def digest(elements: np.ndarray) -> str:
    return hashlib.sha256(elements.tobytes()).hexdigest()


@pytest.mark.parametrize("way", ["as it is", "tables", "each", "small tiles"])
def test_digests_of_the_fp8_reference_checkpoint(way: str) -> None:
    folder = DATA / "qwen4-exp" / "text-fp8"
    golden = json.loads((folder / "golden" / "meta.json").read_text())
    found = tensors(f.read_bytes() for f in sorted(folder.glob("*.safetensors")))
    names = golden["sha256_codes"]
    assert len(names) == 64
    for name in names:
        assert hashlib.sha256(found[name]["data"]).hexdigest() == names[name]
        stem, shard, _ = name.partition("ngram_embedding.")
        scale = f"{stem}{shard}weight_scale" if shard else ""
        with route(way):
            exact = result(found, name, scale, (128, 128), "F32")
            rounded = result(found, name, scale, (128, 128), "BF16")
        assert digest(exact) == golden["sha256_exact_f32"][name], name
        assert digest(rounded) == golden["sha256_product_rounded_bf16"][name], name


@pytest.mark.parametrize("case", ["fp8-split-aligned", "fp8-scale-unaligned"])
def test_digests_of_experts_dequantised_then_fused(case: str) -> None:
    folder = DATA / "expert-layouts" / case
    found = tensors(f.read_bytes() for f in sorted(folder.glob("*.safetensors")))
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    block = tuple(block["weight_block_size"])
    wanted = json.loads((folder / "expected.json").read_text())["dequantize_then_fuse"]
    for to, fused in wanted.items():
        for name, facts in fused.items():
            stem, _, role = name.rpartition(".")
            parts = ["gate_proj", "up_proj"] if role == "gate_up_proj" else [role]
            experts = [
                [result(found, f"{stem}.{e}.{part}.weight", "", block, to) for part in parts]
                for e in range(facts["shape"][0])
            ]
            bank = np.stack([np.concatenate(matrices) for matrices in experts])
            assert list(bank.shape) == facts["shape"]
            assert digest(bank) == facts["sha256"], name


@pytest.mark.parametrize("case", ["fp-ok-even", "fp-ok-scalar-0d", "fp-ok-ple-shared-scalar"])
def test_digests_of_the_odd_cases(case: str) -> None:
    manifest = json.loads((DATA / "hostile" / "manifest.json").read_text())
    expect = next(c for c in manifest["cases"] if c["id"] == case)["expect"]
    with tarfile.open(DATA / "hostile" / "cases.tar.gz") as archive:
        member = archive.extractfile(f"cases/{case}/model.safetensors")
        assert member is not None
        found = tensors([io.BytesIO(member.read()).getvalue()])
    name = expect["tensor"]
    stem = name.partition("ngram_embedding.")[0]
    scale = next(s for s in found if "scale" in s and s.startswith(stem.removesuffix("weight")))
    assert digest(result(found, name, scale, (128, 128), "BF16")) == expect["dense_bf16_sha256"]
