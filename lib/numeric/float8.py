"""Eight-bit floats: what each code means, encoding, and the number formats of scales. NumPy only.

Names are those of the safetensors format: `F8_E4M3` has no infinities and one NaN a sign (E4M3FN of
the OCP 8-bit floating point specification), `F8_E5M2` follows IEEE 754. The FNUZ variants of the
same widths have another bias and another NaN; they are refused, because read as these they would
be wrong by a factor of two without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InputError, Unsupported
from .convert import Band, bf16_to_f32

EXPONENT = np.uint32(0x7F800000)
"""Exponent bits of a float32; alone they are the power of two below a magnitude."""
MAGNITUDE = np.uint32(0x7FFFFFFF)
"""All bits of a float32 but its sign."""
SIGN = np.uint8(0x80)


@dataclass(frozen=True)
class Format:
    """One eight-bit format: a sign, exponent bits, `mantissa` bits.

    Attributes:
        name: safetensors spelling of the dtype.
        mantissa: stored bits of the fraction.
        bias: of the exponent; codes with exponent 0 are subnormal.
        largest_code: magnitude bits of the largest finite value.
        first_nan: magnitude bits from which a code is a NaN.
        nan: magnitude bits of the NaN that encoding writes.
    """

    name: str
    mantissa: int
    bias: int
    largest_code: int
    first_nan: int
    nan: int

    @cached_property
    def values(self) -> np.ndarray:
        """The value of every code, float32 [256], exact.

        Codes between the largest and the first NaN are infinite; a NaN has the sign of its code.
        """
        codes = np.arange(128)
        exponent, fraction = codes >> self.mantissa, codes & ((1 << self.mantissa) - 1)
        whole = np.where(exponent > 0, fraction + (1 << self.mantissa), fraction)
        power = np.maximum(exponent, 1) - self.bias - self.mantissa
        half = np.ldexp(whole.astype("<f4"), power).astype("<f4")
        half[codes > self.largest_code] = np.inf
        half[codes >= self.first_nan] = np.nan
        table = np.concatenate([half, np.copysign(half, np.float32(-1))])
        table.setflags(write=False)
        return table

    @property
    def largest(self) -> float:
        """Largest finite value."""
        return float(self.values[self.largest_code])

    @property
    def dropped(self) -> int:
        """Fraction bits of a float32 that a normal code has no room for."""
        return 23 - self.mantissa

    @property
    def least_exponent(self) -> np.uint32:
        """Bits of the least normal magnitude as a float32."""
        return np.uint32((128 - self.bias) << 23)


E4M3 = Format("F8_E4M3", mantissa=3, bias=7, largest_code=0x7E, first_nan=0x7F, nan=0x7F)
E5M2 = Format("F8_E5M2", mantissa=2, bias=15, largest_code=0x7B, first_nan=0x7D, nan=0x7E)
FORMATS = {f.name: f for f in (E4M3, E5M2)}


def format_of(dtype: str, what: str) -> Format:
    """The format of a dtype name.

    Args:
        what: file and tensor, for the message.
    Raises:
        Unsupported: not an eight-bit float that is implemented, a FNUZ variant for instance.
    """
    if dtype not in FORMATS:
        raise Unsupported(
            f"{what}: no decoding for this type", found=dtype, expected=" or ".join(FORMATS)
        )
    return FORMATS[dtype]


def decode(codes: np.ndarray, fmt: Format = E4M3) -> np.ndarray:
    """Values of codes (uint8, any shape) as float32, exact."""
    return np.take(fmt.values, codes, mode="wrap")


@dataclass
class Encoded:
    """What encoding met, counted in elements.

    Attributes:
        saturated: beyond the largest value after rounding, infinite ones too, and became it.
        flushed: not zero, and became zero.
        nan: were NaN, and stay it.
    """

    saturated: int = 0
    flushed: int = 0
    nan: int = 0


def overflows(magnitudes: np.ndarray, fmt: Format) -> np.ndarray:
    """Which magnitudes (float32) round beyond the largest value, bool of the same shape.

    The border lies half a step above it; there the tie goes to the even code, which is the largest
    itself in E4M3 and the next, missing one in E5M2.
    """
    step = fmt.largest - float(fmt.values[fmt.largest_code - 1])
    border = np.float32(fmt.largest + step / 2)
    return magnitudes >= border if fmt.largest_code & 1 else magnitudes > border


class Rounder:
    """Rounds magnitudes to codes, to nearest, ties to even, with scratch of its own.

    With M the power of two whose last place is one step of the format at y, M + y in float32 is
    rounded to a whole number k of steps. The steps below the least normal value are all equal, so
    M stops falling there, and the code is (exponent << mantissa) + k in both ranges.

    Args:
        fmt: the format.
        size: elements of the largest array that will come.
    """

    def __init__(self, fmt: Format, size: int) -> None:
        self.fmt = fmt
        self._power, self._sum = np.empty(size, "<u4"), np.empty(size, "<f4")
        self._least = fmt.least_exponent
        self._floor = np.full(size, self._least)  # maximum of two arrays is six times as fast
        self._shift = np.uint32(fmt.dropped)
        self._lift = np.uint32(fmt.dropped << 23)

    def round(self, y: np.ndarray, codes: np.ndarray, rounded: np.ndarray | None = None) -> None:
        """Round one array.

        Args:
            y: float32, contiguous, one axis, not negative, nothing that `overflows`.
            codes: uint8 of the same size, filled with magnitude codes (no sign).
            rounded: float32 of the same size, filled with the values of these codes, or None.
        """
        power, total = self._power[: y.size], self._sum[: y.size]
        np.bitwise_and(y.view("<u4"), EXPONENT, out=power)
        np.maximum(power, self._floor[: y.size], out=power)
        np.add(power, self._lift, out=power)
        m = power.view("<f4")
        np.add(m, y, out=total)
        if rounded is not None:
            np.subtract(total, m, out=rounded)
        steps = total.view("<u4")
        np.subtract(steps, power, out=steps)
        np.subtract(power, self._least + self._lift, out=power)
        np.right_shift(power, self._shift, out=power)
        np.add(power, steps, out=power)
        np.copyto(codes, power, casting="unsafe")


def encode(values: np.ndarray, fmt: Format = E4M3, met: Encoded | None = None) -> np.ndarray:
    """Codes (uint8) of float32 values, to nearest, ties to even, saturating.

    Infinite values saturate as well; NaN becomes the format's NaN of the same sign. This is Cast
    with `saturate=1` of the ONNX operator specification.

    Args:
        values: float32, any shape.
        met: what was met is added to it.
    """
    flat = np.ascontiguousarray(values, "<f4").reshape(-1)
    bits = flat.view("<u4")
    y = (bits & MAGNITUDE).view("<f4")
    nan, over = np.isnan(y), overflows(y, fmt)
    np.minimum(y, np.float32(fmt.largest), out=y)
    y[nan] = 0
    codes = np.empty(flat.size, np.uint8)
    Rounder(fmt, flat.size).round(y, codes)
    if met is not None:
        met.saturated += int(np.count_nonzero(over))
        met.nan += int(np.count_nonzero(nan))
        met.flushed += int(np.count_nonzero((codes == 0) & (y > 0)))
    codes[nan] = fmt.nan
    codes |= (bits >> np.uint32(24)).astype(np.uint8) & SIGN
    return codes.reshape(values.shape)


def e8m0_to_f32(codes: np.ndarray) -> np.ndarray:
    """Exponent-only scales (uint8): 2^(code - 127) as float32, exact; 255 is NaN.

    Code 0, 2^-127, is a subnormal float32. Source: OCP Microscaling Formats specification, E8M0.
    """
    bits = codes.astype("<u4") << np.uint32(23)
    bits[codes == 0] = 0x00400000
    bits[codes == 255] = 0x7FC00000
    return bits.view("<f4")


SCALE_DTYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F8_E8M0": "u1", "U8": "u1"}
"""Stored types of scales. U8 is how writers without the name F8_E8M0 spell it."""


def scales_to_f32(stored: Band, dtype: str, what: str) -> np.ndarray:
    """Scales as float32 [n], exact, from the bytes of their tensor.

    Args:
        stored: little-endian payload.
        dtype: safetensors spelling, one of `SCALE_DTYPES`.
        what: file and tensor, for the message.
    Raises:
        InputError: of a type that scales do not have.
    """
    if dtype not in SCALE_DTYPES:
        raise InputError(
            f"{what}: type of a scale", found=dtype, expected=" or ".join(SCALE_DTYPES)
        )
    codes = np.frombuffer(stored, SCALE_DTYPES[dtype])
    if dtype == "BF16":
        return bf16_to_f32(codes)
    if dtype in ("F8_E8M0", "U8"):
        return e8m0_to_f32(codes)
    return codes.astype("<f4")
