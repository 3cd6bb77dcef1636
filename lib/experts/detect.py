"""Which layout the experts of a checkpoint have, and what is wrong with them. From headers alone.

Neither `model_type` nor `architectures` is consulted: a loader's recipe says what it accepts, not
what a file holds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.tensor import Checkpoint, Problem, Tensor, in_components
from .banks import examine_banks
from .config_sizes import ConfigSizes
from .containers import Container, Family, collect
from .group import Found, Group, check_dtypes
from .messages import message
from .names import DOWN, FUSED, SHARED, SPLIT, STACKED
from .scales import examine_scales
from .split import examine_split

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_SUMMED = ("layout", "orientation", "naming", "E", "H", "I", "dtype", "scales")


@dataclass(slots=True)
class Detection:
    """The groups of experts of a checkpoint, in order of their names.

    Attributes:
        groups: one for each experts module.
        index_problems: what is wrong with shards and index, told before `problems`.
        files: {tensor that the problem of a group names: its file}.
    """

    groups: list[Group] = field(default_factory=list)
    index_problems: list[Found] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[Found]:
        """Everything wrong, each with its `code`, its place and details."""
        return self.index_problems + [p for g in self.groups for p in g.problems]

    @property
    def mixed(self) -> bool:
        """Whether groups differ in layout or orientation; that is no problem."""
        return len({(g.layout, g.orientation) for g in self.groups}) > 1

    @property
    def exit(self) -> int:
        """0, or 1 with problems."""
        return 1 if self.index_problems or any(g.problems for g in self.groups) else 0

    def records(self) -> Iterator[dict[str, Any]]:
        """Fields of `expert-group` records."""
        return (g.record() for g in self.groups)

    def summary(self) -> dict[str, Any] | None:
        """What all groups have in common, or a sorted list where they differ; None without any."""
        if not self.groups:
            return None
        records = [g.record() for g in self.groups]
        common = {key: _common(r.get(key) for r in records) for key in _SUMMED}
        out = {key: common[key] for key in _SUMMED[:3]} | {"groups": len(records)}
        return out | {key: common[key] for key in _SUMMED[3:]} | {"mixed": self.mixed}

    def as_problems(self, index: bool = True) -> list[Problem]:
        """The problems as other commands report them.

        Args:
            index: with those of shards and index, which opening a checkpoint has found as well.
        """
        chosen = self.problems if index else [p for g in self.groups for p in g.problems]
        found = []
        for p in chosen:
            name = p.get("tensor")
            file = p.get("file") or self.files.get(name or "")
            found.append(Problem(p["code"], message(p), file=file, name=name))
        return found


def _common(values: Iterable[Any]) -> Any:
    found: set[Any] = set()
    for value in values:
        found.update(value if isinstance(value, list) else (value,))
    if len(found) == 1:
        return found.pop()
    return sorted(found, key=lambda v: (v is not None, v if v is not None else 0))


def detect(
    tensors: Iterable[Tensor],
    config: Mapping[str, Any] | None = None,
    index_problems: Iterable[Found] = (),
) -> Detection:
    """The groups of experts among tensors.

    Args:
        tensors: headers of all shards. Where two of a component have one name the last counts, and
            `duplicate-tensor` is reported.
        config: `config.json`; {} or None without one.
        index_problems: what is wrong with shards and index (`index_problems`).
    Returns:
        Groups. Where tensors have components, names begin with COMPONENT/.
    """
    rows = in_components(tensors)
    collected = collect(rows)
    found = list(index_problems)
    known = {p.get("tensor") for p in found if p["code"] == "duplicate-tensor"}
    for name, files in sorted(collected.doubled.items()):
        if name not in known:
            found.append(_doubled(name, files))
    containers = [collected.containers[name] for name in sorted(collected.containers)]
    towers: dict[str, _Tower] = defaultdict(_Tower)
    for container in containers:
        towers[_tower(container.name)].add(_main(container))
    sizes = ConfigSizes(dict(config or {}))
    groups = [_examine(c, towers[_tower(c.name)], sizes) for c in containers]
    told = {p.get("tensor") for g in groups for p in g.problems}
    homes = {t.name: t.file for t in rows if t.name in told} if told else {}
    return Detection(groups, found, homes)


def detect_checkpoint(checkpoint: Checkpoint) -> Detection:
    """The groups of experts of an opened checkpoint; what is wrong with its index and shards."""
    return detect(checkpoint.tensors.values(), checkpoint.config, index_problems(checkpoint))


def index_problems(checkpoint: Checkpoint) -> list[Found]:
    """What opening a checkpoint found wrong between index and shards, by the codes of layouts."""
    found = [_doubled(name, files) for name, files in checkpoint.doubled.items()]
    for p in checkpoint.problems:
        if p.code == "missing-shard":
            found.append({"code": p.code, "file": p.file})
        elif p.code in ("missing-tensor", "misplaced-tensor"):
            code = "index-names-absent-tensor"
            found.append({"code": code, "tensor": p.name, "file": p.file})
    for name in checkpoint.orphans:
        found.append(
            {"code": "not-in-index", "tensor": name, "file": checkpoint.tensors[name].file}
        )
    return sorted(found, key=lambda p: p.get("tensor") or p["file"])


def _doubled(name: str, files: Iterable[str]) -> Found:
    return {"code": "duplicate-tensor", "tensor": name, "files": sorted(files)}


class _Tower:
    """What the layers of a tower have: gates, and whole groups of fused or stacked banks."""

    def __init__(self) -> None:
        self.gated = False
        self.layouts: set[str] = set()

    def add(self, family: Family) -> None:
        self.gated |= family.gated
        if family.complete:
            self.layouts.add(family.layout)


def _tower(group: str) -> str:
    """The name of a group without its layer: groups that differ only there are one tower."""
    return _NUMBER.sub("*", group)


def _examine(container: Container, tower: _Tower, config: ConfigSizes) -> Group:
    sizes = config.of(container.name)
    _name_lone_down(container, tower)
    family = _main(container)
    group = Group(container.name, family.layout)
    others = [f for f in container.families if f is not family]
    _mixed(group, container)
    group.others = container.unknown + sum(len(rows) for f in others for rows in f.weights.values())
    if not any(f.weights for f in container.families) and container.unknown:
        group.naming = family.kit.naming if family.kit else None
        group.report("unrecognized-layout", tensor=container.first_unknown)
        return group
    examine = examine_split if family.layout == SPLIT else examine_banks
    examine(group, family, sizes, tower.gated)
    check_dtypes(group, container.families)
    if _in_a_graph(family):  # its nodes say which scale is whose, names need not
        group.weights, group.biases = family.weights, family.biases
        return group
    examine_scales(group, family, sizes)
    for other in others:
        if not other.weights:
            rows = (t for r in other.scales.values() for t in r.values())
            group.report_tensors("orphan-scale", ((t.name, {}) for t in rows))
    group.weights, group.scales, group.biases = family.weights, family.scales, family.biases
    return group


def _in_a_graph(family: Family) -> bool:
    """Whether the weights are initializers of a graph."""
    firsts = (next(iter(rows.values())) for rows in family.weights.values() if rows)
    return any(t.role is not None for t in firsts)


def _main(container: Container) -> Family:
    """The family that the facts of a group are about: the first that has all roles, else any."""
    families = container.families
    weighed = [f for f in families if f.weights]
    whole = [f for f in weighed if f.complete]
    return next(iter(whole or weighed or families), Family(SPLIT))


def _name_lone_down(container: Container, tower: _Tower) -> None:
    """A lone `down_proj` is of a fused or a stacked group; other layers of the tower tell."""
    if STACKED not in tower.layouts or FUSED in tower.layouts:
        return
    for family in container.families:
        lone = family.layout == FUSED and family.weights.keys() == {DOWN}
        if lone and family.stems[DOWN] in SHARED:
            family.layout = STACKED


def _mixed(group: Group, container: Container) -> None:
    """Note roles that are held twice: by two layouts, two sets of names, or two names."""
    families = [f for f in container.families if f.weights]
    layouts = list(dict.fromkeys(f.layout for f in families))
    if len(layouts) > 1:
        group.report("mixed-in-group", families=layouts)
    elif len(families) > 1:
        namings = [f.kit.naming for f in families if f.kit]
        group.report("mixed-in-group", families=layouts, namings=namings)
    for family in families:
        if family.doubles:
            group.report("mixed-in-group", families=[family.layout], tensors=family.doubles)
