"""Scales of quantised experts: whether each weight has one, and of which grid.

Block sizes come from the config. They are never derived from the sizes of weight and grid: with a
partial last block the quotient is wrong (6 rows in blocks of 4 give 2 rows of scales, hence 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .config_sizes import Sizes
from .containers import BANK, Family, Rows
from .group import DTYPE, SHAPE, TRANSPOSED, Group, quantised
from .names import GATE_UP, SPLIT

Shape = tuple[int, ...]
BLOCK, MATRIX, ROW = "block", "matrix", "row"


def examine_scales(group: Group, family: Family, sizes: Sizes) -> None:
    """Fill the facts about scales, and note absent, extra and misshapen ones."""
    group.scale_suffix = family.suffix
    group.report_tensors("missing-scale", _absent(family))
    group.report_tensors("orphan-scale", _orphans(family))
    if family.suffix is None:
        return
    if family.blocks:
        group.block, group.scale_per = (1, _values_of_block(family)), BLOCK
    elif group.packed or group.dtype == "F4":
        group.block, group.scale_per = (1, sizes.run), BLOCK
    elif sizes.block is not None:
        group.block, group.scale_per = sizes.block, BLOCK
    else:
        group.scale_per = _granularity(group, family)
    group.fusable = _fusable(group)
    group.report_tensors("scale-grid", _misshapen(group, family))


def _absent(family: Family) -> Iterator[tuple[str, dict[str, Any]]]:
    """Quantised weights without a scale."""
    for role, rows in family.weights.items():
        scales = family.scales.get(role, {})
        lone = (
            [t for j, t in rows.items() if j not in scales] if scales.keys() != rows.keys() else ()
        )
        yield from ((t.name, {}) for t in lone if quantised(t.dtype))


def _orphans(family: Family) -> Iterator[tuple[str, dict[str, Any]]]:
    """Scales of weights that are absent, need none, or have another."""
    for role, scales in family.scales.items():
        rows = family.weights.get(role, {})
        if scales.keys() <= rows.keys() and all(map(quantised, set(map(DTYPE, rows.values())))):
            continue
        for expert, scale in scales.items():
            weight = rows.get(expert)
            if weight is None or not quantised(weight.dtype):
                yield scale.name, {}
    yield from ((t.name, {}) for t in family.extra_scales)


def _values_of_block(family: Family) -> int:
    """Values that share a scale in MXFP4 blocks: two for each byte of the last axis."""
    shapes = [family.weights[r][BANK].shape for r in sorted(family.blocks)]
    return 2 * next((s[-1] for s in shapes if len(s) == 4), 16)


def _fusable(group: Group) -> bool | None:
    """Whether no block spans gate and up when they are joined; None if that is unknown."""
    if group.scale_per in (MATRIX, ROW):
        return True
    if group.block is None or group.I is None:
        return None
    rows = group.block[1 if group.orientation == TRANSPOSED else 0]
    return all(i % rows == 0 for i in (group.I if isinstance(group.I, tuple) else (group.I,)))


def _pairs(family: Family) -> Iterator[tuple[str, Rows, Rows]]:
    """(role, weights, scales) of all roles that have both."""
    for role, scales in family.scales.items():
        if family.has(role):
            yield role, family.weights[role], scales


def _granularity(group: Group, family: Family) -> str | None:
    """MATRIX or ROW if all scales have that shape; None where blocks of unknown size are left."""
    whole = rows = True
    for role, weights, scales in _pairs(family):
        pairs = {(weights[j].shape, s.shape) for j, s in scales.items() if j in weights}
        for weight, scale in pairs:
            whole &= scale in _matrix_shapes(role, weight, family.layout == SPLIT)
            rows &= scale in _row_shapes(weight, group.orientation == TRANSPOSED)
    return MATRIX if whole else ROW if rows else None


def _matrix_shapes(role: str, weight: Shape, split: bool) -> set[Shape]:
    """Shapes of one scale for each matrix; a fused pair has one for gate and one for up, or both
    share one."""
    if split or not weight:
        return {(), (1,), (1, 1)}
    count = weight[0]
    one: set[Shape] = {(count,), (count, 1), (count, 1, 1)}
    return one | {(count, 2), (count, 2, 1)} if role == GATE_UP else one


def _row_shapes(weight: Shape, transposed: bool) -> set[Shape]:
    """Shapes of one scale for each row of the output, given the stored shape of a weight."""
    if len(weight) < 2:
        return set()
    *lead, rows, columns = weight
    flat = (*lead, columns if transposed else rows)
    return {flat, (*lead, 1, columns) if transposed else (*flat, 1)}


def _misshapen(group: Group, family: Family) -> Iterator[tuple[str, dict[str, Any]]]:
    """Scales whose grid does not cover their weight."""
    if group.scale_per in (MATRIX, ROW):
        return
    for role, weights, scales in _pairs(family):
        expected: dict[Shape, Shape | None] = {
            shape: _grid(group, family, role, shape) for shape in set(map(SHAPE, weights.values()))
        }
        if group.block is None:
            # of an unknown block only this is certain: equal weights have equal grids
            expected = {}
            for j, scale in sorted(scales.items()):
                if j in weights:
                    expected.setdefault(weights[j].shape, scale.shape)
        if _all_fit(weights, scales, expected):
            continue
        for j, scale in scales.items():
            grid = expected.get(weights[j].shape) if j in weights else None
            if grid is not None and scale.shape != grid:
                yield scale.name, {"shape": list(scale.shape), "expected": list(grid)}


def _all_fit(weights: Rows, scales: Rows, expected: dict[Shape, Any]) -> bool:
    """Whether it is certain, without looking at each, that all scales fit: the usual case."""
    return len(expected) == 1 and set(map(SHAPE, scales.values())) == set(expected.values())


def _grid(group: Group, family: Family, role: str, weight: Shape) -> Shape | None:
    """Expected shape of the scales of a weight of this stored shape; None if it has no rows."""
    if role in family.blocks:
        return weight[:3] if len(weight) == 4 else None
    if group.block is None or len(weight) < 2:
        return None
    *lead, rows, columns = weight
    per_byte = 2 if group.packed else 1
    return (*lead, -(-rows // group.block[0]), -(-columns * per_byte // group.block[1]))
