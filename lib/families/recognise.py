"""Which family a checkpoint belongs to, and how its tensors are counted. Standard library only.

Only `groups.py` and `inventory.py` of a family are imported here: data and plain functions, so that
census stays quick.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

from ..checkpoint.grouping import Rules
from ..checkpoint.tensor import Problem
from ..errors import InputError
from . import MODULES


def recognise(config: dict[str, Any], names: Collection[str]) -> str | None:
    """Name of the family: from the config, else from names that only this family has.

    Args:
        names: all tensor names.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        return MODULES.get(model_type)
    for family in dict.fromkeys(MODULES.values()):
        if _module(family, "groups").signed(names):
            return family
    return None


def rules(family: str | None, gguf: bool = False) -> tuple[Rules | None, Rules | None]:
    """(group, expression) pairs of a family for `--by family` and `--by component`.

    Args:
        gguf: for the names that its GGUF files use; None where the family has no rules for them.
    """
    if family is None:
        return None, None
    groups = _module(family, "groups")
    if gguf:
        return getattr(groups, "GGUF_GROUPS", None), None
    return groups.GROUPS, groups.COMPONENTS


def completeness(
    family: str | None, config: dict[str, Any], names: frozenset[str]
) -> tuple[dict[str, bool] | None, list[Problem]]:
    """For each component whether every tensor that the config demands is there.

    None without a family or config, or when the config does not say what is demanded: a warning
        tells.
    """
    if not family or not config:
        return None, []
    try:
        return _module(family, "inventory").complete(config, names), []
    except InputError as e:
        message = f"components not judged: {e.message}"
        return None, [Problem("config-value", message, severity="info", file="config.json")]


def _module(family: str, name: str) -> Any:
    return import_module(f".{family}.{name}", package=__package__)
