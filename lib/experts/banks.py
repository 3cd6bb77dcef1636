"""Groups with one tensor for all experts of a projection: fused, stacked, flat.

Orientation: direct when the last axis is the input axis (gate_up [E, 2I, H], down [E, H, I]),
transposed when it is the output axis (gate_up [E, H, 2I], down [E, I, H]).

Of a fused group the pair decides: both conditions at once would give c = 2c. Neither the config nor
the sizes by themselves do, because H = 2I and H = I are common.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from ..checkpoint.tensor import Tensor
from .config_sizes import Sizes
from .containers import BANK, Family
from .group import (
    AMBIGUOUS,
    BYTES,
    DIRECT,
    TRANSPOSED,
    Group,
    check_count,
    check_hidden,
    said,
)
from .names import (
    ALWAYS_GATED_STEMS,
    DOWN,
    FUSED,
    GATE,
    GATE_UP,
    INTERLEAVED_STEMS,
    STACKED,
    TRANSPOSED_STEMS,
    UP,
)

Shape = tuple[int, ...]
BLOCK_VALUES = 2
"""Values in a byte of MXFP4 blocks."""


class Fit(NamedTuple):
    """An orientation with the sizes that it means."""

    orientation: str
    H: int
    I: int  # noqa: E741 - the symbol of the source
    packed: bool = False


def examine_banks(group: Group, family: Family, sizes: Sizes, tower_gated: bool) -> None:
    """Fill the facts of a fused, stacked or flat group, and note what is wrong.

    Args:
        tower_gated: other layers of the tower have a gate.
    """
    if family.layout == FUSED:
        _fused(group, family, sizes)
    else:
        kind = _stacked if family.layout == STACKED else _flat
        kind(group, family, sizes, tower_gated)


def _bank(family: Family, role: str) -> Tensor | None:
    return family.weights.get(role, {}).get(BANK)


def _logical(family: Family, role: str) -> Shape | None:
    """Shape of a bank; of MXFP4 blocks [E, out, groups, bytes] with the values of a row together.

    None without such a bank, () for blocks that are not 4-D.
    """
    tensor = _bank(family, role)
    if tensor is None:
        return None
    if role not in family.blocks:
        return tensor.shape
    if len(tensor.shape) != 4:
        return ()
    experts, rows, groups, nbytes = tensor.shape
    return experts, rows, groups * nbytes * BLOCK_VALUES


def _shapes(family: Family, *roles: str) -> dict[str, list[int]]:
    """Stored shapes by role, as problems show them."""
    return {r: list(t.shape) for r in roles if (t := _bank(family, r)) is not None}


def _count(group: Group, family: Family, sizes: Sizes) -> None:
    """E from the first axes of the banks, which must agree with each other and the config."""
    found = {t.shape[0] for rows in family.weights.values() for t in rows.values() if t.shape}
    group.E = max(found, default=None)
    if len(found) > 1:
        group.report("count-mismatch", found=sorted(found))
    else:
        check_count(group, sizes)


def _settle(group: Group, fit: Fit, sizes: Sizes) -> None:
    group.orientation, group.H, group.I, group.packed = fit
    check_hidden(group, sizes)


def _fused(group: Group, family: Family, sizes: Sizes) -> None:
    stem = family.stems.get(GATE_UP)
    biased = any(family.biases.values())
    group.gate_up_order = (
        "interleaved" if stem in INTERLEAVED_STEMS else "unknown" if biased else "concatenated"
    )
    _count(group, family, sizes)
    wide, down = _logical(family, GATE_UP), _logical(family, DOWN)
    for role, shape in ((GATE_UP, wide), (DOWN, down)):
        if shape is None:
            group.report("missing-projection", role=role)
    if wide is None and down is None:
        return
    if any(s is not None and (len(s) != 3 or 0 in s[1:]) for s in (wide, down)):
        group.report("unrecognized-layout", **_shapes(family, GATE_UP, DOWN))
        return
    if wide is None or down is None:
        _half(group, family, sizes, wide, down)
    else:
        _pair(group, family, sizes, wide, down)
    if group.H is not None:
        _bias_shapes(group, family)


def _pair(group: Group, family: Family, sizes: Sizes, wide: Shape, down: Shape) -> None:
    (_, a, b), (_, c, d) = wide, down
    blocks = bool(family.blocks)
    if a == 2 * d and b == c:
        _settle(group, Fit(DIRECT, b, d, packed=blocks), sizes)
    elif b == 2 * c and a == d and not blocks:
        _settle(group, Fit(TRANSPOSED, a, c), sizes)
    elif a == 4 * d and c == 2 * b and _in_bytes(family):
        _settle(group, Fit(DIRECT, c, 2 * d, packed=True), sizes)
    elif (a == 2 * c and b == d) or (b == 2 * d and a == c):
        group.report("contradictory-orientation", **_shapes(family, GATE_UP, DOWN))
    else:
        group.report("unrecognized-layout", **_shapes(family, GATE_UP, DOWN))


def _half(
    group: Group, family: Family, sizes: Sizes, wide: Shape | None, down: Shape | None
) -> None:
    """Half of a fused group: the config's H and I, where exactly one orientation fits."""
    sides = [(r, s[1:]) for r, s in ((GATE_UP, wide), (DOWN, down)) if s is not None]
    (role, found), blocks = sides[0], bool(family.blocks)
    fits = set()
    for hidden, inner in product(sizes.hidden, sizes.inner):
        direct = (2 * inner, hidden) if role == GATE_UP else (hidden, inner)
        if found == direct:
            fits.add(Fit(DIRECT, hidden, inner, packed=blocks))
        if found == direct[::-1] and not blocks:
            fits.add(Fit(TRANSPOSED, hidden, inner))
        if (found[0], 2 * found[1]) == direct and _in_bytes(family):
            fits.add(Fit(DIRECT, hidden, inner, packed=True))
    if len(fits) == 1:
        _settle(group, fits.pop(), sizes)
    else:
        _undecided(group, family, sizes)


def _undecided(group: Group, family: Family, sizes: Sizes) -> None:
    group.orientation = AMBIGUOUS
    shape = next(iter(_shapes(family, GATE_UP, UP, GATE, DOWN).values()))
    group.report("ambiguous-orientation", shape=shape)
    if sizes.hidden and family.layout == STACKED and sizes.hidden.isdisjoint(shape[1:]):
        group.report("config-mismatch", config=said(sizes.hidden), found=shape[1:])


def _in_bytes(family: Family) -> bool:
    """Whether an element may hold two values; the bytes of MXFP4 blocks are counted already."""
    return not family.blocks and all(
        t.dtype in BYTES for rows in family.weights.values() for t in rows.values()
    )


def _stacked(group: Group, family: Family, sizes: Sizes, tower_gated: bool) -> None:
    """Gate, up and down, or up and down alone, each a bank.

    up [E, a, b] and down [E, b, a] fit both orientations, so the config's hidden size decides.
    """
    _count(group, family, sizes)
    gated = (
        tower_gated or family.has(GATE) or not ALWAYS_GATED_STEMS.isdisjoint(family.stems.values())
    )
    for role in (GATE, UP, DOWN) if gated else (UP, DOWN):
        if not family.has(role):
            group.report("missing-projection", role=role)
    shapes = _shapes(family, GATE, UP, DOWN)
    if not shapes:
        return
    if any(len(s) != 3 or 0 in s[1:] for s in shapes.values()):
        group.report("unrecognized-layout", **shapes)
        return
    gate, up, down = (tuple(shapes[r][1:]) if r in shapes else None for r in (GATE, UP, DOWN))
    wide = up or gate
    if gate and up and gate != up:
        group.report("unrecognized-layout", **shapes)
    elif wide is None or down is None or wide == down[::-1]:
        _decide(group, family, sizes, wide or (down or ())[::-1])
    elif _in_bytes(family) and down[0] == 2 * wide[1] and wide[0] == 2 * down[1]:
        _settle(group, Fit(DIRECT, down[0], wide[0], packed=True), sizes)
    elif wide == down:
        group.report("contradictory-orientation", **shapes)
    else:
        group.report("unrecognized-layout", **shapes)
    if group.H is not None:
        _bias_shapes(group, family)


def _decide(group: Group, family: Family, sizes: Sizes, wide: Shape) -> None:
    """The orientation of a stacked group whose up is [E, a, b]: the side that is H."""
    a, b = wide
    direct, transposed = b in sizes.hidden, a in sizes.hidden
    if direct != transposed and a != b:
        _settle(group, Fit(DIRECT, b, a) if direct else Fit(TRANSPOSED, a, b), sizes)
    elif not TRANSPOSED_STEMS.isdisjoint(family.stems.values()):
        _settle(group, Fit(TRANSPOSED, a, b), sizes)
    else:
        _undecided(group, family, sizes)


def _bias_shapes(group: Group, family: Family) -> None:
    """Biases are [E, width of the output], whatever the orientation of their weights."""
    assert group.H is not None and isinstance(group.I, int)
    widths = {GATE_UP: 2 * group.I, GATE: group.I, UP: group.I, DOWN: group.H}
    rows = []
    for role, bias in family.biases.items():
        weight = _bank(family, role)
        if weight is not None:
            shape, expected = list(bias[BANK].shape), [weight.shape[0], widths[role]]
            if shape != expected:
                rows.append((bias[BANK].name, {"shape": shape, "expected": expected}))
    group.report_tensors("shape-mismatch", rows)


def _flat(group: Group, family: Family, sizes: Sizes, tower_gated: bool) -> None:
    """Three matrices [E I, H]; down is stored with its input first. E is not in the shapes."""
    for role in (GATE, UP, DOWN):
        if not family.has(role):
            group.report("missing-projection", role=role)
    shapes = _shapes(family, GATE, UP, DOWN)
    if any(len(s) != 2 for s in shapes.values()) or len({tuple(s) for s in shapes.values()}) > 1:
        group.report("unrecognized-layout", **shapes)
        return
    if not shapes:
        return
    rows, group.H = next(iter(shapes.values()))
    check_hidden(group, sizes)
    if len(sizes.experts) != 1:
        group.report("needs-expert-count")
        return
    (count,) = sizes.experts
    if rows % count:
        group.report("count-mismatch", config=count, found=rows)
    else:
        group.E, group.I = count, rows // count
