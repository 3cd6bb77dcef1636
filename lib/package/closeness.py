"""How close two arrays are: numbers that are told whatever the verdict, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCES = {"float64": 1e-3, "float32": 1e-3, "float16": 1e-2, "bfloat16": 1e-2}
"""rtol = atol of a floating type. float32: ten times what two correct implementations differ by
over the depth of a model; 16 bits: their results carry 8 to 11 bits (docs/verify-package.md)."""
BAND = 1 << 20
"""Elements that are compared at a time: float64 copies of a whole output would be too large."""


@dataclass(frozen=True)
class Closeness:
    """What comparing an output with its golden gave.

    Attributes:
        ok: every element lies within the tolerance.
        numbers: fields for the record: `outside` (elements), `of` (elements compared), `max_abs`,
            `rel_l2`, `pearson` (null where one side is constant), `worst` (the greatest difference
            in tolerances; None for exact types), `psnr` where asked for; null means infinite.
        tolerance: rtol and atol; 0 for exact types.
        place: index of the first of the worst elements, [] where all are equal.
    """

    ok: bool
    numbers: dict[str, Any]
    tolerance: float
    place: list[int]


def tolerance(*dtypes: str) -> float:
    """rtol = atol for types that take part in a number: of the coarsest floating one; 0 without."""
    return max((TOLERANCES.get(d, 0.0) for d in dtypes), default=0.0)


def compare(
    found: NDArray[Any],
    wanted: NDArray[Any],
    limit: float,
    *,
    real: NDArray[np.bool_] | None = None,
    peak: float | None = None,
) -> Closeness:
    """Compare an output with what is expected of it: |found - wanted| <= limit (1 + |wanted|).

    NaN and infinities agree only with their like, and then enter no number.

    Args:
        found, wanted: arrays of one shape, of any types.
        limit: rtol = atol; 0 asks for equal values.
        real: which elements count, broadcast to the shape; all without it.
        peak: span of the values of a picture; adds `psnr` in dB.
    """
    assert found.shape == wanted.shape
    chosen = None if real is None else np.broadcast_to(real, found.shape).reshape(-1)
    a, b = found.reshape(-1), wanted.reshape(-1)
    sums = _Sums(limit)
    for at in range(0, a.size, BAND):
        piece = slice(at, at + BAND)
        sums.add(a[piece], b[piece], at, None if chosen is None else chosen[piece])
    place = [] if sums.at is None else [int(i) for i in np.unravel_index(sums.at, found.shape)]
    return Closeness(sums.outside == 0, sums.numbers(peak), limit, place)


class _Sums:
    """Running sums over bands of two arrays, in float64."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.count = self.outside = 0
        self._max = self._worst = 0.0
        self.at: int | None = None
        self._n = 0
        self._diff2 = self._want2 = self._a = self._b = self._aa = self._bb = self._ab = 0.0

    def add(
        self, a: NDArray[Any], b: NDArray[Any], start: int, chosen: NDArray[np.bool_] | None
    ) -> None:
        whole = a.dtype.kind in "iub" and b.dtype.kind in "iub"
        # int64 beyond 2^53 is not itself in float64, so equality is asked of the stored values
        unequal = a != b if whole else None
        x, y = a.astype(np.float64), b.astype(np.float64)
        counts = np.ones(len(x), bool) if chosen is None else chosen
        finite = np.isfinite(x) & np.isfinite(y)
        alike = (np.isnan(x) & np.isnan(y)) | (~finite & (x == y))
        with np.errstate(invalid="ignore"):
            diff = np.where(finite, np.abs(x - y), np.where(alike, 0.0, np.inf))
            allowed = self._limit * (1 + np.where(finite, np.abs(y), 0.0))
        off = (unequal if unequal is not None and not self._limit else diff > allowed) & counts
        self.count += int(np.count_nonzero(counts))
        self.outside += int(np.count_nonzero(off))
        score = np.where(counts, diff / allowed if self._limit else diff, 0.0)
        top = int(score.argmax()) if score.size else 0
        if score.size and (score[top] > self._worst or (self.at is None and off.any())):
            self.at = start + (top if score[top] > 0 else int(off.argmax()))
            self._worst = float(score[top])
        self._max = max(self._max, float(np.where(counts, diff, 0.0).max(initial=0.0)))
        x, y = x[finite & counts], y[finite & counts]
        self._n += len(x)
        self._diff2 += float(np.square(x - y).sum())
        self._want2 += float(np.square(y).sum())
        self._a, self._b = self._a + float(x.sum()), self._b + float(y.sum())
        self._aa, self._bb = self._aa + float(x @ x), self._bb + float(y @ y)
        self._ab += float(x @ y)

    def numbers(self, peak: float | None) -> dict[str, Any]:
        n = self._n
        rel = math.sqrt(self._diff2 / self._want2) if self._want2 else None
        if self._diff2 == 0:
            rel = 0.0
        out: dict[str, Any] = {
            "outside": self.outside,
            "of": self.count,
            "max_abs": _told(self._max),
            "rel_l2": None if rel is None or not n else _told(rel),
            "pearson": self._pearson(),
            "worst": _told(self._worst) if self._limit else None,
        }
        if peak is not None:
            mean = self._diff2 / n if n else 0.0
            out["psnr"] = _told(10 * math.log10(peak**2 / mean)) if mean else None
        return out

    def _pearson(self) -> float | None:
        n = self._n
        if n < 2:
            return None
        va, vb = self._aa / n - (self._a / n) ** 2, self._bb / n - (self._b / n) ** 2
        # of constants the variance is rounding
        if va <= 1e-15 * self._aa / n or vb <= 1e-15 * self._bb / n:
            return None
        r = (self._ab / n - self._a / n * self._b / n) / math.sqrt(va * vb)
        return _told(min(1.0, max(-1.0, r)), 9)


def _told(value: float, digits: int = 6) -> float | None:
    """A number for a record: few digits, None where it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
