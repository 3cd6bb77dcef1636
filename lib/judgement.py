"""What a census says beyond counts: family, completeness, quantisation."""

from __future__ import annotations

from typing import Any

from .census import Counted
from .checkpoint import grouping
from .checkpoint.config import tied
from .families import recognise
from .fp8.preflight import preflight


def judge(counted: Counted) -> dict[str, Any]:
    """Fields of a summary that need more than counting; what is wrong goes to `counted.problems`.

    Returns:
        tied, family, components, quantization (docs/census.md).
    """
    names = frozenset(t.name for t in counted.tensors)
    family = recognise.recognise(counted.config, names)
    components, found = recognise.completeness(family, counted.config, names)
    counted.problems += found
    quantization, found = preflight(counted.tensors, names, counted.config, counted.folder)
    counted.problems += found
    return {
        "tied": tied(counted.config),
        "family": family,
        "components": components,
        "quantization": quantization,
    }


def keys(
    family: str | None, by: list[str] | None, groups: str | None
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
    rules = recognise.group_rules(family), recognise.component_rules(family)
    wanted = by or (["family"] if family else ["prefix"])
    return [(b, grouping.key_for(b, *rules)) for b in wanted]
