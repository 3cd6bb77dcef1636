"""Tensors sorted into the containers that they are in. One pass; it takes part in every census.

150,000 names go through `collect`, so nothing is made for each of them but its entry in a dict, and
what a name means is looked up once for each group and kind of tensor, not for each expert.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any

from ..checkpoint.tensor import Tensor
from .names import (
    BIAS,
    BLOCKS,
    CONTAINERS,
    DOWN,
    EXPERT,
    FUSED,
    GATE,
    GATE_UP,
    KITS,
    LAYOUTS,
    MODULES,
    NOT_ROUTED,
    NUMBERED_FC,
    SPLIT,
    SPLIT_PARTS,
    STACKED,
    UP,
    WEIGHT,
    Bank,
    Kit,
)

MAX_DIGITS = 15
"""Digits of an expert's number; more are not a number of anything, and JSON could not say them."""
BANK = -1
"""The key under which a tensor of all experts stands where others have an expert's number."""

Rows = dict[int, Tensor]
"""Tensors by expert number, or one bank under BANK."""


@dataclass(slots=True)
class Family:
    """What a container holds in one layout.

    Attributes:
        layout: one of LAYOUTS.
        kit: the set of names, where matrices are split.
        stems: of the weights of a bank, {role: stem}.
        weights, biases: {role: Rows}.
        scales: {role: Rows}, those of the most frequent suffix first.
        suffix: the most frequent suffix of scales, or None without any.
        extra_scales: scales of weights that have some already.
        doubles: names of tensors that hold a role another tensor of this layout holds already.
        blocks: roles whose weights are MXFP4 blocks.
    """

    layout: str
    kit: Kit | None = None
    stems: dict[str, str] = field(default_factory=dict)
    weights: dict[str, Rows] = field(default_factory=dict)
    biases: dict[str, Rows] = field(default_factory=dict)
    scales: dict[str, Rows] = field(default_factory=dict)
    suffix: str | None = None
    extra_scales: list[Tensor] = field(default_factory=list)
    doubles: list[str] = field(default_factory=list)
    blocks: set[str] = field(default_factory=set)

    def has(self, role: str) -> bool:
        """Whether there is any weight of that role."""
        return bool(self.weights.get(role))

    @property
    def gated(self) -> bool:
        """Whether there is a gate, by itself or fused with up."""
        return self.has(GATE) or self.has(GATE_UP)

    @property
    def complete(self) -> bool:
        """Whether each role has some weight; not whether it has those of all experts."""
        return self.has(DOWN) and (self.has(UP) or self.has(GATE_UP))


@dataclass(slots=True)
class Container:
    """One experts module, for example `model.layers.0.mlp.experts`.

    Attributes:
        name: its path.
        families: by layout and set of names, in the order of LAYOUTS.
        unknown: number of tensors of known projections and unknown kind (`qweight`), with the first
            of their names.
    """

    name: str
    families: list[Family] = field(default_factory=list)
    unknown: int = 0
    first_unknown: str | None = None


@dataclass(slots=True)
class Collected:
    """Containers by name, and names that came twice: {name: files}."""

    containers: dict[str, Container]
    doubled: dict[str, list[str]]


class _Numbers(dict[str, int | None]):
    """Expert numbers by their text, each parsed once; None for what is no plain number."""

    def __missing__(self, text: str) -> int | None:
        plain = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
        number = int(text) if plain and (text == "0" or text[0] != "0") else None
        self[text] = number
        return number


_Split = dict[str, Rows]
_WITHIN = ".experts."
_NAME, _HEAD, _TAIL = map(itemgetter, (0, 0, 2))
_NO_PLAN: Any = object()
_BLOCK = 4096
"""Names that are taken apart at once, so that the pieces stay in the processor's cache."""
_Plan = list[tuple[str, list[int], list[int]]]


def _plan(tails: Sequence[str], numbers: _Numbers) -> _Plan | None:
    """How tails NUMBER.LEAF are sorted: (leaf, numbers, places in the sequence) of each leaf. None
    if a tail has no such form, or comes twice."""
    if len(set(tails)) != len(tails):
        return None
    plan: dict[str, tuple[list[int], list[int]]] = {}
    for place, tail in enumerate(tails):
        number, _, leaf = tail.partition(".")
        expert = numbers[number]
        if expert is None:
            return None
        of_leaf = plan.setdefault(leaf, ([], []))
        of_leaf[0].append(expert)
        of_leaf[1].append(place)
    return [(leaf, *of_leaf) for leaf, of_leaf in plan.items()]


def _sort_layers(
    tensors: Sequence[Tensor], split: dict[str, _Split], numbers: _Numbers
) -> Iterator[Tensor]:
    """Sort whole layers whose names are all PATH.experts.NUMBER.LEAF; returns the other tensors.

    Where there are very many tensors they are of such layers, and the tails of one are those of the
    next. So they are sorted by one plan, without a line of Python for each of them.
    """
    runs: list[tuple[str, int, int]] = []
    layers: dict[str, tuple[list[str], list[Tensor]]] = {}
    for start in range(0, len(tensors), _BLOCK):
        names = map(_NAME, tensors[start : start + _BLOCK])
        for head, run in groupby(map(str.rpartition, names, repeat(_WITHIN)), _HEAD):
            tails = list(map(_TAIL, run))
            end = start + len(tails)
            runs.append((head, start, end))
            if head:
                layer = layers.setdefault(head, ([], []))
                layer[0].extend(tails)
                layer[1].extend(tensors[start:end])
            start = end
    plans: dict[tuple[str, ...], _Plan | None] = {}
    done = set()
    for head, (tails, rows) in layers.items():
        key = tuple(tails)
        plan = plans.get(key, _NO_PLAN)
        if plan is _NO_PLAN:
            plan = plans[key] = _plan(key, numbers)
        if plan is None:
            continue
        done.add(head)
        for leaf, experts, places in plan:
            of_leaf = map(rows.__getitem__, places)
            split[head + _WITHIN[:-1]][leaf] = dict(zip(experts, of_leaf, strict=True))
    for head, start, end in runs:
        if head not in done:
            yield from tensors[start:end]


def collect(tensors: Sequence[Tensor]) -> Collected:
    """Sort tensors into containers; those of no container are passed over."""
    numbers = _Numbers()
    split: dict[str, _Split] = defaultdict(lambda: defaultdict(dict))
    rest: dict[str, list[tuple[str, Tensor]]] = defaultdict(list)
    doubled: dict[str, list[str]] = {}
    for tensor in _sort_layers(tensors, split, numbers):
        name = tensor[0]
        at = name.rfind(_WITHIN)
        if at >= 0:
            number, _, leaf = name[at + 9 :].partition(".")
            expert = numbers[number]
            if expert is not None:
                rows = split[name[: at + 8]][leaf]
                if expert in rows:
                    doubled.setdefault(name, [rows[expert].file]).append(tensor.file)
                rows[expert] = tensor
                continue
        elif "moe." not in name and not name.startswith("experts.") and "/experts." not in name:
            continue
        path, tail = _parted(name)
        number, _, leaf = tail.removeprefix(EXPERT).partition(".")
        expert = numbers[number] if path.endswith("experts") else None
        if expert is None:
            rest[path].append((tail, tensor))
            continue
        rows = split[path][EXPERT + leaf if tail.startswith(EXPERT) else leaf]
        if expert in rows:
            doubled.setdefault(name, [rows[expert].file]).append(tensor.file)
        rows[expert] = tensor
    containers = {}
    for path in split.keys() | rest.keys():
        if NOT_ROUTED.isdisjoint(path.split(".")):
            container = Container(path)
            _split_families(container, split.get(path, {}))
            _bank_families(container, rest.get(path, []), doubled)
            if container.families or container.unknown:
                containers[path] = container
    return Collected(containers, doubled)


def _last(part: str) -> str:
    """A part of a path without the component before it, which the first part has: `one/experts`."""
    return part.rpartition("/")[2]


def _parted(name: str) -> tuple[str, str]:
    """(path of the container, tail) of a name; ("", name) if it has no container."""
    parts = name.split(".")
    for i in range(len(parts) - 2, -1, -1):
        if _last(parts[i]) in CONTAINERS:
            return ".".join(parts[: i + 1]), ".".join(parts[i + 1 :])
    return "", name


def _note_unknown(container: Container, names_: Iterable[str], count: int) -> None:
    first = min(names_)
    if container.first_unknown is None or first < container.first_unknown:
        container.first_unknown = first
    container.unknown += count


def _split_families(container: Container, split: _Split) -> None:
    """Families of matrices: one, unless sets of names are mixed."""
    kits: dict[tuple[bool, str], dict[str, dict[str, Rows]]] = {}
    for leaf, rows in split.items():
        numbered = leaf.startswith(EXPERT)
        stem, _, part = leaf.removeprefix(EXPERT).partition(".")
        kit = MODULES.get(stem)
        if kit is None or "lora" in part:
            continue
        if part in SPLIT_PARTS:
            parts = kits.setdefault((numbered, kit.naming), {})
            parts.setdefault(stem, {})[SPLIT_PARTS[part]] = rows
        else:
            _note_unknown(container, (t.name for t in rows.values()), len(rows))
    for (numbered, naming), stems in sorted(kits.items()):
        kit = next(k for k in KITS if k.naming == naming)
        if numbered and naming == "fc1-fc3-fc2" and "fc3" not in stems:
            kit = NUMBERED_FC
        family = Family(SPLIT, kit)
        scales: dict[str, dict[str, Rows]] = {}
        for stem, kinds in stems.items():
            role = kit.roles[stem]
            for kind, tensors in kinds.items():
                if kind == WEIGHT:
                    family.weights[role] = tensors
                elif kind == BIAS:
                    family.biases[role] = tensors
                else:
                    scales.setdefault(kind, {})[role] = tensors
        _take_scales(family, scales)
        container.families.append(family)


def _bank_families(
    container: Container, tails: list[tuple[str, Tensor]], doubled: dict[str, list[str]]
) -> None:
    """Families of banks. What fused and stacked groups share goes with what is there of either."""
    table = CONTAINERS.get(_last(container.name.rpartition(".")[2]), {})
    found: dict[str, tuple[Bank, Tensor]] = {}
    for tail, tensor in tails:
        bank = table.get(tail)
        if bank is None:
            stem, _, part = tail.partition(".")
            if stem in table and part and "lora" not in part:
                _note_unknown(container, (tensor.name,), 1)
            continue
        if tensor.name in found:
            first = found[tensor.name][1].file
            doubled.setdefault(tensor.name, [first]).append(tensor.file)
        found[tensor.name] = bank, tensor
    layouts = {bank.layout for bank, _ in found.values()} - {None}
    shared = FUSED if FUSED in layouts or STACKED not in layouts else STACKED
    families: dict[str, Family] = {}
    by_layout: dict[str, dict[str, dict[str, Rows]]] = {}
    for name, (bank, tensor) in sorted(found.items()):
        layout = bank.layout or shared
        family = families.setdefault(layout, Family(layout))
        rows = {BANK: tensor}
        if bank.part == BIAS:
            family.biases[bank.role] = rows
        elif bank.part not in (WEIGHT, BLOCKS):
            suffixes = by_layout.setdefault(layout, {})
            suffixes.setdefault(bank.part, {})[bank.role] = rows
        elif bank.role in family.weights:
            family.doubles.append(name)
        else:
            family.weights[bank.role] = rows
            family.stems[bank.role] = bank.stem
            if bank.part == BLOCKS:
                family.blocks.add(bank.role)
    for layout in LAYOUTS:
        if layout in families:
            _take_scales(families[layout], by_layout.get(layout, {}))
            container.families.append(families[layout])


def _take_scales(family: Family, by_suffix: dict[str, dict[str, Rows]]) -> None:
    """One scale for each weight, of the most frequent suffix that has it; the others are extra."""
    count = {suffix: sum(map(len, roles.values())) for suffix, roles in by_suffix.items()}
    for suffix in sorted(count, key=lambda s: (-count[s], s)):
        family.suffix = family.suffix or suffix
        for role, rows in by_suffix[suffix].items():
            have = family.scales.get(role)
            if have is None:
                family.scales[role] = rows
                continue
            family.extra_scales += [t for expert, t in rows.items() if expert in have]
            family.scales[role] = {**rows, **have}
