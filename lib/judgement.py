"""What a census says beyond counts: family, completeness, layout of experts, quantisation."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from .census import Counted
from .checkpoint import grouping
from .checkpoint.config import tied
from .checkpoint.gguf_files import is_gguf
from .checkpoint.tensor import Problem
from .experts.detect import detect
from .families import gguf, recognise
from .fp8.preflight import preflight

_NAME = itemgetter(0)


def judge(counted: Counted) -> dict[str, Any]:
    """Fields of a summary that need more than counting; what is wrong goes to `counted.problems`.

    Returns:
        tied, family, components, expert_layout, quantization (docs/census.md).
    """
    if len(counted.parts) > 1:
        return _judge_each(counted)
    names = frozenset(map(_NAME, counted.tensors))
    family = recognise.recognise(counted.config, names)
    whole = {} if counted.partial else counted.config
    components, found = recognise.completeness(family, whole, names)
    demanded = gguf.judge(counted.gguf, counted.tensors)
    counted.missing += [p.name for p in demanded if p.name and p.code == "missing-tensor"]
    counted.problems += found + demanded
    family = family or gguf.family(counted.architecture)
    experts = detect(counted.tensors, counted.config)
    quantization, found = preflight(counted.tensors, names, counted.config, counted.folder)
    if counted.partial:  # the others are elsewhere
        found = [p for p in found if p.code != "missing-table-shard"]
    _add(counted, found)
    _add(counted, experts.as_problems(index=False))
    return {
        "tied": tied(counted.config),
        "family": family,
        "components": components,
        "expert_layout": experts.summary(),
        "quantization": quantization,
    }


def _judge_each(counted: Counted) -> dict[str, Any]:
    """Several streams: each is judged by its own config, and what they agree in is told."""
    facts = []
    for part in counted.parts:
        facts.append(judge(part))
        _add(counted, part.problems)
    first = facts[0]
    return {k: v if all(f[k] == v for f in facts) else None for k, v in first.items()}


def _add(counted: Counted, found: list[Problem]) -> None:
    """Add what is not told yet: a stream brings the findings of its writer along, and a scale of an
    expert is a finding about experts and about FP8."""
    told = {(p.code, p.name or p.message) for p in counted.problems}
    counted.problems += [p for p in found if (p.code, p.name or p.message) not in told]


def keys(
    counted: Counted, family: str | None, by: list[str] | None, groups: str | None
) -> list[tuple[str, grouping.Key]]:
    """(label, keys) of each grouping that is asked for; of the family, where none is.

    Args:
        by: values of `--by`.
        groups: a file of rules, used instead of them.
    Raises:
        UsageProblem, InputError, SourceNotFound: as `grouping.key_for` and `by_file`.
    """
    if groups is not None:
        return [("groups", grouping.by_file(groups))]
    rules = recognise.rules(family, gguf=any(map(is_gguf, counted.files)))
    wanted = by or (["family"] if family else ["prefix"])
    return [(b, grouping.key_for(b, *rules)) for b in wanted]
