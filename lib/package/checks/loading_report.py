"""weights.complete: the loading report, against itself and against the graphs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ...checkpoint.onnx_external import location_fault
from ...checkpoint.onnx_types import type_name
from ...checkpoint.strict_json import read_object
from ...checkpoint.tensor import BITS
from ...errors import InputError, NtoolError
from .. import layout
from .data import safetensors_name
from .subject import MAX_LISTED, Check, Finding, Part, Subject, bad, not_applicable, not_read

MAX_REPORT = 1 << 30
ACTIONS = ("bound", "converted", "copied", "scale-consumed", "excluded")
ORIGIN = "ntool.origin"
"""Key of `metadata_props` of a tensor inside a graph: where its numbers come from."""


def complete(subject: Subject) -> list[Finding]:
    """The report accounts for every source tensor, and every weight of a graph is in the report."""
    real, why = subject.resolve(layout.REPORT)
    if real is None:
        text = f"{layout.REPORT}: {why}: see layout.files"
        return [not_applicable(text, see="layout.files")]
    try:
        report = read_object(real, layout.REPORT, MAX_REPORT)
        rows = _rows(report)
    except NtoolError as e:
        return [bad(e.message, reason="malformed")]
    findings = [*_head(report), *_counts(report, rows), *_format(subject, report)]
    if report.get("source") != (subject.manifest or {}).get("source"):
        text = f"{layout.REPORT}: source is not that of {layout.MANIFEST}"
        expected, actual = (subject.manifest or {}).get("source"), report.get("source")
        findings.append(bad(text, expected, actual, reason="source"))
    targets: dict[tuple[str, str], dict[str, Any]] = {}
    for t in sorted((t for row in rows for t in row["targets"]), key=_place):
        key = (str(t.get("component")), str(t.get("name")))
        before = targets.get(key)
        if before is None:
            targets[key] = dict(t)
        elif _follows(before, t):
            before["nbytes"] += t["nbytes"]
        else:
            text = f"{layout.REPORT}: {key[0]}/{key[1]} has two sources"
            findings.append(bad(text, reason="two-sources"))
    for part in subject.parts:
        if part.path is None or part.reading.findings:
            targets = {k: v for k, v in targets.items() if k[0] != part.name}
            findings.append(not_read(part))
            continue
        findings += _bound(part, targets)
        findings += _inline(part)
    for component, name in targets:
        text = f"{layout.REPORT}: {component}/{name} is in no graph"
        findings.append(bad(text, component=component, reason="no-initializer"))
    findings.sort(key=lambda f: f.ok is not False)
    return findings[:MAX_LISTED] or [Finding(True, _in_words(rows))]


def _in_words(rows: list[dict[str, Any]]) -> str:
    """What holds, with the number of tensors that the package does not have."""
    total = len(rows)
    excluded = sum(r["action"] == "excluded" for r in rows)
    if not excluded:
        return f"every weight has its source; all {total} tensors are placed"
    return f"{excluded} of {total} source tensors are excluded, the others placed"


def _place(target: dict[str, Any]) -> tuple[str, int]:
    offset = target.get("offset")
    return str(target.get("file")), offset if type(offset) is int else -1


def _follows(before: dict[str, Any], t: dict[str, Any]) -> bool:
    """Whether a target is the next part of a parameter of several sources, right behind `before`:
    both say why."""
    sizes = [before.get("offset"), before.get("nbytes"), t.get("offset"), t.get("nbytes")]
    return (
        before.get("renamed") == t.get("renamed") is not None
        and all(type(n) is int for n in sizes)
        and all(before.get(k) == t.get(k) for k in ("file", "dtype"))
        and before["offset"] + before["nbytes"] == t["offset"]
    )


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    rows, counts = report.get("tensors"), report.get("counts")
    if not isinstance(rows, list) or not isinstance(counts, dict):
        raise InputError(
            f"{layout.REPORT}: 'tensors' and 'counts'", expected="a list and an object"
        )
    for i, row in enumerate(rows):
        sound = isinstance(row, dict) and isinstance(row.get("name"), str)
        targets = row.get("targets") if sound else None
        if not isinstance(targets, list) or not all(isinstance(t, dict) for t in targets):
            raise InputError(f"{layout.REPORT}: tensors[{i}]", expected="name, action, targets")
    return rows


HEAD: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "schema": (layout.REPORT_SCHEMA, lambda v: v == layout.REPORT_SCHEMA),
    "output_weight_format": ("dense or fp8_qdq", lambda v: v in ("dense", "fp8_qdq")),
    "storage_preserving": ("true or false", lambda v: isinstance(v, bool)),
    "native_fp8": ("true or false", lambda v: isinstance(v, bool)),
    "excluded_families": ("a list or an object", lambda v: isinstance(v, (list, dict))),
}
"""Fields beside the tensors: what each may be, in words and as a test."""


def _head(report: dict[str, Any]) -> Iterator[Finding]:
    for field, (words, holds) in HEAD.items():
        if not holds(report.get(field)):
            text = f"{layout.REPORT}: {field}"
            yield bad(text, words, report.get(field), reason="head")


def _format(subject: Subject, report: dict[str, Any]) -> Iterator[Finding]:
    """Codes are in the graphs if, and only if, the report says so."""
    parts = [p for p in subject.parts if p.path is not None]
    if any(p.reading.findings for p in parts) or len(parts) < len(subject.parts):
        return  # then nobody knows
    types = {type_name(e.tensor.data_type) for p in parts for e in p.externals}
    codes = any(name.startswith("float8") for name in types)
    given = report.get("output_weight_format")
    if given in ("dense", "fp8_qdq") and codes is not (given == "fp8_qdq"):
        text = f"{layout.REPORT}: output_weight_format, and the types of the weights"
        yield bad(text, "fp8_qdq" if codes else "dense", given, reason="head")


def _counts(report: dict[str, Any], rows: list[dict[str, Any]]) -> list[Finding]:
    findings = []
    actual = Counter(str(r.get("action")) for r in rows)
    for action in sorted(set(actual) - set(ACTIONS)):
        text = f"{layout.REPORT}: action '{action}'"
        findings.append(bad(text, list(ACTIONS), action, reason="action"))
    names = Counter(r["name"] for r in rows)
    twice = [n for n, k in names.items() if k > 1]
    if twice:
        findings.append(bad(f"{layout.REPORT}: tensor '{twice[0]}' twice", reason="twice"))
    wanted = {"source_tensors": len(rows), **dict(sorted(actual.items()))}
    found = {k: v for k, v in report["counts"].items() if k in wanted or v}
    if found != wanted:
        text = f"{layout.REPORT}: counts do not add up"
        findings.append(bad(text, wanted, found, reason="counts"))
    for row in rows:
        findings += _row(row)
    return findings


def _row(row: dict[str, Any]) -> Iterator[Finding]:
    """One source tensor: a possible place, a fitting action, a reason if left out."""
    name, action, targets = row["name"], row.get("action"), row["targets"]
    where = f"{layout.REPORT}: tensor '{name}'"
    source = row.get("source")
    if (
        not isinstance(source, dict)
        or not isinstance(source.get("file"), str)
        or str(source.get("dtype")) not in BITS
        or any(type(source.get(k)) is not int or source[k] < 0 for k in ("offset", "nbytes"))
    ):
        yield bad(f"{where}: source", "file, offset, nbytes, dtype", source, reason="source")
        return
    if action in ("converted", "copied") and not targets:
        yield bad(f"{where} is {action} but goes nowhere", reason="no-target")
    if action == "bound" and not targets and not row.get("reason"):
        # it may go nowhere: the graph has what it is known to hold
        yield bad(f"{where} is bound but goes nowhere, and no reason says why", reason="no-target")
    if action == "excluded" and not row.get("reason"):
        yield bad(f"{where} is left out without a reason", reason="no-reason")
    for t in targets:
        if t.get("name") != name and not t.get("renamed"):
            text = f"{where} goes to '{t.get('name')}' without a reason for the name"
            yield bad(text, name, t.get("name"), reason="renamed")
        same = (t.get("dtype"), t.get("nbytes")) == (source["dtype"], source["nbytes"])
        if action in ("copied", "converted") and same != (action == "copied"):
            text = f"{where} is {action}: type and bytes of {t.get('component')}/{t.get('name')}"
            have = [t.get("dtype"), t.get("nbytes")]
            yield bad(text, [source["dtype"], source["nbytes"]], have, reason="action")


def _bound(part: Part, targets: dict[tuple[str, str], dict[str, Any]]) -> Iterator[Finding]:
    """External tensors against their targets in the report, which are taken from `targets`."""
    folder = os.path.dirname(part.file)
    for e in part.externals:
        target = targets.pop((part.name, e.tensor.name), None)
        actual = {
            "file": os.path.join(folder, e.location),
            "offset": e.start,
            "nbytes": e.nbytes,
            "dtype": safetensors_name(e.tensor.data_type),
        }
        if location_fault(e.location) is not None:
            del actual["file"]  # data.path says so
        if target is None:
            text = f"{part.file}: {e.where} has no source in {layout.REPORT}"
            yield bad(text, component=part.name, reason="no-source")
        elif {k: target.get(k) for k in actual} != actual:
            text = f"{part.file}: {e.where} differs from {layout.REPORT}"
            expected = {k: target.get(k) for k in actual}
            yield bad(text, expected, actual, component=part.name, reason="place")


def _inline(part: Part) -> Iterator[Finding]:
    for t in part.model.graph.initializer:
        if t.data_location != t.EXTERNAL and not any(p.key == ORIGIN for p in t.metadata_props):
            text = f"{part.file}: initializer '{t.name}' inside the graph has no stated origin"
            more = {"component": part.name, "reason": "no-origin"}
            yield bad(text, f"a source, or {ORIGIN}", None, **more)


CHECKS = (
    Check(
        "weights.complete",
        "every weight has its source, and every source tensor its place",
        complete,
        ("layout.schema",),
        package=True,
    ),
)
