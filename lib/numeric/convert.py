"""Streaming conversion between float formats, band by band, NumPy only.

Widening is exact. Names are those of the safetensors format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ..errors import Unsupported

ITEM = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}


def bf16_to_f32(codes: np.ndarray) -> np.ndarray:
    """bfloat16 codes (uint16) to float32, exact: the code is the upper half of the float32."""
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _bf16_f32(band: bytes) -> bytes:
    return bf16_to_f32(np.frombuffer(band, "<u2")).tobytes()


def _f16_f32(band: bytes) -> bytes:
    return np.frombuffer(band, "<f2").astype("<f4").tobytes()


RULES: dict[tuple[str, str], Callable[[bytes], bytes]] = {
    ("BF16", "F32"): _bf16_f32,
    ("F16", "F32"): _f16_f32,
}
"""(stored, wanted) -> a function on whole elements."""


def check(stored: str, wanted: str, name: str) -> None:
    """Refuse a pair that `convert` has no rule for.

    Raises:
        Unsupported: names the tensor and both types.
    """
    if stored != wanted and (stored, wanted) not in RULES:
        raise Unsupported(f"tensor '{name}': cannot convert {stored} to {wanted}")


def convert(bands: Iterable[bytes], stored: str, wanted: str) -> Iterator[bytes]:
    """Bands of `stored` elements as bands of `wanted` elements; unchanged when the two are equal.

    A band may end inside an element; the rest is carried into the next.
    """
    if stored == wanted:
        yield from bands
        return
    rule, item, rest = RULES[stored, wanted], ITEM[stored], b""
    for band in bands:
        band = rest + band if rest else band
        whole = len(band) // item * item
        rest = band[whole:]
        yield rule(band[:whole])
