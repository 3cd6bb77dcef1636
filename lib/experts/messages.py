"""Problems of expert groups in words: one line, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_SHOWN = 8


def message(found: dict[str, Any]) -> str:
    """One line for a problem that detection found; the group is named unless a tensor is."""
    text = _TEXTS[found["code"]](found)
    return f"{found['group']}: {text}" if "group" in found and "tensor" not in found else text


def _list(values: Iterable[Any], count: int | None = None) -> str:
    """The first of some values, and that there are more."""
    values = list(values)
    shown = ", ".join(map(str, values[:_SHOWN]))
    more = (count or len(values)) - min(len(values), _SHOWN)
    return f"{shown} and {more} more" if more else shown


def _said(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shapes(found: dict[str, Any]) -> str:
    roles = ("gate_up", "gate", "up", "down")
    if "shape" in found:
        return str(found["shape"])
    return " and ".join(f"{role} {found[role]}" for role in roles if role in found)


def _missing_expert(found: dict[str, Any]) -> str:
    what = found.get("part", "matrix")
    experts = _list(found["experts"], found.get("count"))
    return f"{found['role']}: found no {what} of experts {experts}, expected one of each"


def _count_mismatch(found: dict[str, Any]) -> str:
    if isinstance(found["found"], list):
        counts = " and ".join(map(str, found["found"]))
        return f"number of experts: found {counts} in tensors of one group, expected one number"
    return f"number of experts: found {found['found']}, expected {_said(found['config'])} (config)"


def _mixed(found: dict[str, Any]) -> str:
    if "tensors" in found:
        return f"a role is held twice: found also {_list(found['tensors'])}, expected one tensor"
    kinds = found.get("namings") or found["families"]
    return f"experts are stored in several ways: found {' and '.join(kinds)}, expected one"


def _unrecognized(found: dict[str, Any]) -> str:
    if "tensor" in found and "shape" not in found:
        return "a form of expert weights that is not known: expected plain matrices with scales"
    return f"shapes: found {_shapes(found)}, expected those of a known layout"


def _config_mismatch(found: dict[str, Any]) -> str:
    return f"hidden size: found {_said(found['found'])}, expected {_said(found['config'])} (config)"


_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing-expert": _missing_expert,
    "missing-projection": lambda f: f"{f['role']}: found of no expert, expected of all",
    "count-mismatch": _count_mismatch,
    "duplicate-tensor": lambda f: (
        f"in {len(f['files'])} files: found {' and '.join(f['files'])}, expected one"
    ),
    "shape-mismatch": lambda f: f"shape: found {f['shape']}, expected {f['expected']}",
    "unrecognized-layout": _unrecognized,
    "contradictory-orientation": lambda f: (
        f"orientation: found one of {_shapes(f)} transposed, expected both alike"
    ),
    "ambiguous-orientation": lambda f: (
        f"orientation: found {_shapes(f)}, which fits both or neither, expected sizes that decide"
    ),
    "config-mismatch": _config_mismatch,
    "mixed-in-group": _mixed,
    "dtype-mismatch": lambda f: (
        "dtype: found "
        + " and ".join(f"{n} tensors of {d}" for d, n in f["dtypes"].items())
        + ", expected one dtype"
    ),
    "missing-scale": lambda f: "a quantised weight: found no scale, expected one",
    "orphan-scale": lambda f: "a scale: found no quantised weight of its own, expected one",
    "scale-grid": lambda f: f"scale grid: found {f['shape']}, expected {f['expected']}",
    "needs-expert-count": lambda f: (
        "a flat layout: found no number of experts in the config, expected one"
    ),
    "missing-shard": lambda f: "no such file, but the index names it",
    "index-names-absent-tensor": lambda f: "named by the index, absent from the header of its file",
    "not-in-index": lambda f: "found in the file's header, absent from the index",
}
