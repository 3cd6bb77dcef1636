"""FP8 codes times their scales as BF16, F16 or F32, row band by row band. NumPy only.

A code has 256 values, and all elements of a block have one scale. So a block is a table of 256
finished elements, and a lookup for each code: whatever is special about a code or a scale (NaN,
infinite, subnormal, negative zero, out of range) is settled when the table is made, by the formula
itself: the product in float32, rounded once to nearest, ties to even. A scale that holds for
millions of elements has a table of all pairs of codes, and a lookup makes two elements. Small
blocks, where tables would be larger than what they are for, are computed element by element.

NumPy lets go of the interpreter in these loops, so threads with an object each share the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from .blocks import Blocks
from .convert import Band, bf16_to_f32, f32_to_bf16
from .float8 import E4M3, Format

OUTPUTS = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
"""Types of the result; BF16 as its codes, NumPy has no such type."""
TILE = 1 << 17
"""Elements handled at a time. Fewer cost one thread little, but two then wait for each other."""
EACH_TILE = 1 << 16
"""The same where elements are computed one by one, which takes more memory for each."""
TABLES = 256
"""Tables side by side: their entries are numbered with 16 bits."""
LEAST_AREA = 512
"""Elements of a block from which a table of 256 pays."""
LEAST_PAIRS = 1 << 20
"""Elements of a block from which a table of 65,536 pairs pays."""
OVERFLOW, FLUSHED = 1, 2


@dataclass
class Dequantized:
    """What dequantising met, counted in elements.

    Attributes:
        nan: codes that are NaN; they stay it.
        infinite: codes that are infinite (E5M2); they stay it.
        overflow: finite codes and scales whose product is beyond the range of the result's type;
            infinite in the output.
        flushed: codes and scales that are not zero, with a product that became zero.
    """

    nan: int = 0
    infinite: int = 0
    overflow: int = 0
    flushed: int = 0


def narrow(products: np.ndarray, to: str) -> np.ndarray:
    """float32 as elements of `to` (a key of `OUTPUTS`), to nearest, ties to even."""
    if to == "F32":
        return products
    if to == "BF16":
        return f32_to_bf16(products)
    return products.astype("<f2")


def _widened(elements: np.ndarray, to: str) -> np.ndarray:
    """Elements as something that `isinf` and `== 0` understand, with the same answers."""
    return bf16_to_f32(elements) if to == "BF16" else elements


class Dequantizer:
    """Dequantises rows of one tensor, in any order and in bands of any number of rows.

    The bytes do not depend on how the rows are cut into bands. Bands that end with a row of blocks
    are fastest, because tables are made for a row of blocks. Not to be shared between threads.

    Args:
        scales: float32, as many as `blocks` has, in the order of the stored tensor.
        blocks: how they lie over the codes.
        to: type of the result, a key of `OUTPUTS`.
        fmt: format of the codes.
        met: what is met is added to it; None saves the counting.
    """

    def __init__(
        self,
        scales: np.ndarray,
        blocks: Blocks,
        to: str,
        fmt: Format = E4M3,
        met: Dequantized | None = None,
    ) -> None:
        self.blocks, self.to, self.fmt, self.met = blocks, to, fmt, met
        assert scales.size == max(blocks.grid_rows * blocks.grid[1], blocks.scalar), "one a block"
        self.scales = np.ascontiguousarray(scales, "<f4").reshape(-1, max(blocks.grid[1], 1))
        self.item = np.dtype(OUTPUTS[to])
        self._index = np.empty(min(TILE, blocks.total_rows * blocks.columns), np.intp)
        self._places: tuple[tuple[int, int], np.ndarray] | None = None
        self._made: tuple[Any, np.ndarray, np.ndarray | None] | None = None
        self._pairs: tuple[int, np.ndarray, np.ndarray, np.ndarray | None] | None = None

    def rows(
        self, codes: Band | np.ndarray, first_row: int = 0, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Codes of whole rows as elements.

        Args:
            codes: bytes or uint8, r * C of them.
            first_row: the first of these rows, counted through a stack.
            out: where to write, contiguous [r, C] of the result's type.
        Returns:
            [r, C], BF16 as uint16 codes.
        """
        b = self.blocks
        flat = codes if isinstance(codes, np.ndarray) else np.frombuffer(codes, np.uint8)
        count = flat.size // b.columns if b.columns else 0
        assert flat.size == count * b.columns and first_row + count <= b.total_rows
        codes = np.ascontiguousarray(flat).reshape(count, b.columns)
        if out is None:
            out = np.empty((count, b.columns), self.item)
        assert out.shape == codes.shape and out.dtype == self.item and out.flags.c_contiguous
        end = first_row + count
        self._special(codes)
        with np.errstate(all="ignore"):  # what is not finite is counted, not warned of
            if b.area >= LEAST_PAIRS and b.grid[1] == 1:
                for start, stop in b.spans(first_row, end, b.rows, 1):
                    part = slice(start - first_row, stop - first_row)
                    self._pairwise(codes[part].reshape(-1), start, out[part].reshape(-1))
            else:
                for tile, row, left in self._tiles(first_row, end):
                    self._tile(codes[tile], row, left, out[tile])
        return out

    def _tiles(self, first: int, end: int) -> Iterator[tuple[tuple[slice, slice], int, int]]:
        """Rectangles within `TILE` and `TABLES`: where in the band, first row, first column."""
        b = self.blocks
        tables = b.area >= LEAST_AREA
        size = TILE if tables else EACH_TILE
        width = min(b.columns, size, (TABLES - 1) * b.block[1] if tables else size)
        if not width:
            return
        most = max(1, size // width)
        blocks = TABLES // ((width - 1) // b.block[1] + 2) if tables else most
        for left in range(0, b.columns, width):
            across = slice(left, min(left + width, b.columns))
            for start, stop in b.spans(first, end, most, blocks):
                yield (slice(start - first, stop - first), across), start, left

    def _tile(self, codes: np.ndarray, row: int, left: int, out: np.ndarray) -> None:
        """Fill one rectangle; codes and out are [n, w]."""
        b, (n, w) = self.blocks, codes.shape
        top, bottom = b.grid_row(row), b.grid_row(row + n - 1) + 1
        first, last = left // b.block[1], (left + w - 1) // b.block[1] + 1
        scales = self.scales[top:bottom, first:last]
        if b.area < LEAST_AREA:
            down, across = b.scale_rows(row, row + n) - top, self._columns(left, w)
            self._each(codes, np.take(scales[down], across, axis=1, mode="wrap"), out)
            return
        key = (top, bottom, first, last)
        if self._made is None or self._made[0] != key:
            self._made = (key, *self._table(scales.reshape(-1)))
        _, table, flags = self._made
        index = self._index[: n * w].reshape(n, w)
        if scales.size == 1:
            np.copyto(index, codes)
        else:
            places = self._placed(left, w)
            if bottom - top > 1:
                down = (b.scale_rows(row, row + n) - top).astype("<u2")
                places = places + (down * np.uint16(last - first) << np.uint16(8))[:, None]
            np.add(codes, places, out=index)
        np.take(table, index, out=out, mode="wrap")
        self._count(index, flags)

    def _columns(self, left: int, width: int) -> np.ndarray:
        """For each of some columns, how many columns of scales lie between the first's and its."""
        return np.arange(left, left + width) // self.blocks.block[1] - left // self.blocks.block[1]

    def _placed(self, left: int, width: int) -> np.ndarray:
        """Where in a row of tables the one of each column begins, uint16 [w]."""
        if self._places is None or self._places[0] != (left, width):
            places = self._columns(left, width).astype("<u2") << np.uint16(8)
            self._places = ((left, width), places)
        return self._places[1]

    def _table(self, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """All results for scales [t]: elements [t * 256], and flags of them or None."""
        values = self.fmt.values
        table = narrow(values * scales[:, None], self.to)
        # the largest and the least value tell whether any other can leave the range of the type
        ends = _widened(table[:, [self.fmt.largest_code, 1]], self.to)
        scaled = np.isfinite(scales) & (scales != 0)
        if not ((np.isinf(ends[:, 0]) | (ends[:, 1] == 0)) & scaled).any():
            return table.reshape(-1), None
        wide = _widened(table, self.to)
        over = np.isinf(wide) & np.isfinite(values) & scaled[:, None]
        flushed = (wide == 0) & (values != 0) & scaled[:, None]
        flags = (over * OVERFLOW + flushed * FLUSHED).astype(np.uint8)
        return table.reshape(-1), flags.reshape(-1)

    def _pairwise(self, codes: np.ndarray, row: int, out: np.ndarray) -> None:
        """Fill consecutive elements that have one scale; codes and out are [n]."""
        top = self.blocks.grid_row(row)
        if self._pairs is None or self._pairs[0] != top:
            table, flags = self._table(self.scales[top])
            bits = 8 * self.item.itemsize
            one = table.view(f"<u{self.item.itemsize}").astype(f"<u{2 * self.item.itemsize}")
            two = (one[:, None] << one.dtype.type(bits) | one).reshape(-1)
            self._pairs = (top, two, table, flags)
        _, two, table, flags = self._pairs
        even = codes.size // 2 * 2
        for start in range(0, even, 2 * TILE):
            part = slice(start, min(start + 2 * TILE, even))
            index = self._index[: (part.stop - start) // 2]
            np.copyto(index, codes[part].view("<u2"))
            np.take(two, index, out=out[part].view(two.dtype), mode="wrap")
            self._count(codes[part], flags)
        out[even:] = table[codes[even:]]
        self._count(codes[even:], flags)

    def _each(self, codes: np.ndarray, scales: np.ndarray, out: np.ndarray) -> None:
        """Element by element; codes, their scales and out are [n, w]."""
        values = np.take(self.fmt.values, codes, mode="wrap")
        out[...] = narrow(values * scales, self.to)
        if self.met is None:
            return
        wide = _widened(out, self.to)
        infinite, zero = np.isinf(wide), wide == 0
        if infinite.any():
            infinite &= np.isfinite(values) & np.isfinite(scales)
            self.met.overflow += int(np.count_nonzero(infinite))
        if zero.any():
            zero &= (values != 0) & (scales != 0)
            self.met.flushed += int(np.count_nonzero(zero))

    def _special(self, codes: np.ndarray) -> None:
        """Count codes that are not finite."""
        if self.met is None or not codes.size:
            return
        special = self.fmt.largest_code + 1
        if codes.max() >= special + 128 or codes.view(np.int8).max() >= special:
            magnitudes = codes & np.uint8(0x7F)
            nan = int(np.count_nonzero(magnitudes >= self.fmt.first_nan))
            self.met.nan += nan
            self.met.infinite += int(np.count_nonzero(magnitudes >= special)) - nan

    def _count(self, index: np.ndarray, flags: np.ndarray | None) -> None:
        """Count results that a table has flagged."""
        if self.met is not None and flags is not None:
            found = np.take(flags, index, mode="wrap")
            self.met.overflow += int(np.count_nonzero(found == OVERFLOW))
            self.met.flushed += int(np.count_nonzero(found == FLUSHED))


def dequantize_rows(
    codes: Band | np.ndarray,
    scales: np.ndarray,
    blocks: Blocks,
    to: str,
    first_row: int = 0,
    fmt: Format = E4M3,
) -> np.ndarray:
    """Rows of codes as elements [r, C] of `to`; see `Dequantizer`, which is for many bands."""
    return Dequantizer(scales, blocks, to, fmt).rows(codes, first_row)


def dequantize(bands: Iterable[Band], dequantizer: Dequantizer, name: str = "") -> Iterator[Band]:
    """A tensor's codes, in order and in pieces of any size, as pieces of elements.

    Args:
        name: of the tensor, for messages.
    Raises:
        InputError: the codes end inside a row or too early; after the last piece, when products
            were beyond the range of the result's type (and `met` counts them).
    """
    columns, row, rest = dequantizer.blocks.columns, 0, b""
    for band in bands:
        if rest:
            band = rest + bytes(band)
        whole = len(band) // columns * columns if columns else 0
        rest = bytes(band[whole:])
        if whole:
            out = dequantizer.rows(band[:whole], row)
            row += out.shape[0]
            yield memoryview(out.data).cast("B")
    if rest or (columns and row != dequantizer.blocks.total_rows):
        raise InputError(
            f"tensor '{name}': codes",
            found=f"{row} rows and {len(rest)} bytes",
            expected=f"{dequantizer.blocks.total_rows} rows of {columns}",
        )
    met = dequantizer.met
    if met is not None and met.overflow:
        raise InputError(
            f"tensor '{name}': values beyond the range of {dequantizer.to}",
            found=met.overflow,
            expected="none",
        )
