"""What a conversion would leave under names that mean nothing any more."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from ..checkpoint.tensor import Problem, Tensor
from .group import Group
from .names import SPLIT

_SHOWN = 3
_NUMBERED = re.compile(r"(?:expert_)?\d+\.")
_BANK_END = re.compile(r"(?:[._]weight|_blocks)?$")


def left_behind(groups: Collection[Group], tensors: Iterable[Tensor]) -> Iterator[Problem]:
    """A problem for each group with tensors that are neither weight nor scale nor bias.

    Args:
        groups: those that are converted.
        tensors: all of the checkpoint.
    """
    taken = {t.name for g in groups for t in g.tensors()}
    stems = {g.name: _stems(g) for g in groups}
    left: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        name = tensor.name
        if name in taken or ("experts" not in name and "moe" not in name):
            continue
        for dot in re.finditer(r"\.", name):
            group, tail = name[: dot.start()], name[dot.end() :]
            if group in stems and (_NUMBERED.match(tail) or tail.startswith(stems[group])):
                left.setdefault(group, []).append(tensor)
                break
    for group, found in left.items():
        shown = ", ".join(t.name.removeprefix(f"{group}.") for t in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        message = f"parts of experts that are not known: found {shown}{more}, expected none"
        yield Problem("unrecognized-layout", f"{group}: {message}", file=found[0].file)


def _stems(group: Group) -> tuple[str, ...]:
    """How tails of tensors begin that belong to a bank: `gate_up_proj_`, `gate_up_proj.`."""
    if group.layout == SPLIT:
        return ()
    tails = (
        t.name.removeprefix(f"{group.name}.")
        for rows in group.weights.values()
        for t in rows.values()
    )
    return tuple(_BANK_END.sub("", tail) + end for tail in tails for end in "._")
