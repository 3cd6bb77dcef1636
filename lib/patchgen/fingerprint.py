"""What the targets of a generated module were when it was made, kept in its header.

One comment line a target, as JSON, so that a check can say what changed in the source instead of
that the text differs. A line that is no longer readable counts as none.
"""

from __future__ import annotations

import json
from typing import Any

from .contract import Missing, Version, facts_at
from .definitions import Facts, Parameter
from .model import PatchType, Plan

MARK = "fingerprint/1 "
"""Begins each line, after `# `; the number changes when what is compared does."""

Stored = dict[tuple[PatchType, str], Facts | Missing]


def lines(plan: Plan, version: Version) -> list[str]:
    """The lines for a header, without `#`: one for each target, in order of registration."""
    keys = dict.fromkeys((p.kind, p.target) for p in plan.patches)
    return [MARK + _encoded(kind, target, facts_at(version, kind, target)) for kind, target in keys]


def stored(text: str) -> Stored:
    """The facts in the comments that begin a generated module; empty where it has none."""
    found: Stored = {}
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            break
        if line.startswith("# " + MARK):
            try:
                kind, target, facts = _decoded(json.loads(line.removeprefix("# " + MARK)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
            found[kind, target] = facts
    return found


def _encoded(kind: PatchType, target: str, facts: Facts | Missing) -> str:
    record: dict[str, Any] = {"patch": kind.value, "target": target}
    if isinstance(facts, Missing):
        record.update(missing=facts.what, member=facts.member)
    else:
        parameters = [[p.name, p.kind, *([] if p.default is None else [p.default])]
                      for p in facts.parameters]  # fmt: skip
        record.update(
            kind=facts.kind,
            parameters=parameters,
            decorators=facts.decorators,
            bases=facts.bases,
            fields=facts.fields,
            body=facts.body,
            parts=dict(facts.parts),
        )
    kept = {k: v for k, v in record.items() if v}
    # all blanks are inside texts, and a header keeps no two of them together
    return json.dumps(kept, separators=(",", ":")).replace("  ", "\\u0020\\u0020")


def _decoded(record: dict[str, Any]) -> tuple[PatchType, str, Facts | Missing]:
    def texts(key: str) -> tuple[str, ...]:
        return tuple(map(str, record.get(key, [])))

    kind, target = PatchType(record["patch"]), str(record["target"])
    if "missing" in record:
        return kind, target, Missing(str(record["missing"]), bool(record.get("member")))
    parameters = tuple(Parameter(*map(str, p)) for p in record.get("parameters", []))
    parts = tuple((str(k), str(v)) for k, v in record.get("parts", {}).items())
    return kind, target, Facts(
        str(record["kind"]), parameters, texts("decorators"), texts("bases"), texts("fields"),
        str(record.get("body", "")), parts,
    )  # fmt: skip
