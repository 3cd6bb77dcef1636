"""What a config says of a group's sizes: a cross-check, never the reason for a layout.

A config may describe several towers (`thinker_config`, `talker_config`), and one tower two kinds of
experts (`gen_num_experts`). Which of its numbers are about a group is decided by words that its
name shares with their keys; where that leaves several, each of them is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

_COUNT = re.compile(r"(?:(.+)_)?(?:num|n)_(?:(?:local|routed|moe)_)?experts")
_HIDDEN = ("hidden_size", "d_model", "n_embd", "model_dim", "dim")
_INNER = (
    "moe_intermediate_size",
    "expert_intermediate_size",
    "moe_ffn_hidden_size",
    "expert_ffn_hidden_size",
    "ffn_hidden_size",
    "intermediate_size",
)
_QUANTIZATION = ("quantization_config", "compression_config")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_PLAIN = frozenset(("text", "llm", "language", "model", "decoder", "moe", "ffn", "backbone"))
"""Words that say nothing of which tower is meant."""
_SAME = {"visual": "vision", "vit": "vision"}
_DEPTH, _SECTIONS = 6, 200
"""Bounds for configs that are nested beyond sense."""


class Sizes(NamedTuple):
    """What the config says of one group; empty sets where it says nothing.

    Attributes:
        experts, hidden, inner: values of E, H and I that it allows.
        block: rows and columns of stored weights that share a scale, or None.
        run: values that share a scale along the input axis of packed weights.
    """

    experts: frozenset[int]
    hidden: frozenset[int]
    inner: frozenset[int]
    block: tuple[int, int] | None
    run: int


PACKED_RUN = 32
"""Values that share a scale where two are in a byte, unless the config has another number."""


@dataclass
class _Section:
    """A dict of the config, with those around it, and the words that lead to it."""

    around: tuple[dict[str, Any], ...]
    words: frozenset[str] = field(default_factory=frozenset)

    @property
    def values(self) -> dict[str, Any]:
        return self.around[0]


class ConfigSizes:
    """The sizes of a whole config; `of(group)` gives those of a group."""

    def __init__(self, config: dict[str, Any]) -> None:
        sections = list(islice(_walk((config,), frozenset()), _SECTIONS))
        self._sections = [s for s in sections if _names_sizes(s.values)]
        self._quantizations = [
            q for s in sections for k in _QUANTIZATION if isinstance(q := s.values.get(k), dict)
        ]

    def of(self, group: str) -> Sizes:
        """What the config says of the group of that name."""
        parts = re.split(r"[._/]", group.lower())
        words = frozenset(_SAME.get(w, w) for w in parts)
        layer = next((int(p) for p in reversed(parts) if _small(p)), None)
        chosen = self._about(words)
        experts: set[int] = set()
        hidden: set[int] = set()
        inner: set[int] = set()
        for section in chosen:
            experts |= _counts(section, words, layer)
            hidden |= _first(section, _HIDDEN, layer)
            inner |= _first(section, _INNER, layer)
        block, run = self._block(chosen)
        return Sizes(frozenset(experts), frozenset(hidden), frozenset(inner), block, run)

    def _about(self, words: frozenset[str]) -> list[_Section]:
        """The sections that share most words with a group's name, and have fewest others."""

        def rank(section: _Section) -> tuple[int, int, bool]:
            matched = len(section.words & words)
            return -matched, len(section.words) - matched, not _has_count(section.values)

        best = min(map(rank, self._sections), default=None)
        return [s for s in self._sections if rank(s) == best]

    def _block(self, chosen: list[_Section]) -> tuple[tuple[int, int] | None, int]:
        near = [
            q
            for section in chosen
            for values in section.around
            for k in _QUANTIZATION
            if isinstance(q := values.get(k), dict)
        ]
        quantization = next(iter(near or self._quantizations), {})
        block = quantization.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2 and all(map(_positive, block)):
            rows, columns = block
            return (rows, columns), columns if rows == 1 else _run(quantization)
        return None, _run(quantization)


def _run(quantization: dict[str, Any]) -> int:
    """The `group_size` of a quantization config, wherever it is in it, if there is only one."""
    found: set[int] = set()
    for section in islice(_walk((quantization,), frozenset()), _SECTIONS):
        size = section.values.get("group_size")
        if type(size) is int and size > 0:
            found.add(size)
    return found.pop() if len(found) == 1 else PACKED_RUN


def _walk(around: tuple[dict[str, Any], ...], words: frozenset[str]) -> Iterator[_Section]:
    yield _Section(around, words)
    if len(around) > _DEPTH:
        return
    for key, value in around[0].items():
        if isinstance(value, dict) and key not in _QUANTIZATION:
            own = frozenset(key.lower().removesuffix("_config").split("_")) - _PLAIN
            yield from _walk((value, *around), words | {_SAME.get(w, w) for w in own})


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _small(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 8


def _has_count(values: dict[str, Any]) -> bool:
    return any(map(_COUNT.fullmatch, values))


def _names_sizes(values: dict[str, Any]) -> bool:
    return not values.keys().isdisjoint(_HIDDEN) or _has_count(values)


def _counts(section: _Section, words: frozenset[str], layer: int | None) -> set[int]:
    """Numbers of experts: those of keys whose own words the group shares, else the plain ones."""
    ranked: dict[int, set[int]] = {}
    for key, value in section.values.items():
        match = _COUNT.fullmatch(key)
        if match is None:
            continue
        own = frozenset((match[1] or "").split("_")) - _PLAIN - {""}
        if own <= words:
            ranked.setdefault(len(own), set()).update(_numbers(section, value, layer, total=True))
    return next((ranked[n] for n in sorted(ranked, reverse=True) if ranked[n]), set())


def _first(section: _Section, keys: tuple[str, ...], layer: int | None) -> set[int]:
    """Values of the first key that the section, or the nearest around it, has a number for."""
    for values in section.around:
        for key in keys:
            found = _numbers(section, values.get(key), layer)
            if found:
                return found
    return set()


def _numbers(section: _Section, value: Any, layer: int | None, total: bool = False) -> set[int]:
    """A number; of a list with one for each layer that of the layer; of other lists all, or their
    sum (two populations in one list of experts)."""
    if _positive(value):
        return {value}
    if not isinstance(value, list) or not value or not all(type(v) is int for v in value):
        return set()
    layers = next((v[k] for v in section.around for k in _LAYERS if _positive(v.get(k))), None)
    if len(value) == layers:
        one = [value[layer]] if layer is not None and layer < layers else value
        return {v for v in one if v > 0}
    return {sum(value)} if total else {v for v in value if v > 0}
