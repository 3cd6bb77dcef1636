"""Gaussian noise that is the same, byte for byte, on every machine (docs/noise.md).

Only operations that IEEE 754 rounds in one way are used: + - * / sqrt, and powers of two. The
logarithm is our own, because those of C libraries and of vector code differ in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageProblem
from .torch_noise import torch_cpu

__all__ = ["log", "normal_quantile", "portable", "torch_cpu"]

F64 = NDArray[np.float64]

CHUNK = 1 << 17
"""Elements at a time: about 20 MB of float64 temporaries whatever the picture's size."""

# Coefficients of PPND16, M. J. Wichura, "Algorithm AS 241: The Percentage Points of the Normal
# Distribution", Applied Statistics 37 (1988) 477-484. Lowest power first; relative error 1e-16.
CENTRE = (
    (
        3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
        1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
        3.3430575583588128105e4, 2.5090809287301226727e3,
    ),
    (
        1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)  # fmt: skip
MIDDLE = (
    (
        1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
        3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
        2.27238449892691845833e-2, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)  # fmt: skip
TAIL = (
    (
        6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
        2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
        2.71155556874348757815e-5, 2.01033439929228813265e-7,
    ),
    (
        1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)  # fmt: skip

# ln 2 in two parts: the first has 32 significant bits, so a binary exponent times it is exact.
LN2_HIGH = float.fromhex("0x1.62e42feep-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
ATANH_TERMS = 12
"""Terms of the series after the first; f^2 <= 0.0295, so the rest is below 2^-62."""


def portable(seed: int, shape: Sequence[int], start: int = 0) -> NDArray[np.float32]:
    """Standard normal values, float32, of the given shape; byte-identical on every machine.

    Element i (row-major, counted from `start`) depends on `seed` and i alone:

    1. w_i = word i of Philox4x64-10 with key (seed, 0): output i mod 4 of the block with counter
       (1 + i div 4, 0, 0, 0). This is the raw stream of `numpy.random.Philox(key=seed)`.
    2. u_i = (2 k + 1) / 2^53 with k = w_i >> 12 (52 bits), exact in float64, never 0 or 1, and
       symmetric about 1/2. (A 53-bit k would need a 54-bit u and could round to 1.)
    3. z_i = `normal_quantile(u_i)`, rounded once to float32.

    Args:
        seed: 0..2^64 - 1.
        shape: sizes, each 0 or more.
        start: index of the first element: the second of two draws of n values starts at n.
    Raises:
        UsageProblem: seed, shape or start out of range.
    Source: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), Philox;
        M. J. Wichura, AS 241 (1988).
    """
    if not 0 <= seed < 1 << 64:
        raise UsageProblem("seed", found=seed, expected="0..2^64-1")
    if start < 0 or any(n < 0 for n in shape):
        raise UsageProblem("noise", found=f"start {start}, shape {list(shape)}", expected=">= 0")
    # The counter is raised before a block is made: counter c makes the block of index c first.
    words = np.random.Philox(key=seed, counter=start // 4)
    words.random_raw(start % 4, output=False)
    out = np.empty(math.prod(shape), np.float32)
    for lo in range(0, out.size, CHUNK):
        n = min(CHUNK, out.size - lo)
        k = words.random_raw(n) >> np.uint64(12)
        u = (2.0 * k.astype(np.float64) + 1.0) * 2.0**-53
        out[lo : lo + n] = normal_quantile(u)
    return out.reshape(tuple(shape))


def normal_quantile(p: F64) -> F64:
    """Inverse of the standard normal distribution function, float64, for 0 < p < 1.

    q = p - 1/2. |q| <= 0.425: z = q A(r) / B(r), r = 0.180625 - q q. Otherwise s = sqrt(-log
    min(p, 1 - p)), and z = +- C(s - 1.6) / D(s - 1.6) for s <= 5, +- E(s - 5) / F(s - 5) above.
    Polynomials by Horner's rule, each product and sum rounded on its own (no fused multiply-add).
    Source: PPND16 of AS 241 (see CENTRE).
    """
    q = p - 0.5
    out = np.empty_like(p)
    near = np.abs(q) <= 0.425
    qn = q[near]
    out[near] = qn * _rational(0.180625 - qn * qn, CENTRE)
    far = ~near
    pf = p[far]
    s = np.sqrt(-log(np.minimum(pf, 1.0 - pf)))
    mid = s <= 5.0
    z = np.empty_like(s)
    z[mid] = _rational(s[mid] - 1.6, MIDDLE)
    z[~mid] = _rational(s[~mid] - 5.0, TAIL)
    out[far] = np.where(q[far] < 0, -z, z)
    return out


def log(x: F64) -> F64:
    """Natural logarithm of positive normal float64 values, about 1 ulp, the same everywhere.

    x = m 2^e with m in [sqrt(1/2), sqrt(2)); f = (m - 1) / (m + 1);
    log m = 2 atanh f = 2 f (1 + f^2/3 + f^4/5 + ...), ATANH_TERMS + 1 terms by Horner's rule;
    log x = e LN2_HIGH + (e LN2_LOW + log m).
    """
    m, exponent = np.frexp(x)  # m in [0.5, 1)
    low = m < SQRT_HALF
    m = np.where(low, m * 2.0, m)
    e = exponent.astype(np.float64) - low
    f = (m - 1.0) / (m + 1.0)
    f2 = f * f
    s = np.full_like(f, 1.0 / (2 * ATANH_TERMS + 1))
    for k in range(ATANH_TERMS - 1, 0, -1):
        s = s * f2 + 1.0 / (2 * k + 1)
    log_m = 2.0 * (f + f * (s * f2))
    return e * LN2_HIGH + (e * LN2_LOW + log_m)


def _rational(r: F64, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> F64:
    top, bottom = (_polynomial(r, c) for c in coefficients)
    return top / bottom


def _polynomial(r: F64, c: tuple[float, ...]) -> F64:
    y = np.full_like(r, c[-1])
    for a in reversed(c[:-1]):
        y = y * r + a
    return y
