"""Noise of PyTorch's CPU generator against recorded values."""

from __future__ import annotations

import hashlib
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ntool.lib.errors import UsageProblem
from ntool.lib.sampling import torch_noise

DATA = Path(__file__).parents[1] / "data/noise"
VECTORS = [
    v
    for v in json.loads((DATA / "torch_cpu_randn.json").read_text("utf-8"))["vectors"]
    if v["dtype"] == "float32"
]


@pytest.mark.parametrize("v", VECTORS, ids=lambda v: v["key"])
def test_recorded_draws_bit_for_bit(v):
    z = torch_noise.torch_cpu(v["seed"], v["shape"], draw=v["call"] - 1)
    assert z.dtype == np.float32 and list(z.shape) == v["shape"]
    assert hashlib.sha256(z.astype("<f4").tobytes()).hexdigest() == v["sha256_of_float32_bytes"]


def test_vectors_cover_both_routes_and_later_draws():
    sizes = {math.prod(v["shape"]) for v in VECTORS}
    assert min(sizes) < 16 <= max(sizes) and any(n % 16 and n > 16 for n in sizes)
    assert {v["call"] for v in VECTORS} >= {1, 2, 3}
    assert len(VECTORS) == 18


def test_mersenne_twister_of_its_authors():
    words = torch_noise.mersenne_twister(5489)  # the default seed: its 10,000th output is published
    assert int(words.random_raw(10_000)[-1]) == 4123659995


def test_chunks_do_not_show(monkeypatch):
    whole = torch_noise.torch_cpu(3, (1000,))
    monkeypatch.setattr(torch_noise, "CHUNK", 48)
    np.testing.assert_array_equal(torch_noise.torch_cpu(3, (1000,)), whole)


def test_odd_small_draws_continue_the_pair():
    run = torch_noise.torch_cpu(9, (14,))
    np.testing.assert_array_equal(torch_noise.torch_cpu(9, (7,), draw=1), run[7:])


def test_fused_multiply_add_rounds_once():
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 is a tie of float32. float64 cannot hold 2^-60 next to it,
    # so rounding twice goes to the even neighbour, 1 + 2^-11, on both sides.
    a = np.full(2, 1 + 2.0**-12, np.float32)
    c = np.array([2.0**-60, -(2.0**-60)], np.float32)
    assert torch_noise._fma(a, a, c).tolist() == [1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-11]
    b = np.full(2, -(1 + 2.0**-12), np.float32)
    assert torch_noise._fma(a, b, c).tolist() == [-(1 + 2.0**-11), -(1 + 2.0**-11 + 2.0**-23)]


def test_fused_multiply_add_against_exact_fractions():
    a, b = np.random.default_rng(0).standard_normal((2, 3000)).astype(np.float32)
    c = (-(a.astype(np.float64) * b)).astype(np.float32)  # cancels: what is left is the rounding
    c[::2] *= np.float32(1.5)
    got = torch_noise._fma(a, b, c)
    for x, y, w, g in zip(*(v.tolist() for v in (a, b, c, got)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(w)
        off = abs(Fraction(g) - exact)
        for side in (-np.inf, np.inf):
            other = float(np.nextafter(np.float32(g), np.float32(side)))
            assert off <= abs(Fraction(other) - exact)


def test_refused():
    assert torch_noise.torch_cpu(0, (0, 3)).shape == (0, 3)
    for args in ((-1, (1,)), (1 << 64, (1,)), (0, (1,), -1), (0, (-1,))):
        with pytest.raises(UsageProblem):
            torch_noise.torch_cpu(*args)
