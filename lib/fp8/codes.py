"""FP8 codes and scales that are kept as they are, on their way from file to file.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from ..checkpoint.tensor import Tensor
from ..conversion.open_files import OpenFiles
from ..errors import InputError
from .scale_values import numbers

BAND = 1 << 18
"""Bytes that are read at a time; larger reads take fresh memory each time."""

NOT_FINITE: dict[str, dict[str, tuple[int, ...]]] = {
    "F8_E4M3": {"nan": (0x7F, 0xFF)},
    "F8_E5M2": {"nan": (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), "infinite": (0x7C, 0xFC)},
}
"""Codes that are no finite numbers."""


class Codes:
    """The codes of a tensor, unchanged; those that are not finite are counted as they pass.

    Args:
        statistics: gets an entry for the tensor when it is done, if it has such codes.
    """

    __slots__ = ("_files", "_statistics", "_tensor")

    def __init__(self, tensor: Tensor, files: OpenFiles, statistics: dict[str, Any]) -> None:
        self._tensor, self._files, self._statistics = tensor, files, statistics

    def bands(self) -> Iterator[bytes]:
        """The payload.

        Raises:
            InputError: it ends early.
        """
        t, f = self._tensor, self._files(self._tensor.file)
        counts: dict[str, int] = {}
        for at in range(0, t.nbytes, BAND):
            want = min(BAND, t.nbytes - at)
            piece = f.read(t.offset + at, want)
            if len(piece) != want:
                what = f"{t.file}: tensor '{t.name}': ends early, bytes"
                raise InputError(what, found=at + len(piece), expected=t.nbytes)
            for what, codes in NOT_FINITE[t.dtype].items():
                n = sum(piece.count(code) for code in codes)
                if n:
                    counts[what] = counts.get(what, 0) + n
            yield piece
        if counts:
            self._statistics[t.name] = counts


class Scales:
    """A scale, unchanged. It is looked at once more: those of a remote source were not yet."""

    __slots__ = ("_files", "_tensor")

    def __init__(self, tensor: Tensor, files: OpenFiles) -> None:
        self._tensor, self._files = tensor, files

    def bands(self) -> Iterator[bytes]:
        """The payload.

        Raises:
            InputError: it ends early, or a value is not finite.
        """
        t = self._tensor
        raw = self._files(t.file).read(t.offset, t.nbytes)
        if len(raw) != t.nbytes:
            what = f"{t.file}: tensor '{t.name}': ends early, bytes"
            raise InputError(what, found=len(raw), expected=t.nbytes)
        wrong = sum(not isfinite(v) for v in numbers(t.dtype, raw))
        if wrong:
            what = f"{t.file}: tensor '{t.name}': values that are not finite"
            raise InputError(what, found=wrong, expected="none")
        yield raw
