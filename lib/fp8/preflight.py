"""What a conversion of an FP8 checkpoint would meet: `quantization` of a census. No payload but
that of scales is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any

from ..checkpoint.folder import Folder
from ..checkpoint.tensor import Problem, Tensor, in_components
from . import scale_values, skip_list
from .pairs import Pairs, pair, table_problems
from .settings import read_settings

_ROLE = itemgetter(7)


def preflight(
    tensors: Sequence[Tensor],
    names: Collection[str],
    config: dict[str, Any],
    folder: Folder | None = None,
) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The `quantization` field of a summary, None without any, and everything wrong.

    Weights and scales are paired within a component. Initializers of ONNX graphs are left out:
    which scale is whose is said by the nodes of a graph, not by names.

    Args:
        names: those of all tensors.
        folder: where scales are read; None: their values are not looked at.
    """
    if any(map(_ROLE, tensors)):
        tensors = [t for t in tensors if t[7] is None]
        if not tensors:
            return None, []
    settings = read_settings(config)
    placed = in_components(tensors)
    pairs = pair(placed, settings)
    if not (pairs.scale_of or pairs.unpaired or settings.method or pairs.orphans):
        return None, pairs.problems
    problems = pairs.problems + table_problems(placed)
    skipped = skip_list.judge(pairs, tensors, names) if settings.listed else None
    values = None
    if folder is not None and folder.local and pairs.scales:
        values, found = scale_values.check(folder, pairs.scales.values())
        problems += found
    if skipped is not None:
        problems += skipped.problems
    return {
        **_fields(pairs),
        "skip_list": _skip(skipped),
        "scale_values": _values(values),
    }, problems


def _fields(pairs: Pairs) -> dict[str, Any]:
    settings = pairs.settings
    return {
        "kind": settings.method or ("fp8" if pairs.scale_of or pairs.unpaired else None),
        "block": list(settings.block) if settings.block else None,
        "pairs": len(pairs.scale_of),
        "forms": {form: pairs.forms[form] for form in sorted(pairs.forms)},
        "scale_dtypes": sorted({t.dtype for t in pairs.scales.values()}),
        "shared_scales": pairs.shared,
        "unpaired": pairs.unpaired,
        "orphan_scales": pairs.orphans,
    }


def _skip(judged: skip_list.SkipList | None) -> dict[str, Any] | None:
    if judged is None:
        return None
    return {
        "listed": judged.listed,
        "resolved": judged.listed - len(judged.unresolved),
        "unresolved": judged.unresolved,
        "stored_as_fp8": judged.stored_as_fp8,
        "unlisted": judged.unlisted,
    }


def _values(values: scale_values.Values | None) -> dict[str, int] | None:
    return None if values is None else dict(vars(values))
