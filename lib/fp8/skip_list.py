"""`modules_to_not_convert` against the tensors: whether each name is a module left as it is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..checkpoint.tensor import Problem, Tensor
from .pairs import FP8, Pairs, is_scale

_SHOWN = 8


@dataclass(frozen=True)
class SkipList:
    """The list, judged.

    Attributes:
        listed: its names, without expressions.
        unresolved: names that no tensor belongs to.
        stored_as_fp8: names whose weight is stored in FP8.
        unlisted: matrices that are not stored in FP8 and that the list does not name; None where
            the list holds expressions.
    """

    listed: int = 0
    unresolved: list[str] = field(default_factory=list)
    stored_as_fp8: list[str] = field(default_factory=list)
    unlisted: int | None = None
    problems: list[Problem] = field(default_factory=list)


def judge(pairs: Pairs, tensors: Sequence[Tensor], names: Collection[str]) -> SkipList:
    """Compare the skip list with the tensors.

    Args:
        names: those of all tensors.
    """
    skip = pairs.settings.skip
    direct = [n for n in skip if f"{n}.weight" in names or n in names]
    rest = sorted(set(skip).difference(direct))
    folders = _folders(rest, names) if rest else []
    inside = tuple(f"{f}." for f in folders)
    weights = {f"{n}.weight": n for n in direct} | {n: n for n in direct}
    wrong, unlisted = [], 0
    for t in tensors:
        name, dtype, shape = t[0], t[1], t[2]
        if dtype in FP8:
            if name in weights or (inside and name.startswith(inside)):
                wrong.append(weights.get(name, name))
        elif (
            len(shape) > 1
            and name.endswith(".weight")
            and name not in weights
            and not is_scale(name)
            and not (inside and name.startswith(inside))
        ):
            unlisted += 1
    wrong = [n for n in wrong if not is_scale(n)]
    unresolved = sorted(set(rest).difference(folders))
    problems = []
    if wrong:
        message = f"modules_to_not_convert: {len(wrong)} names are stored in FP8: {_some(wrong)}"
        problems.append(Problem("skip-list", message, file="config.json", name=wrong[0]))
    if unresolved:
        message = f"modules_to_not_convert: {len(unresolved)} names that no tensor belongs to: "
        message += _some(unresolved)
        problems.append(Problem("skip-unresolved", message, "warning", file="config.json"))
    counted = None if pairs.settings.patterns else unlisted
    return SkipList(len(skip), unresolved, wrong, counted, problems)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _folders(candidates: list[str], names: Collection[str]) -> list[str]:
    """Those that tensors lie under: `model.visual` of `model.visual.blocks.0.norm1.weight`."""
    ordered = sorted(names)
    out = []
    for candidate in candidates:
        at = bisect_left(ordered, f"{candidate}.")
        if at < len(ordered) and ordered[at].startswith(f"{candidate}."):
            out.append(candidate)
    return out
