"""What a new layout of experts changes in config.json: names of modules, and sides of blocks."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..fp8.settings import PATTERN, QUANTIZATION, SKIP_LISTS
from .group import Group, quantised
from .names import WEIGHT
from .target import Target, group_name

Json = dict[str, Any]
BLOCK_SIZE = "weight_block_size"


@dataclass(frozen=True)
class Moved:
    """A group with the tensors that it becomes."""

    group: Group
    targets: list[Target]
    split: bool


def changed(config: Json, moved: list[Moved], names: Collection[str], flip: bool) -> Json:
    """The config of the result; the same object where nothing changes.

    Args:
        names: of all tensors of the result.
        flip: the sides of blocks change places (`can_flip`).
    """
    new = copy.deepcopy(config)
    for values in _quantizations(new):
        for key in SKIP_LISTS:
            given = values.get(key)
            if isinstance(given, list) and all(isinstance(n, str) for n in given):
                values[key] = _renamed(given, moved, names)
        if flip and BLOCK_SIZE in values:
            values[BLOCK_SIZE] = values[BLOCK_SIZE][::-1]
    return config if new == config else new


def can_flip(config: Json, groups: list[Group], others: Iterable[Group], alone: bool) -> bool:
    """Whether `weight_block_size` may change for groups that are transposed: it is said once, and
    nothing else has such blocks.

    Args:
        groups: those whose blocks change their sides.
        others: all other groups.
        alone: no tensor beside experts has scales of blocks.
    """
    said = [q[BLOCK_SIZE] for q in _quantizations(config) if q.get(BLOCK_SIZE) is not None]
    blocks = {g.block for g in groups}
    if len(blocks) != 1 or said != [list(b) for b in blocks if b]:
        return False
    return alone and not any(g.scale_per == "block" and not g.packed for g in others)


def _quantizations(values: Json, depth: int = 6) -> Iterator[Json]:
    """The quantisation settings of a config, of its own and of nested ones."""
    for key, value in values.items():
        if not isinstance(value, dict):
            continue
        if key in QUANTIZATION:
            yield value
        elif depth:
            yield from _quantizations(value, depth - 1)


def _renamed(given: list[str], moved: list[Moved], names: Collection[str]) -> list[str]:
    """A list of modules that are left as they are, with the new names of those that moved.

    An expression, or the end of a name, cannot be renamed. Where the list has some, all groups that
    moved and are not quantised are added by name: that says of them what is so.
    """
    entries = set(given)
    new: dict[str, dict[str, None]] = {}
    added: dict[str, None] = {}
    for m in moved:
        for old, module in _modules(m):
            for key in {old, *_holders(old, m.group.name)} & entries:
                if not f"{module}.".startswith(f"{key}."):
                    new.setdefault(key, {})[module] = None
        if m.group.scale_suffix is None and not quantised(m.group.dtype or ""):
            by_end = any(not entries.isdisjoint(_ends(old)) for old, _ in _modules(m))
            if by_end or any(map(PATTERN.search, entries)):
                added[group_name(m.group)] = None
    ordered = sorted(names) if new else []
    out: dict[str, None] = {}
    for entry in given:
        if entry not in new or _names_some(ordered, entry):
            out[entry] = None
        out.update(new.get(entry, {}))
    covered = tuple(f"{n}." for n in out)
    added = {n: None for n in added if n not in out and not f"{n}.".startswith(covered)}
    return [*out, *added]


def _modules(moved: Moved) -> Iterator[tuple[str, str]]:
    """(module, module that it becomes) of the weights; banks are of the experts module itself."""
    for target in moved.targets:
        if target.part != WEIGHT:
            continue
        name = target.name.removesuffix(".weight")
        module = name if moved.split else group_name(moved.group)
        for source in target.sources():
            old = source.name.removesuffix(".weight")
            yield old, old if source.name == target.name else module


def _holders(module: str, group: str) -> Iterator[str]:
    """The modules inside the group that hold a module, and the group."""
    while len(module) > len(group):
        module = module.rpartition(".")[0]
        yield module


def _ends(module: str) -> list[str]:
    """All that `module` ends with, by whole components, but itself."""
    parts = module.split(".")
    return [".".join(parts[i:]) for i in range(1, len(parts))]


def _names_some(ordered: list[str], entry: str) -> bool:
    """Whether a tensor of these is the module `entry`, or lies in it."""
    for name in (entry, f"{entry}."):
        at = bisect_left(ordered, name)
        if at < len(ordered) and (ordered[at] == entry or ordered[at].startswith(f"{entry}.")):
            return True
    return False
