"""What a config says of quantisation: method, block size, modules left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.config import SKIP_LISTS
from ..checkpoint.tensor import Problem

MAX_NESTED = 6
"""Levels of configs inside configs that are looked at."""
MAX_SIDE = 1 << 20
"""Largest side of a block that is believed."""
QUANTIZATION = ("quantization_config", "compression_config")
PATTERN = re.compile(r"re:|[*?\[\]()^$|\\]")


@dataclass(frozen=True)
class Settings:
    """The part of a config that scales are judged by.

    Attributes:
        method: `quant_method`, or None without one.
        block: rows and columns of a block of `[out, in]` weights, or None: not in blocks.
        skip: names of modules that stay as they are, in order.
        patterns: entries of the list that are expressions, not names.
        listed: whether the config has such a list.
        fmt, activation: `fmt` and `activation_scheme` as they are, None without.
        problems: values that make no sense.
    """

    method: str | None = None
    block: tuple[int, int] | None = None
    skip: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    listed: bool = False
    fmt: Any = None
    activation: Any = None
    problems: list[Problem] = field(default_factory=list)


def read_settings(config: dict[str, Any]) -> Settings:
    """The quantisation settings of a config, of its own or of a nested one."""
    problems: list[Problem] = []
    for key, values in _candidates(config):
        if not isinstance(values, dict):
            message = f"{key}: found {str(values)[:60]}, expected an object"
            problems.append(Problem("bad-quantization", message, file="config.json"))
            continue
        method = values.get("quant_method")
        block = _block(values, problems)
        names = next((values[k] for k in SKIP_LISTS if values.get(k) is not None), None)
        if isinstance(names, dict) and names.get("type") == "list":
            names = None  # a record stream tells length and head of long lists: nothing to judge
        skip, patterns = _names(names, problems)
        return Settings(
            method if isinstance(method, str) else None,
            block,
            skip,
            patterns,
            names is not None,
            values.get("fmt"),
            values.get("activation_scheme"),
            problems,
        )
    return Settings(problems=problems)


def _candidates(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of those that say something, outer ones first; models of models nest their
    configs."""
    level: list[dict[str, Any]] = [config]
    for _ in range(MAX_NESTED):
        for values in level:
            for key in QUANTIZATION:
                if values.get(key) not in (None, {}):
                    yield key, values[key]
        inner = [(k, v) for values in level for k, v in values.items() if k not in QUANTIZATION]
        level = [v for k, v in inner if isinstance(v, dict) and k.endswith("_config")]


def without_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """A config without its quantisation, whatever level it stands at."""
    return {
        k: without_quantization(v) if isinstance(v, dict) else v
        for k, v in config.items()
        if k not in QUANTIZATION
    }


def _block(values: dict[str, Any], problems: list[Problem]) -> tuple[int, int] | None:
    given = values.get("weight_block_size")
    if given is None:
        given = _block_structure(values.get("config_groups"))
    if given is None:
        return None
    sound = (
        isinstance(given, list)
        and len(given) == 2
        and all(type(n) is int and 0 < n <= MAX_SIDE for n in given)
    )
    if sound:
        return given[0], given[1]
    message = f"weight_block_size: found {str(given)[:60]}, expected two positive numbers"
    problems.append(Problem("bad-block", message, file="config.json"))
    return None


def _block_structure(groups: Any) -> Any:
    """The block of compressed-tensors: `config_groups.*.weights.block_structure`."""
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        structure = weights.get("block_structure") if isinstance(weights, dict) else None
        if isinstance(structure, str) and re.fullmatch(r"[0-9]{1,7}x[0-9]{1,7}", structure):
            return [int(n) for n in structure.split("x")]
        if structure is not None:
            return structure
    return None


def _names(names: Any, problems: list[Problem]) -> tuple[list[str], list[str]]:
    if names is None:
        return [], []
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        message = f"modules_to_not_convert: found {str(names)[:60]}, expected a list of names"
        problems.append(Problem("bad-skip-list", message, file="config.json"))
        return [], []
    patterns = [n for n in names if PATTERN.search(n)]
    held = set(patterns)
    return [n for n in dict.fromkeys(names) if n not in held], patterns
