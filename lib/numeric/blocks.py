"""How scales lie over a matrix: blocks, scalars, rows, and stacks of matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import InputError


@dataclass(frozen=True)
class Blocks:
    """One or more matrices [rows, columns], each cut into blocks that share a scale.

    Blocks start anew in every matrix of a stack, and the last of an axis may be partial: it keeps
    its scale as it is. Rows are counted through the stack.

    Attributes:
        matrices: matrices of the stack, E.
        rows, columns: of one matrix, R and C.
        block: rows and columns of a block.
        scalar: one scale for the whole tensor, whatever its shape.
    """

    matrices: int
    rows: int
    columns: int
    block: tuple[int, int]
    scalar: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks along the rows of one matrix, and along its columns."""
        return -(-self.rows // self.block[0]), -(-self.columns // self.block[1])

    @property
    def total_rows(self) -> int:
        """Rows of all matrices."""
        return self.matrices * self.rows

    @property
    def grid_rows(self) -> int:
        """Rows of the scale grids of all matrices, laid one below the other."""
        return self.matrices * self.grid[0]

    @property
    def area(self) -> int:
        """Elements that share a scale, in a whole block."""
        return min(self.block[0], self.rows) * min(self.block[1], self.columns)

    def grid_row(self, row: int) -> int:
        """The row of scales that holds for a row of the stack."""
        matrix, within = divmod(row, self.rows)
        return matrix * self.grid[0] + within // self.block[0]

    def end_of_block(self, row: int) -> int:
        """First row of the stack after the row of blocks that `row` is in."""
        matrix, within = divmod(row, self.rows)
        height = self.block[0]
        return matrix * self.rows + min((within // height + 1) * height, self.rows)

    def starts_block(self, row: int) -> bool:
        """Whether a row of blocks begins at a row, or the tensor ends there."""
        return row == self.total_rows or row % self.rows % self.block[0] == 0

    def spans(self, first: int, end: int, most: int, blocks: int) -> Iterator[tuple[int, int]]:
        """Cut rows [first, end) into spans of at most `most` rows and `blocks` rows of blocks.

        A span ends with a row of blocks unless `most` or `end` comes before.
        """
        row = first
        while row < end:
            stop = self.end_of_block(row)
            for _ in range(blocks - 1):
                if stop >= end or (further := self.end_of_block(stop)) - row > most:
                    break
                stop = further
            stop = min(stop, row + most, end)
            yield row, stop
            row = stop

    def scale_rows(self, first: int, end: int) -> np.ndarray:
        """For each row in [first, end) the row of scales that holds for it, int64."""
        rows = np.arange(first, end)
        return rows // self.rows * self.grid[0] + rows % self.rows // self.block[0]


def grid_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of codes [R, C] or [E, R, C]: each of the last two axes in blocks.

    Where it has more than one element and the stored scale has just one, the tensor goes by another
    rule than its model; that is worth a report.
    """
    return (*shape[:-2], *(-(-n // side) for n, side in zip(shape[-2:], block, strict=True)))


def blocks_of(
    shape: tuple[int, ...],
    scale_shape: tuple[int, ...],
    block: tuple[int, int] | None,
    what: str,
) -> Blocks:
    """How the scales of one tensor lie over it.

    A scale of one element holds for the whole tensor, whatever its rank. Everything else is a grid
    of exactly ceil(rows / block rows) by ceil(columns / block columns), one for each matrix of a
    stack [E, R, C]. The size of a block is never worked out from that of the grid: with 1000 rows
    and 8 grid rows that gives 125 instead of 128, and wrong values without a word.

    Args:
        shape: of the codes; two or three axes where the scale is a grid.
        scale_shape: of the scales.
        block: rows and columns of a block, from the configuration; (1, C) is a scale for each row.
            None is one block for each matrix.
        what: file and tensor, for messages.
    Raises:
        InputError: a block side below 1, or a grid of another shape; names both shapes.
    """
    if block is not None and min(block) < 1:
        raise InputError(
            f"{what}: block size", found=list(block), expected="two sides of 1 or more"
        )
    if math.prod(scale_shape) == 1:
        columns = shape[-1] if shape else 1
        rows = math.prod(shape[:-1])
        return Blocks(1, rows, columns, (max(rows, 1), max(columns, 1)), scalar=True)
    if len(shape) not in (2, 3):
        raise InputError(
            f"{what}: scales of a tensor {list(shape)}",
            found=list(scale_shape),
            expected="one value",
        )
    rows, columns = shape[-2:]
    sides = block if block is not None else (max(rows, 1), max(columns, 1))
    expected = grid_shape(shape, sides)
    if tuple(scale_shape) != expected:
        raise InputError(
            f"{what}: scales of {list(shape)} in blocks of {list(sides)}",
            found=list(scale_shape),
            expected=list(expected),
        )
    return Blocks(shape[0] if len(shape) == 3 else 1, rows, columns, sides)


@dataclass(frozen=True)
class ScaleFacts:
    """What a tensor's scales are like; anything but positive, finite numbers is unusual.

    Attributes:
        not_finite, negative, zero: how many are.
        least, largest: of the finite ones, 0 where there is none.
    """

    not_finite: int
    negative: int
    zero: int
    least: float
    largest: float


def scale_facts(scales: np.ndarray) -> ScaleFacts:
    """Look at scales (float32) before they are used."""
    finite = scales[np.isfinite(scales)]
    return ScaleFacts(
        not_finite=scales.size - finite.size,
        negative=int(np.count_nonzero(finite < 0)),
        zero=int(np.count_nonzero(finite == 0)),
        least=float(finite.min()) if finite.size else 0.0,
        largest=float(finite.max()) if finite.size else 0.0,
    )
