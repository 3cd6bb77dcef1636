"""Groups with one matrix for each expert and projection: gate and up [I, H], down [H, I]."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..checkpoint.tensor import Tensor
from .config_sizes import Sizes
from .containers import Family
from .group import BYTES, DTYPE, SHAPE, Group, check_count, check_hidden, most_common
from .names import DOWN, GATE, UP

MAX_LISTED = 4096
"""Missing experts that a problem lists; a name may claim to be expert 10^14."""
Shape = tuple[int, ...]


def examine_split(group: Group, family: Family, sizes: Sizes, tower_gated: bool) -> None:
    """Fill E, H, I and packing of a group of matrices, and note what is wrong.

    Args:
        tower_gated: other layers of the tower have a gate.
    """
    assert family.kit is not None
    rows = family.weights
    gated = family.kit.gateless is None or family.has(GATE) or tower_gated
    if gated and GATE not in family.kit.roles.values():
        gated = False
    group.naming = family.kit.naming if gated else family.kit.gateless
    group.E = max((max(r) + 1 for r in rows.values() if r), default=None)
    check_count(group, sizes)
    _absent(group, family, sizes, gated)
    _sizes(group, family, sizes)
    check_hidden(group, sizes)
    if group.H is None:
        firsts = (min(r.values()) for r in rows.values() if r)
        group.report_tensors(
            "unrecognized-layout", ((t.name, {"shape": list(t.shape)}) for t in firsts)
        )
        return
    if not _is_uniform(group, family) and not _populations(group, family):
        group.report_tensors("shape-mismatch", _misshapen(group, family))
    if isinstance(group.I, int):
        _biases(group, family)


def _absent(group: Group, family: Family, sizes: Sizes, gated: bool) -> None:
    """Roles without any expert, and experts that a role lacks."""
    total = max(group.E or 0, *(sizes.experts if len(sizes.experts) == 1 else (0,)))
    for role in (GATE, UP, DOWN) if gated else (UP, DOWN):
        rows = family.weights.get(role, {})
        if not rows:
            group.report("missing-projection", role=role)
        elif len(rows) < total:
            _list_absent(group, role, rows, total)


def _list_absent(group: Group, role: str, rows: dict[int, Tensor], total: int, **more: Any) -> None:
    absent = list(islice((j for j in range(total) if j not in rows), MAX_LISTED))
    count = total - len(rows)
    if count > len(absent):
        more["count"] = count
    group.report("missing-expert", role=role, experts=absent, **more)


def _sizes(group: Group, family: Family, sizes: Sizes) -> None:
    """H, I and packing, from the most frequent shapes of both sides of an expert."""

    def usual(*roles: str) -> tuple[int, int] | None:
        rows = [family.weights[r] for r in roles if r in family.weights]
        shape = most_common(rows, SHAPE, lambda shape: len(shape) == 2)
        return shape

    wide, down = usual(GATE, UP), usual(DOWN)
    in_bytes = most_common(family.weights.values(), DTYPE) in BYTES
    if wide is not None:
        group.I, half = wide
        if in_bytes and down is not None:
            group.packed = down == (2 * half, wide[0] // 2) and wide[0] % 2 == 0
        elif in_bytes:
            group.packed = 2 * half in sizes.hidden and half not in sizes.hidden
        group.H = 2 * half if group.packed else half
    elif down is not None:
        group.H, half = down
        group.packed = in_bytes and 2 * half in sizes.inner and half not in sizes.inner
        group.I = 2 * half if group.packed else half


def _expected(group: Group, role: str, inner: int) -> Shape:
    assert group.H is not None
    per_byte = 2 if group.packed else 1
    return (group.H, inner // per_byte) if role == DOWN else (inner, group.H // per_byte)


def _is_uniform(group: Group, family: Family) -> bool:
    assert isinstance(group.I, int)
    return all(
        set(map(SHAPE, rows.values())) <= {_expected(group, role, group.I)}
        for role, rows in family.weights.items()
    )


def _misshapen(group: Group, family: Family) -> Iterator[tuple[str, dict[str, Any]]]:
    assert isinstance(group.I, int)
    for role, rows in family.weights.items():
        expected = _expected(group, role, group.I)
        for t in rows.values():
            if t.shape != expected:
                yield t.name, {"shape": list(t.shape), "expected": list(expected)}


def _populations(group: Group, family: Family) -> bool:
    """Two kinds of experts in one list, as in Ernie 4.5 VL: the halves differ in I alone.

    Only when every matrix of each half fits; then I becomes the pair.
    """
    assert group.E is not None
    half, odd = divmod(group.E, 2)
    if odd or group.packed or any(len(rows) != group.E for rows in family.weights.values()):
        return False
    inner: tuple[int, ...] = ()
    for experts in (range(half), range(half, group.E)):
        rows = family.weights.get(UP, {})
        shape = rows[experts[0]].shape if experts and rows else ()
        if len(shape) != 2:
            return False
        for role, rows in family.weights.items():
            expected = _expected(group, role, shape[0])
            if any(rows[j].shape != expected for j in experts):
                return False
        inner += (shape[0],)
    group.I = inner
    return True


def _biases(group: Group, family: Family) -> None:
    """Biases of matrices: gate and up [I], down [H]; all experts of a role have one, or none."""
    assert isinstance(group.I, int)
    wrong = []
    for role in (GATE, UP, DOWN):
        rows = family.biases.get(role, {})
        weights = family.weights.get(role, {})
        if rows and any(j not in rows for j in weights):
            absent = [j for j in weights if j not in rows]
            group.report("missing-expert", role=role, experts=sorted(absent), part="bias")
        expected = (group.H if role == DOWN else group.I,)
        wrong += [
            (t.name, {"shape": list(t.shape), "expected": list(expected)})
            for t in rows.values()
            if t.shape != expected
        ]
    group.report_tensors("shape-mismatch", wrong)
