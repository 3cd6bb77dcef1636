"""A planned result, judged as any checkpoint is, before a byte of it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..checkpoint.tensor import Problem, Tensor
from ..checkpoint.writer import Entry
from .detect import detect
from .group import DIRECT, TRANSPOSED, Group
from .names import FUSED, SPLIT, STACKED
from .target import group_name, is_turned


def judge(
    entries: Sequence[Entry], config: dict[str, Any], converted: Sequence[Group], to: str
) -> Iterator[Problem]:
    """What is wrong with it: names that are taken, experts that detection would not find in the
    layout that was asked for (two stacked banks whose sides are equal fit both orientations).

    Args:
        entries: all tensors of the result.
        config: of the result.
        converted: groups of the source that are stored as `to`.
    """
    counts = Counter(e.name for e in entries)
    taken = [(name, n) for name, n in counts.items() if n > 1]
    for name, n in taken:
        yield Problem("name-taken", f"result: {n} tensors would have this name", name=name)
    if taken:
        return
    tensors = (Tensor(e.name, e.dtype, e.shape, "", 0, e.nbytes) for e in entries)
    detection = detect(tensors, config)
    for p in detection.as_problems():
        yield Problem(p.code, f"result: {p.message}", name=p.name)
    if detection.problems:
        return
    groups = {g.name: g for g in detection.groups}
    for group in converted:
        name, wanted = group_name(group), _expected(group, to)
        got = (groups[name].layout, groups[name].orientation) if name in groups else None
        if got != wanted:
            message = f"{name}: result: layout: found {got}, expected {wanted}"
            yield Problem("ambiguous-orientation", message)


def _expected(group: Group, to: str) -> tuple[str, str | None]:
    """Layout and orientation of a converted group; without a gate a fused one has two banks, as a
    stacked one has."""
    if to == SPLIT:
        return SPLIT, None
    layout = FUSED if to != STACKED and group.gated else STACKED
    return layout, TRANSPOSED if is_turned(to) else DIRECT
