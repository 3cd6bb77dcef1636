"""How the scales of an FP8 tensor lie over its codes, and which tensors are shards of one table.

Standard library only. Pairing (pairs.py) has judged that shapes fit; here they are named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..checkpoint.tensor import Tensor
from ..errors import InputError
from .pairs import SHARD, Pairs, expected_grid


@dataclass(frozen=True)
class Form:
    """What one scale is for.

    Attributes:
        kind: `none` (codes are the values), `tensor`, `matrix` (of a stack [E, R, C]), `half` (gate
            or up of a fused stack), `row`, `block`.
        block: rows and columns of a block, for `block`.
    """

    kind: str
    block: tuple[int, int] = (1, 1)

    def ragged(self, shape: tuple[int, ...]) -> bool:
        """Whether the last block of a row or a column is a partial one."""
        return self.kind == "block" and bool(shape[-2] % self.block[0] or shape[-1] % self.block[1])


def form_of(
    shape: tuple[int, ...], grid: tuple[int, ...] | None, block: tuple[int, int] | None
) -> Form:
    """The form of a pair of these shapes.

    Args:
        grid: shape of the scale; None without one.
        block: of the config.
    """
    if grid is None:
        return Form("none")
    if math.prod(grid) == 1:
        return Form("tensor")
    if block is not None and grid == expected_grid(shape, block):
        return Form("block", block)
    if len(shape) == 3 and grid[0] == shape[0]:
        if math.prod(grid[1:]) == 1:
            return Form("matrix")
        if grid[1:] == (2, 1) and shape[1] != 2:
            return Form("half")
    assert grid in (shape[:-1], (*shape[:-1], 1)), "pairing judged the shapes"
    return Form("row")


@dataclass(frozen=True)
class Table:
    """An embedding table [rows, width] that is stored in shards of rows, with one scale.

    Attributes:
        name: what the whole table would be called: `X.weight` of `X.shard_0.weight`.
        shards: in the order of their rows.
    """

    name: str
    scale: Tensor
    shards: tuple[Tensor, ...]

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return sum(t.shape[0] for t in self.shards)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.shards[0].shape[1]


def tables_of(tensors: Mapping[str, Tensor], pairs: Pairs) -> list[Table]:
    """The tables of a checkpoint whose shards share one scale, in numeric order of shards.

    Raises:
        InputError: a shard is missing, is not FP8, or of another shape; the message names it.
    """
    groups: dict[str, dict[int, Tensor]] = {}
    for name, scale in pairs.scale_of.items():
        match = SHARD.search(name)
        if match and not scale.startswith(name.removesuffix(".weight") + "."):
            groups.setdefault(SHARD.sub("", name), {})[_number(match[0])] = tensors[name]
    if not groups:
        return []
    for name, t in tensors.items():
        match = SHARD.search(name)
        whole = SHARD.sub("", name) if match else ""
        if match and whole in groups and _number(match[0]) not in groups[whole]:
            what = f"{t.file}: tensor '{name}': dtype, in a table of FP8 shards"
            expected = next(iter(groups[whole].values())).dtype
            raise InputError(what, found=t.dtype, expected=expected)
    return [_table(name, shards, pairs) for name, shards in groups.items()]


def _number(shard: str) -> int:
    return int(shard.replace("_", ".").rsplit(".", 1)[1])


def _table(name: str, numbered: dict[int, Tensor], pairs: Pairs) -> Table:
    first = numbered[min(numbered)]
    for i in range(max(numbered) + 1):
        if i not in numbered:
            where = f"{first.file}: table '{name}': shard {i}"
            raise InputError(where, found="missing", expected=f"all of 0..{max(numbered)}")
    shards = tuple(numbered[i] for i in range(len(numbered)))
    scale = pairs.scales[pairs.scale_of[first.name]]
    for t in shards:
        if len(t.shape) != 2 or t.shape[1:] != first.shape[1:] or t.dtype != first.dtype:
            where = f"{t.file}: tensor '{t.name}': shape and dtype of a shard"
            expected = f"[rows, {first.shape[-1]}] {first.dtype}"
            raise InputError(where, found=f"{list(t.shape)} {t.dtype}", expected=expected)
        if math.prod(scale.shape) != 1 or pairs.scale_of[t.name] != scale.name:
            where = f"{scale.file}: tensor '{scale.name}': scale of the shards of '{name}'"
            raise InputError(where, found=list(scale.shape), expected="one value")
    return Table(name, scale, shards)
