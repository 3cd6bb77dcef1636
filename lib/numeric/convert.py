"""Streaming conversion between float formats, band by band, NumPy only.

Widening is exact. Narrowing rounds to nearest, ties to even; what a narrower format cannot hold is
counted, and values beyond its range are refused. Names are those of the safetensors format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from ..errors import InputError, Unsupported

ITEM = {"F32": 4, "BF16": 2, "F16": 2}
F16_MAX = 65504.0
"""Largest finite float16; what rounds beyond it is infinite (IEEE 754 binary16)."""

Band: TypeAlias = "bytes | memoryview[int]"


@dataclass
class Tally:
    """What a narrowing conversion met.

    Attributes:
        overflow: values that the new type has no finite number for.
        flushed: values that are not zero and became zero.
        subnormal: values that became subnormal, with fewer digits than the type has.
        largest: greatest magnitude met.
    """

    overflow: int = 0
    flushed: int = 0
    subnormal: int = 0
    largest: float = 0.0

    def fields(self) -> dict[str, Any]:
        """For the loading report."""
        return {
            "largest": float(f"{self.largest:.6g}"),
            "flushed_to_zero": self.flushed,
            "subnormal": self.subnormal,
        }


def bf16_to_f32(codes: np.ndarray) -> np.ndarray:
    """bfloat16 codes (uint16) to float32, exact: the code is the upper half of the float32."""
    bits = codes.astype("<u4")
    bits <<= np.uint32(16)
    return bits.view("<f4")


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 codes (uint16), to nearest, ties to even; NaN stays NaN.

    Adding 0x7FFF plus the lowest bit that stays carries into it exactly when the half below is
    above a tie, or is a tie and the bit is odd.
    """
    bits = values.view("<u4")
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    codes = rounded.astype("<u2")
    nan = np.isnan(values)
    if nan.any():  # the sum would carry a NaN into infinity or zero
        codes[nan] = ((bits[nan] >> np.uint32(16)) | np.uint32(0x40)).astype("<u2")
    return codes


def _bytes(values: np.ndarray) -> memoryview[int]:
    return memoryview(values.data).cast("B")


def _widen_bf16(band: Band, tally: Tally) -> Band:
    return _bytes(bf16_to_f32(np.frombuffer(band, "<u2")))


def _widen_f16(band: Band, tally: Tally) -> Band:
    return _bytes(np.frombuffer(band, "<f2").astype("<f4"))


def _f32_bf16(band: Band, tally: Tally) -> Band:
    return _bytes(_narrow_bf16(np.frombuffer(band, "<f4"), tally))


def _f16_bf16(band: Band, tally: Tally) -> Band:
    return _bytes(_narrow_bf16(np.frombuffer(band, "<f2").astype("<f4"), tally))


def _bf16_f16(band: Band, tally: Tally) -> Band:
    """There are 65,536 bfloat16 codes, so the float16 code of each is looked up, and magnitudes are
    compared as codes, whose order is the same: a quarter of the time of computing them."""
    codes = np.frombuffer(band, "<u2")
    table, beyond, zero, normal = _f16_of_bf16()
    if codes.size:
        magnitude = codes & np.uint16(0x7FFF)
        top = magnitude.max()
        if top >= beyond:
            tally.overflow += int(np.count_nonzero(magnitude >= beyond))
        if top <= _INFINITE:  # no NaN, of which `_count` makes nothing either
            tally.largest = max(tally.largest, float(bf16_to_f32(top.reshape(1))[0]))
            if magnitude.min() < normal:
                small = int(np.count_nonzero(magnitude < normal))
                flushed = int(np.count_nonzero(magnitude <= zero))
                tally.subnormal += small - flushed
                tally.flushed += flushed - (codes.size - int(np.count_nonzero(magnitude)))
    return _bytes(table.take(codes, mode="clip"))


_INFINITE = np.uint16(0x7F80)
"""bfloat16 code of infinity; those of NaN are greater."""


@cache
def _f16_of_bf16() -> tuple[np.ndarray, np.uint16, np.uint16, np.uint16]:
    """float16 code of each bfloat16 code; and of positive bfloat16 codes the first that becomes
    infinite, the last that becomes zero, and the first that becomes a normal number."""
    values = bf16_to_f32(np.arange(1 << 16, dtype="<u2"))
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype("<f2")
    positive = narrow[: int(_INFINITE) + 1]
    beyond = np.uint16(np.argmax(np.isinf(positive)))
    zero = np.uint16(np.count_nonzero(positive == 0) - 1)
    normal = np.uint16(np.argmax(values[: len(positive)] >= 2.0**-14))
    return narrow.view("<u2"), beyond, zero, normal


def _f32_f16(band: Band, tally: Tally) -> Band:
    return _bytes(_narrow_f16(np.frombuffer(band, "<f4"), tally))


def _narrow_bf16(values: np.ndarray, tally: Tally) -> np.ndarray:
    codes = f32_to_bf16(values)
    _count(values, bf16_to_f32(codes), float(np.finfo(np.float32).tiny), tally)
    return codes


def _narrow_f16(values: np.ndarray, tally: Tally) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = values.astype("<f2")
    _count(values, narrow, 2.0**-14, tally)
    return narrow


def _count(values: np.ndarray, narrow: np.ndarray, normal: float, tally: Tally) -> None:
    """Add what became of a band to the tally; `normal` is the least normal magnitude."""
    if not values.size:
        return
    magnitude = np.abs(values)
    tally.largest = max(tally.largest, float(magnitude.max()))
    tally.overflow += int(np.count_nonzero(~np.isfinite(narrow)))
    if magnitude.min() < normal:
        small = (magnitude < normal) & (values != 0)
        zero = small & (narrow == 0)
        tally.flushed += int(np.count_nonzero(zero))
        tally.subnormal += int(np.count_nonzero(small & ~zero))


RULES: dict[tuple[str, str], Callable[[Band, Tally], Band]] = {
    ("BF16", "F32"): _widen_bf16,
    ("F16", "F32"): _widen_f16,
    ("F32", "BF16"): _f32_bf16,
    ("F16", "BF16"): _f16_bf16,
    ("F32", "F16"): _f32_f16,
    ("BF16", "F16"): _bf16_f16,
}
"""(stored, wanted) -> a function on whole elements."""


def check(stored: str, wanted: str, what: str) -> None:
    """Refuse a pair that `convert` has no rule for.

    Args:
        what: file and tensor, for the message.
    Raises:
        Unsupported: names them and both types.
    """
    if stored != wanted and (stored, wanted) not in RULES:
        # of the names of formats none but those of FP8 begin so
        hint = "ntool convert-fp8 SOURCE -o DIR --to bf16 makes dense weights of FP8"
        raise Unsupported(
            f"{what}: cannot convert {stored} to {wanted}",
            hint=hint if stored.startswith("F8_") else None,
        )


def narrows(stored: str, wanted: str) -> bool:
    """Whether a conversion can lose digits or range."""
    return stored != wanted and wanted != "F32"


def convert(
    bands: Iterable[Band], stored: str, wanted: str, name: str = "", tally: Tally | None = None
) -> Iterator[Band]:
    """Bands of `stored` elements as bands of `wanted` elements; unchanged when the two are equal.

    A band may end inside an element; the rest is carried into the next.

    Args:
        name: of the tensor, for messages.
        tally: filled with what a narrowing conversion meets.
    Raises:
        InputError: after the last band, when values were beyond the range of `wanted`.
    """
    if stored == wanted:
        yield from bands
        return
    met = tally if tally is not None else Tally()
    rule, item, rest = RULES[stored, wanted], ITEM[stored], b""
    for band in bands:
        if rest:
            band = rest + bytes(band)
        whole = len(band) // item * item
        rest = bytes(band[whole:])
        yield rule(band[:whole], met)
    if met.overflow:
        raise InputError(
            f"tensor '{name}': values beyond the range of {wanted}",
            found=f"{met.overflow}, the largest {met.largest:.6g}",
            expected="none",
        )
