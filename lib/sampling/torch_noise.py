"""The noise of PyTorch's CPU generator, for comparing runs seed by seed. PyTorch is not used.

Bits agree with PyTorch 2.13 on x86-64 with AVX2, whose vector code computes log, sin and cos by
the Cephes single-precision polynomials with fused multiply-adds. Other builds of PyTorch may differ
from it, and so from this, in the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageProblem

F32 = NDArray[np.float32]

CHUNK = 1 << 17
"""Elements at a time, a multiple of BLOCK."""
BLOCK = 16
"""Values that become normal ones together: 8 radii, 8 angles. Fewer take another route."""

# Cephes 2.2, logf and sinf/cosf (S. L. Moshier): minimax polynomials, highest power first.
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
SQRT_HALF = 0.707106781186547524
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
QUARTER_PI = (0.78515625, 2.4187564849853515625e-4, 3.77489497744594108e-8)
"""pi / 4 in three parts, so that multiples of it can be taken off without rounding."""
FOUR_OVER_PI = 1.27323954473516


def torch_cpu(seed: int, shape: Sequence[int], draw: int = 0) -> F32:
    """What `torch.randn(shape, generator=g)` gives on the CPU, float32.

    g is `torch.Generator("cpu").manual_seed(seed)` after `draw` earlier draws of this shape.

    Args:
        seed: 0..2^64 - 1; as in PyTorch only the low 32 bits count.
        shape: sizes, each 0 or more.
        draw: 0 for the first draw.
    Raises:
        UsageProblem: seed, shape or draw out of range.
    Source: ATen `normal_fill` and `normal_distribution` by their published behaviour; the
        generator is MT19937 (Matsumoto and Nishimura, 1998) with 32-bit seeding.
    """
    if not 0 <= seed < 1 << 64:
        raise UsageProblem("seed", found=seed, expected="0..2^64-1")
    if draw < 0 or any(n < 0 for n in shape):
        raise UsageProblem("noise", found=f"draw {draw}, shape {list(shape)}", expected=">= 0")
    n = math.prod(shape)
    words = mersenne_twister(seed)
    if n < BLOCK:
        return _few(words, n * (draw + 1))[n * draw :].reshape(tuple(shape))
    tail = n % BLOCK
    words.random_raw(draw * (n + (BLOCK if tail else 0)), output=False)
    out = np.empty(n, np.float32)
    for lo in range(0, n, CHUNK):
        part = out[lo : lo + CHUNK]
        u = _uniform(words, part.size)
        whole = part.size - part.size % BLOCK
        part[:whole] = _normal_blocks(u[:whole])
    if tail:
        # the last 16 values are drawn again, over those of the last whole block
        out[-BLOCK:] = _normal_blocks(_uniform(words, BLOCK))
    return out.reshape(tuple(shape))


def mersenne_twister(seed: int) -> np.random.MT19937:
    """MT19937 with its state filled from the low 32 bits of the seed, as by its authors."""
    key = np.empty(624, np.uint32)
    s = seed & 0xFFFFFFFF
    for i in range(624):
        key[i] = s
        s = (1812433253 * (s ^ (s >> 30)) + i + 1) & 0xFFFFFFFF
    words = np.random.MT19937()
    words.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
    return words


def _uniform(words: np.random.MT19937, n: int) -> F32:
    """[0, 1) from the low 24 bits of each word."""
    return (words.random_raw(n) & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)


def _few(words: np.random.MT19937, n: int) -> F32:
    """Fewer than BLOCK values: float64 Box-Muller in pairs; an odd one waits for the next call.

    The angle comes first, then the radius; each takes 53 bits of two words, high word first.
    """
    raw = words.random_raw(4 * ((n + 1) // 2)).reshape(-1, 2)
    bits = (raw[:, 0] << np.uint64(32) | raw[:, 1]) & np.uint64((1 << 53) - 1)
    u = bits.astype(np.float64).reshape(-1, 2) * 2.0**-53
    r = np.sqrt(-2.0 * np.log1p(-u[:, 1]))
    theta = 2.0 * math.pi * u[:, 0]
    pairs = np.stack([r * np.cos(theta), r * np.sin(theta)], axis=1)
    return pairs.reshape(-1)[:n].astype(np.float32)


def _normal_blocks(u: F32) -> F32:
    """Box-Muller on blocks of 16: radius from 1 - u[0:8], angle from u[8:16]; cosines first."""
    u = u.reshape(-1, 2, 8)
    r = np.sqrt(np.float32(-2) * _log(np.float32(1) - u[:, 0]))
    sin, cos = _sin_cos(np.float32(2 * math.pi) * u[:, 1])
    return np.stack([r * cos, r * sin], axis=1).reshape(-1)


def _fma(a: F32, b: F32 | float, c: F32 | float) -> F32:
    """a b + c, rounded once to float32.

    The product is exact in float64. The sum is rounded to odd (its last bit is set when it is not
    exact), after which the rounding to float32 is that of the exact value.
    """
    p = a.astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
    c64 = np.asarray(c, np.float32).astype(np.float64)
    s = p + c64
    back = s - p
    lost = (p - (s - back)) + (c64 - back)
    bits = s.view(np.int64)
    step = np.where((lost > 0) == (s > 0), 1, -1)
    bits += np.where((lost != 0) & (bits & 1 == 0), step, 0)
    return s.astype(np.float32)


def _horner(x: F32, c: tuple[float, ...]) -> F32:
    y = np.full_like(x, c[0])
    for a in c[1:]:
        y = _fma(y, x, a)
    return y


def _log(x: F32) -> F32:
    """log x for 0 < x <= 1: x = m 2^e, polynomial in m - 1, then + e ln 2."""
    m, exponent = np.frexp(x)
    low = m < np.float32(SQRT_HALF)
    f = np.where(low, (m - np.float32(1)) + m, m - np.float32(1))
    e = exponent.astype(np.float32) - low.astype(np.float32)
    f2 = f * f
    y = _fma(_horner(f, LOG) * f, f2, e * np.float32(LN2_LOW))
    y = _fma(f2, -0.5, y)
    return _fma(e, LN2_HIGH, f + y)


def _sin_cos(x: F32) -> tuple[F32, F32]:
    """sin x and cos x for x >= 0, reduced by the nearest even multiple of pi / 4."""
    octant = ((x * np.float32(FOUR_OVER_PI)).astype(np.int32) + 1) & ~1
    k = octant.astype(np.float32)
    for part in QUARTER_PI:
        x = _fma(k, -part, x)
    x2 = x * x
    cos = _fma(_horner(x2, COS) * x2, x2, x2 * np.float32(-0.5)) + np.float32(1)
    sin = _fma(_horner(x2, SIN) * x2, x, x)
    swap = octant & 2 != 0
    s, c = np.where(swap, cos, sin), np.where(swap, sin, cos)
    return np.where(octant & 4 != 0, -s, s), np.where((octant + 2) & 4 != 0, -c, c)
