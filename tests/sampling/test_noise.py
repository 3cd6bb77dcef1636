"""Portable noise: the published definition, golden bytes, and its distribution."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ntool.lib.errors import UsageProblem
from ntool.lib.sampling import noise

SHA_42 = "cd15002064bb3b75295b5fdd58d7ee9167676f4347c08ea5b322c1400d9c3d27"
FIRST_42 = (0.91612047, -0.8806796, 1.1154016, -0.26739773)
MASK = (1 << 64) - 1


def philox4x64(counter, key):
    """Philox4x64-10 from its paper, on Python integers."""
    x, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [(b >> 64) ^ x[1] ^ k[0], b & MASK, (a >> 64) ^ x[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return x


def test_definition_with_an_independent_philox():
    for seed in (0, 42, (1 << 64) - 1):
        words = [w for b in range(3) for w in philox4x64((1 + b, 0, 0, 0), (seed, 0))]
        u = np.array([(2 * (w >> 12) + 1) * 2.0**-53 for w in words])
        expected = noise.normal_quantile(u).astype(np.float32)
        np.testing.assert_array_equal(noise.portable(seed, (12,)), expected)


def digest(z):
    return hashlib.sha256(z.astype("<f4").tobytes()).hexdigest()


def test_golden_bytes():
    z = noise.portable(42, (1, 3, 128, 128))
    assert z.dtype == np.float32 and z.shape == (1, 3, 128, 128)
    assert digest(z) == SHA_42
    assert z.reshape(-1)[:4].tolist() == [float(np.float32(x)) for x in FIRST_42]


def test_the_published_page_has_these_vectors():
    page = (Path(__file__).parents[2] / "docs/noise.md").read_text("utf-8")
    assert SHA_42 in page and ", ".join(map(str, FIRST_42)) in page


def test_same_bytes_without_vector_instructions():
    """What an older CPU would compute: NumPy falls back to its baseline code."""
    cpu = np._core._multiarray_umath
    used = [f for f in cpu.__cpu_dispatch__ if cpu.__cpu_features__[f]]
    if not used:
        pytest.skip("this CPU or this NumPy has no code path beyond the baseline")
    program = (
        "import hashlib, sys; from ntool.lib.sampling import noise;"
        "z = noise.portable(42, (1, 3, 128, 128));"
        "sys.stdout.write(hashlib.sha256(z.astype('<f4').tobytes()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(used)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == SHA_42


def test_element_depends_on_seed_and_index_alone(monkeypatch):
    whole = noise.portable(7, (1000,))
    for start in (0, 1, 2, 3, 4, 5, 250, 999):
        np.testing.assert_array_equal(noise.portable(7, (1000 - start,), start), whole[start:])
    np.testing.assert_array_equal(noise.portable(7, (10, 100)).reshape(-1), whole)
    monkeypatch.setattr(noise, "CHUNK", 7)
    np.testing.assert_array_equal(noise.portable(7, (1000,)), whole)
    assert not np.array_equal(noise.portable(8, (1000,)), whole)


def test_moments_and_tails():
    n = 1_000_000
    z = noise.portable(1, (n,)).astype(np.float64)
    # five standard errors of each estimate: sqrt(1, 2, 6, 24 -> 96 for the raw fourth moment) / n
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs((z**2).mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / n)
    normal = statistics.NormalDist()
    for x in (-4.0, -3.0, -1.0, 0.5, 2.0, 3.5):
        p = normal.cdf(x)
        assert abs((z < x).mean() - p) < 5 * math.sqrt(p * (1 - p) / n), x
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / math.sqrt(n)


def test_quantile_against_the_standard_library():
    normal = statistics.NormalDist()
    p = np.concatenate(
        [
            np.random.default_rng(0).random(20_000),
            10.0 ** -np.linspace(0.31, 15.9, 4000),
            [2.0**-53, 0.075, 0.925, 0.5 - 2**-40, 0.5 + 2**-40, 1 - 2.0**-53],
        ]
    )
    expected = np.array([normal.inv_cdf(x) for x in p])
    # the same approximation with another logarithm: both within some ulp of each other
    np.testing.assert_allclose(noise.normal_quantile(p), expected, rtol=2e-15, atol=0)


def test_quantile_inverts_the_distribution_function():
    p = np.concatenate([np.linspace(0.001, 0.5, 500), 10.0 ** -np.linspace(3, 15, 100)])
    z = noise.normal_quantile(p)
    back = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    # an ulp of z is magnified by z^2 (64 at most) in the tail
    np.testing.assert_allclose(back, p, rtol=1e-13)


def test_quantile_is_odd_and_rises_across_its_branches():
    u = (2 * np.arange(1 << 12) + 1) * 2.0**-13
    z = noise.normal_quantile(u)
    np.testing.assert_array_equal(z, -z[::-1])
    assert (np.diff(z) > 0).all()
    for edge in (0.075, 0.925, math.exp(-25.0)):
        near = edge * (1 + np.arange(-50, 51) * 2e-9)
        assert (np.diff(noise.normal_quantile(near)) > 0).all()


def test_logarithm():
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [rng.random(50_000), 2.0 ** rng.uniform(-1000, 1000, 5000), 2.0 ** np.arange(-60, 60)]
    )
    # 4e-16 is about two ulp: one of ours, one of the library compared with
    np.testing.assert_allclose(noise.log(x), np.log(x), rtol=4.5e-16, atol=1e-17)
    assert noise.log(np.array([1.0]))[0] == 0.0


def test_extreme_words_stay_finite():
    for k in (0, (1 << 52) - 1):
        u = np.array([(2.0 * k + 1.0) * 2.0**-53])
        assert 0 < u[0] < 1
        assert 8.2 < abs(noise.normal_quantile(u)[0]) < 8.3


def test_empty_and_refused():
    assert noise.portable(0, (0, 3)).shape == (0, 3)
    for args in ((-1, (1,)), (1 << 64, (1,)), (0, (1,), -1), (0, (-1,))):
        with pytest.raises(UsageProblem):
            noise.portable(*args)
