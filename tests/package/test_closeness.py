"""Numbers that say how close two arrays are, against their textbook formulas."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ntool.lib.package import closeness
from ntool.lib.package.closeness import compare, tolerance


@pytest.mark.parametrize("band", [7, 1 << 20])
def test_formulas(band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closeness, "BAND", band)
    rng = np.random.default_rng(1)
    want = rng.standard_normal((3, 5, 4)).astype(np.float32)
    got = want + rng.standard_normal(want.shape).astype(np.float32) * np.float32(1e-3)
    made = compare(got, want, 1e-3, peak=2.0)
    x, y = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    score = np.abs(x - y) / (1e-3 * (1 + np.abs(y)))
    n = made.numbers
    assert n["of"] == 60 and n["outside"] == int((score > 1).sum()) > 0 and not made.ok
    assert n["max_abs"] == pytest.approx(np.abs(x - y).max(), rel=1e-5)
    assert n["rel_l2"] == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y), rel=1e-5)
    assert n["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-8)
    assert n["worst"] == pytest.approx(score.max(), rel=1e-5)
    assert n["psnr"] == pytest.approx(10 * np.log10(4 / np.mean((x - y) ** 2)), rel=1e-5)
    assert made.place == list(np.unravel_index(score.argmax(), want.shape))


def test_the_edge_of_the_tolerance() -> None:
    want = np.array([0.0, 1.0, -3.0])
    assert compare(want + np.array([0.001, 0.002, -0.004]), want, 1.0000001e-3).ok
    assert not compare(want + np.array([0.0011, 0, 0]), want, 1e-3).ok


def test_equal() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = compare(a, a.copy(), 1e-3, peak=2.0)
    assert made.ok and made.place == []
    assert made.numbers == {
        "outside": 0, "of": 6, "max_abs": 0.0, "rel_l2": 0.0, "pearson": 1.0, "worst": 0.0,
        "psnr": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        ([np.nan, 1], [np.nan, 1], True),
        ([np.inf, 1], [np.inf, 1], True),
        ([np.inf, 1], [-np.inf, 1], False),
        ([np.nan, 1], [0, 1], False),
        ([0, 1], [np.nan, 1], False),
        ([np.inf, 1], [np.nan, 1], False),
        ([65504, 1], [np.inf, 1], False),
    ],
)
def test_not_finite(got: list[float], want: list[float], ok: bool) -> None:
    made = compare(np.array(got, np.float32), np.array(want, np.float32), 1e-2)
    assert made.ok is ok and made.numbers["outside"] == (0 if ok else 1)
    if not ok:
        assert made.place == [0] and made.numbers["max_abs"] is None


def test_integers_are_exact() -> None:
    big = 2**60
    made = compare(np.array([1, big + 1]), np.array([1, big]), 0)  # one number in float64
    assert not made.ok and made.numbers["outside"] == 1 and made.place == [1]
    assert compare(np.array([True, False]), np.array([True, False]), 0).ok
    made = compare(np.array([3, 5, 9]), np.array([3, 1, 7]), 0)
    assert made.place == [1] and made.numbers["max_abs"] == 4.0 and made.numbers["worst"] is None


def test_constants_have_no_correlation() -> None:
    a = np.full(100, 0.1, np.float32)
    assert compare(a, a, 1e-3).numbers["pearson"] is None
    assert compare(a * 0, a * 0, 1e-3).numbers["rel_l2"] == 0.0
    assert compare(a, a * 0, 1e-3).numbers["rel_l2"] is None
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)), 1e-3).ok


def test_what_does_not_count() -> None:
    a = np.zeros((2, 3, 4), np.float32)
    b = a.copy()
    b[0, 1] = 9
    real = np.array([[True, False, True], [True, True, True]])[:, :, None]
    made = compare(b, a, 1e-3, real=real)
    assert made.ok and made.numbers["of"] == 20 and made.numbers["max_abs"] == 0.0
    b[1, 1, 2] = 1
    made = compare(b, a, 1e-3, real=real)
    assert not made.ok and made.place == [1, 1, 2] and made.numbers["outside"] == 1


def test_narrow_types() -> None:
    a = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    made: Any = compare(a, a.astype(np.float32), 1e-2)
    assert made.ok and made.numbers["max_abs"] == 0.0


def test_tolerances() -> None:
    assert tolerance("float32", "int64") == 1e-3
    assert tolerance("float32", "bfloat16") == 1e-2
    assert tolerance("float16") == 1e-2 and tolerance("int64", "") == 0.0
