"""package.json and weight-loading-report.json of a package of FP8 weights.

No times, host names or paths: two conversions of one checkpoint are byte-identical.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from ..checkpoint.tensor import Checkpoint
from ..families.recognise import rules
from ..package import layout
from . import skip_list
from .forms import Table
from .pairs import FP8, Pairs
from .qdq_component import Component

GENERIC = "other"
"""Family of a tensor that no rule names."""


def package(
    components: Iterable[Component],
    *,
    source: dict[str, Any],
    family: str | None,
    quantization: dict[str, Any],
    files: list[str],
    opset: int,
    ir_version: int,
) -> dict[str, Any]:
    """Content of package.json: kind `weights`, which has no workflow and nothing to prompt."""
    reading = quantization["scale_reading"]
    return {
        "schema": layout.SCHEMA,
        "kind": layout.WEIGHTS,
        "family": family,
        "source": source,
        "quantization": quantization,
        "components": {
            c.name: {
                "graph": c.graph_file(),
                "opset": opset,
                "ir_version": ir_version,
                "execution_provider": layout.ANY_EP,
                "weight_dtype": next(iter(c.float_types()), "none"),
                "weight_dtypes": c.float_types(),
                "compute_dtype": "bfloat16" if reading == "bf16" else "float32",
                "inputs": c.inputs(),
                "outputs": c.outputs(reading),
                "data": [f.name for f in c.files],
                "unsupported_token_ids": [],
            }
            for c in components
        },
        "files": files,
    }


def account(
    checkpoint: Checkpoint,
    family: str | None,
    pairs: Pairs,
    rows: list[dict[str, Any]],
    defaults: Iterable[tuple[str, str, str]],
    found: Iterable[Table],
) -> dict[str, Any]:
    """What a report of FP8 weights says beside its rows: totals, families one by one, tables.

    Args:
        defaults: (family, pattern, reason) of what was left out unasked.
        found: tables that are exported.
    """
    excluded = sum(row["action"] == "excluded" for row in rows)
    tensors = checkpoint.tensors
    unresolved = skip_list.judge(pairs, list(tensors.values()), tensors.keys()).unresolved
    return {
        "totals": {
            "source_total": len(rows),
            "exported": len(rows) - excluded,
            "excluded": excluded,
        },
        "families": families(checkpoint, family, pairs, rows),
        "excluded_families": excluded_families(rows, defaults),
        "modules_to_not_convert": skipped(pairs, unresolved),
        "tables": tables(checkpoint, found),
    }


def mtp_and_ple(account: dict[str, Any]) -> dict[str, Any]:
    """`mtp_exported` and `ple` of a family that has both, from its account."""
    exported = {f["name"]: f["exported"] for f in account["families"]}
    found = account["tables"]
    return {
        "mtp_exported": exported.get("mtp", 0) > 0,
        "ple": {
            "scale_bits": found[0]["scale_bits"] if found else None,
            "shards": sum(t["shards"] for t in found),
            "rows": sum(t["rows"] for t in found),
        },
    }


def families(
    checkpoint: Checkpoint,
    family: str | None,
    pairs: Pairs,
    rows: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """One entry a family of tensors, whose counts add up to the tensors of the checkpoint."""
    named = _family_of(family, pairs)
    groups: dict[str, dict[str, Any]] = {}
    for row in rows:
        t = checkpoint.tensors[row["name"]]
        name = named(t.name, t.dtype)
        g = groups.setdefault(
            name, {"name": name, "count": 0, "bytes": 0, "exported": 0, "reason": None}
        )
        g["count"] += 1
        g["bytes"] += t.nbytes
        g["exported"] += row["action"] != "excluded"
        g["reason"] = g["reason"] or row.get("reason")
    return sorted(groups.values(), key=lambda g: str(g["name"]))


def _family_of(family: str | None, pairs: Pairs) -> Callable[[str, str], str]:
    """(name, dtype) -> family of a tensor: the groups of a census, or what the tensor is."""
    groups, _ = rules(family)
    if groups:
        compiled = [(name, re.compile(pattern)) for name, pattern in groups]
        known: dict[str, str] = {}

        def by_name(name: str, dtype: str) -> str:
            key = re.sub(r"\d+", "0", name)  # no rule looks at a digit
            if key not in known:
                found = (group for group, pattern in compiled if pattern.search(name))
                known[key] = next(found, GENERIC)
            return known[key]

        return by_name

    def by_kind(name: str, dtype: str) -> str:
        if name in pairs.scales:
            return "fp8_scales"
        return "fp8_weights" if dtype in FP8 else "dense"

    return by_kind


def excluded_families(
    rows: list[dict[str, Any]], defaults: Iterable[tuple[str, str, str]]
) -> dict[str, dict[str, Any]]:
    """Pattern -> count and reason of families that were left out by default."""
    out: dict[str, dict[str, Any]] = {}
    for name, pattern, reason in defaults:
        count = sum(
            row["action"] == "excluded" and fnmatchcase(row["name"], pattern) for row in rows
        )
        if count:
            out[pattern] = {"family": name, "count": count, "reason": reason}
    return out


def tables(checkpoint: Checkpoint, found: Iterable[Table]) -> list[dict[str, Any]]:
    """What a report says of each table."""
    return [
        {"name": t.name, "scale": t.scale.name, "scale_bits": _bits(checkpoint, t),
         "shards": len(t.shards), "rows": t.rows, "width": t.width}
        for t in found
    ]  # fmt: skip


def _bits(checkpoint: Checkpoint, table: Table) -> str:
    """The scale of a table as it is stored."""
    raw = b"".join(checkpoint.bands(table.scale))
    return f"0x{int.from_bytes(raw, 'little'):0{2 * len(raw)}x}"


def skipped(pairs: Pairs, unresolved: list[str]) -> dict[str, Any] | None:
    """`modules_to_not_convert`: how many names, and those that no tensor belongs to."""
    if not pairs.settings.listed:
        return None
    listed = len(pairs.settings.skip)
    return {"listed": listed, "resolved": listed - len(unresolved), "unresolved": unresolved}
