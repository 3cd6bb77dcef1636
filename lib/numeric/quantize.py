"""Dense rows as FP8 codes with one BF16 scale for each block. NumPy only.

The scale of a block is its greatest magnitude over the format's largest value, rounded to BF16 as
it will be stored; a code is the quotient by that stored scale in float32, rounded to nearest, ties
to even. Readers multiply a code by its scale. The scale of a block of zeros is 1: anything would
do, 1 keeps the product a zero and is the one number nobody stumbles over; 0 would make a reader
that divides meet 0 / 0.

NumPy lets go of the interpreter in these loops, so threads with an object each share the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from .blocks import Blocks
from .convert import Band, bf16_to_f32, f32_to_bf16
from .float8 import E4M3, SIGN, Format, Rounder, overflows

INPUTS = {"F32": "<u4", "BF16": "<u2", "F16": "<u2"}
"""Types that can be quantised, and the integers that their bits are read as."""
INFINITE = {"F32": 0x7F800000, "BF16": 0x7F80, "F16": 0x7C00}
"""Magnitude bits from which a value is not finite."""
TILE = 1 << 17
"""Elements handled at a time."""
LOW = 16
"""Rows of a block from which a row of blocks is worth a round of its own."""
ONE = np.uint16(0x3F80)
"""1.0 in BF16."""
PLAIN = (2.0**-40, 2.0**40)
"""Between these the squares of a block's values and errors are far from the ends of float32."""


@dataclass
class Quantized:
    """What quantising did to a tensor.

    Attributes:
        elements: quantised.
        saturated: beyond the format after division; only where the scale was given.
        flushed: not zero, and became zero.
        zero_blocks: blocks without anything but zeros.
        largest_error: greatest |code * scale - value|.
        error_squares, value_squares: sums of the squares of these differences, and of the values.
    """

    elements: int = 0
    saturated: int = 0
    flushed: int = 0
    zero_blocks: int = 0
    largest_error: float = 0.0
    error_squares: float = 0.0
    value_squares: float = 0.0

    @property
    def relative_error(self) -> float:
        """Norm of the error over the norm of the values (L2); 0 for a tensor of zeros."""
        return math.sqrt(self.error_squares / self.value_squares) if self.value_squares else 0.0

    def add(self, other: Quantized) -> None:
        """Take in what was met in another part of the tensor."""
        self.elements += other.elements
        self.saturated += other.saturated
        self.flushed += other.flushed
        self.zero_blocks += other.zero_blocks
        self.largest_error = max(self.largest_error, other.largest_error)
        self.error_squares += other.error_squares
        self.value_squares += other.value_squares

    def fields(self) -> dict[str, Any]:
        """For the loading report."""
        return {
            "elements": self.elements,
            "saturated": self.saturated,
            "flushed_to_zero": self.flushed,
            "zero_blocks": self.zero_blocks,
            "largest_error": float(f"{self.largest_error:.6g}"),
            "relative_error": float(f"{self.relative_error:.6g}"),
        }


def stored_scales(largest: np.ndarray, fmt: Format = E4M3) -> np.ndarray:
    """Scales of blocks as BF16 codes (uint16), from their greatest magnitudes (float32, finite).

    The code after it is taken where rounding to BF16 would make the quotient overflow the format;
    that happens among subnormal BF16 numbers only, which have fewer digits.
    """
    codes = f32_to_bf16(np.divide(largest, np.float32(fmt.largest), dtype="<f4"))
    with np.errstate(divide="ignore", invalid="ignore"):
        quotients = np.nan_to_num(largest / bf16_to_f32(codes), nan=0.0, posinf=np.inf)
    codes += overflows(quotients, fmt).astype("<u2")
    codes[largest == 0] = ONE
    return codes


class Quantizer:
    """Quantises rows of one tensor, in bands of any number of rows of blocks.

    Codes and scales do not depend on how the rows are cut into bands. Not to be shared between
    threads.

    Args:
        blocks: how scales lie over the tensor; `scalar` takes two passes, see `rows`.
        dtype: of the values, a key of `INPUTS`.
        fmt: format of the codes.
        name: of the tensor, for messages.
        met: what is met is added to it; None saves that work.
    """

    def __init__(
        self,
        blocks: Blocks,
        dtype: str,
        fmt: Format = E4M3,
        name: str = "",
        met: Quantized | None = None,
    ) -> None:
        self.blocks, self.dtype, self.fmt, self.name, self.met = blocks, dtype, fmt, name, met
        self._unsigned = np.dtype(INPUTS[dtype])
        self._magnitude = self._unsigned.type((1 << (8 * self._unsigned.itemsize - 1)) - 1)
        size = max(TILE, blocks.columns)
        self._bits = np.empty(size, self._unsigned)
        self._x, self._y, self._r = (np.empty(size, "<f4") for _ in range(3))
        self._signs = np.empty(size, np.uint8)
        self._rounder = Rounder(fmt, size)

    def _shaped(self, values: Band | np.ndarray) -> np.ndarray:
        """The bits of the values of whole rows, [r, C]."""
        if isinstance(values, np.ndarray):
            bits = np.ascontiguousarray(values).view(self._unsigned)
        else:
            bits = np.frombuffer(values, self._unsigned)
        return bits.reshape(bits.size // max(self.blocks.columns, 1), self.blocks.columns)

    def largest(self, values: Band | np.ndarray, first_row: int = 0) -> np.ndarray:
        """Greatest magnitude of the part of every block that lies in these rows.

        Args:
            values: whole rows; bytes, or an array of the stored type (BF16 as its codes).
            first_row: the first of these rows, counted through a stack.
        Returns:
            float32 [rows of blocks, columns of blocks].
        Raises:
            InputError: a value is not finite.
        """
        b, bits = self.blocks, self._shaped(values)
        end = first_row + bits.shape[0]
        if not bits.size:
            return np.zeros((0, b.grid[1]), "<f4")
        top = b.grid_row(first_row)
        found = np.zeros((b.grid_row(end - 1) + 1 - top, b.grid[1]), self._unsigned)
        starts = np.arange(0, b.columns, b.block[1])
        for start, stop in self._spans(first_row, end):
            part = self._bits[: (stop - start) * b.columns].reshape(-1, b.columns)
            np.bitwise_and(bits[start - first_row : stop - first_row], self._magnitude, out=part)
            owners = b.scale_rows(start, stop) - top
            edges = np.flatnonzero(np.diff(owners, prepend=-1))
            if edges.size == 1:
                greatest = np.maximum.reduceat(part.max(axis=0), starts)
            else:
                along = np.maximum.reduceat(part, starts, axis=1)
                greatest = np.maximum.reduceat(along, edges, axis=0)
            found[owners[edges]] = np.maximum(found[owners[edges]], greatest)
        if (found >= INFINITE[self.dtype]).any():
            bad = int(np.count_nonzero((bits & self._magnitude) >= INFINITE[self.dtype]))
            raise InputError(
                f"tensor '{self.name}': rows {first_row} to {end - 1}: values that are not finite",
                found=bad,
                expected="none",
            )
        return self._widened(found.reshape(-1), np.empty(found.size, "<f4")).reshape(found.shape)

    def _widened(self, magnitudes: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Bits of magnitudes as float32, exact."""
        if self.dtype == "BF16":
            np.copyto(out.view("<u4"), magnitudes)
            np.left_shift(out.view("<u4"), np.uint32(16), out=out.view("<u4"))
        else:
            np.copyto(out, magnitudes.view("<f4" if self.dtype == "F32" else "<f2"))
        return out

    def rows(
        self,
        values: Band | np.ndarray,
        first_row: int = 0,
        scales: np.ndarray | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes and scales of whole rows of blocks.

        Args:
            values: bytes, or an array of the stored type (BF16 as its codes), r * C of them.
            first_row: the first of these rows, counted through a stack.
            scales: BF16 codes of the rows of blocks that these rows are in, where they are known
                from elsewhere: for one scale a tensor, `stored_scales` of the greatest `largest`
                of all bands. The rows may then begin and end inside a block, and what these scales
                are too small for saturates.
            out: where to write the codes, contiguous uint8 [r, C].
        Returns:
            Codes, uint8 [r, C], and scales, BF16 codes as uint16 [rows of blocks, columns of them].
        Raises:
            InputError: a value is not finite.
        """
        b, bits = self.blocks, self._shaped(values)
        end = first_row + bits.shape[0]
        given = scales is not None
        codes = np.empty(bits.shape, np.uint8) if out is None else out
        assert codes.shape == bits.shape and codes.dtype == np.uint8 and codes.flags.c_contiguous
        if scales is None:
            assert b.starts_block(first_row) and b.starts_block(end), "whole rows of blocks"
            largest = self.largest(bits, first_row)
            scales = stored_scales(largest, self.fmt)
            if self.met is not None:
                self.met.zero_blocks += int(np.count_nonzero(largest == 0))
        if not bits.size:
            return codes, scales
        top, widths = b.grid_row(first_row), np.diff([*range(0, b.columns, b.block[1]), b.columns])
        wide, made = bf16_to_f32(scales.reshape(-1, b.grid[1])), -1
        assert (wide > 0).all() and np.isfinite(wide).all(), "scales are positive"
        for start, stop in self._spans(first_row, end):
            row, last = b.grid_row(start) - top, b.grid_row(stop - 1) - top
            if row != last:
                across = np.repeat(wide[b.scale_rows(start, stop) - top], widths, axis=1)
            elif row != made:
                across, made = np.repeat(wide[row], widths), row
            part = slice(start - first_row, stop - first_row)
            self._tile(bits[part], across, codes[part], given)
        return codes, scales

    def _spans(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Rows in spans of at most `TILE` elements, in one row of blocks unless these are low."""
        most = max(1, TILE // self.blocks.columns)
        return self.blocks.spans(first, end, most, most if self.blocks.block[0] < LOW else 1)

    def _tile(self, bits: np.ndarray, scale: np.ndarray, codes: np.ndarray, given: bool) -> None:
        """Fill the codes [n, C] of rows that have these scales, [C] or [n, C]."""
        n = bits.size
        magnitudes, x, y = self._bits[:n], self._x[:n], self._y[:n]
        square = bits.shape
        np.bitwise_and(bits, self._magnitude, out=magnitudes.reshape(square))
        self._widened(magnitudes, x)
        with np.errstate(over="ignore"):  # by a given scale; saturates
            np.divide(x.reshape(square), scale, out=y.reshape(square))
        if given:
            self._saturate(x, y)
        flat = codes.reshape(-1)
        rounded = None if self.met is None else self._r[:n]
        self._rounder.round(y, flat, rounded)
        if rounded is not None:
            self._measure(x, rounded, scale, square, flat)
        signs = self._signs[:n]
        shift = self._unsigned.type(8 * self._unsigned.itemsize - 8)
        np.right_shift(bits, shift, out=magnitudes.reshape(square))
        np.copyto(signs, magnitudes, casting="unsafe")
        np.bitwise_and(signs, SIGN, out=signs)
        np.bitwise_or(flat, signs, out=flat)

    def _saturate(self, x: np.ndarray, y: np.ndarray) -> None:
        """Bring quotients into the format, and refuse values that are not finite."""
        if not np.isfinite(x.max()):
            raise InputError(
                f"tensor '{self.name}': values that are not finite",
                found=int(np.count_nonzero(~np.isfinite(x))),
                expected="none",
            )
        if y.max() > self.fmt.largest:
            if self.met is not None:
                self.met.saturated += int(np.count_nonzero(overflows(y, self.fmt)))
            np.minimum(y, np.float32(self.fmt.largest), out=y)

    def _measure(
        self,
        x: np.ndarray,
        rounded: np.ndarray,
        scale: np.ndarray,
        square: tuple[int, ...],
        codes: np.ndarray,
    ) -> None:
        """Add the errors of one tile; `rounded` is overwritten."""
        met, largest = self.met, float(x.max())
        assert met is not None
        met.elements += x.size
        zeros = x.size - int(np.count_nonzero(codes))
        if zeros:
            met.flushed += zeros - int(np.count_nonzero(x == 0))
        error = rounded
        np.multiply(rounded.reshape(square), scale, out=error.reshape(square))
        np.subtract(error, x, out=error)
        met.largest_error = max(met.largest_error, float(error.max()), -float(error.min()))
        if not PLAIN[0] < largest < PLAIN[1]:
            error, x = error.astype("<f8"), x.astype("<f8")
        met.error_squares += float(np.einsum("i,i->", error, error))
        met.value_squares += float(np.einsum("i,i->", x, x))


def quantize_rows(
    values: Band | np.ndarray, blocks: Blocks, dtype: str, first_row: int = 0, fmt: Format = E4M3
) -> tuple[np.ndarray, np.ndarray]:
    """Codes [r, C] and BF16 scales of whole rows of blocks; see `Quantizer`, for many bands."""
    return Quantizer(blocks, dtype, fmt).rows(values, first_row)
