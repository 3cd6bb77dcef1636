"""dtype.policy: which element types a component may have, and whether it has those it claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import TensorProto

from ...checkpoint import onnx_walk as walk
from ...checkpoint.onnx_types import type_name
from ..abi import family_module
from .graph import is_float
from .graph import ports as graph_ports
from .subject import Check, Finding, Part, Subject, bad


def policy(subject: Subject, part: Part) -> list[Finding]:
    """Weights and arithmetic are of the types that package.json claims and the family allows."""
    findings = []
    manifest, entry = subject.manifest or {}, part.entry
    abi = family_module(manifest.get("family"), "abi")
    allowed = abi.DTYPES.get(part.name) if abi else None
    for key in ("weight_dtype", "compute_dtype"):
        if allowed is not None and entry[key] not in allowed:
            text = f"{part.file}: {key} {entry[key]} of {manifest['family']}'s {part.name}"
            findings.append(bad(text, list(allowed), entry[key], reason="refused"))
    if abi is not None and not findings and not subject.weights_only:
        findings += _arithmetic(part, abi.ports(manifest).get(part.name, {}))
    for e in part.externals:
        found = type_name(e.tensor.data_type)
        claimed = entry.get("weight_dtypes", [entry["weight_dtype"]])
        if is_float(e.tensor.data_type) and found not in claimed:
            text = f"{part.file}: {e.where}: type"
            findings.append(bad(text, " or ".join(claimed), found, reason="weight"))
    if allowed is not None and "float16" not in allowed and not findings:
        findings += _half(part)
    return findings[:20]


def _arithmetic(part: Part, ports: dict[str, Any]) -> Iterator[Finding]:
    """Ports that the family has in the type of the arithmetic are of the type that is claimed."""
    floats = {name for side in ports.values() for name, port in side.items() if port[0] == "float"}
    given = {
        p["name"]: p["dtype"]
        for side in graph_ports(part.model).values()
        for p in side
        if p["name"] in floats
    }
    if given and part.entry["compute_dtype"] not in given.values():
        text = f"{part.file}: compute_dtype, and the type of '{next(iter(given))}'"
        found = part.entry["compute_dtype"]
        yield bad(text, next(iter(given.values())), found, reason="arithmetic")


def _half(part: Part) -> list[Finding]:
    """Values of float16 in a component whose activations leave its range."""
    findings = []
    for path, graph in walk.walk(part.typed).graphs:
        for v in (*graph.input, *graph.value_info, *graph.output):
            if v.type.tensor_type.elem_type == TensorProto.FLOAT16:
                where = f"{path}: " if path else ""
                text = f"{part.file}: {where}value '{v.name}'"
                findings.append(bad(text, "float32 or bfloat16", "float16", reason="half"))
        for t in graph.initializer:
            if t.data_type == TensorProto.FLOAT16:
                text = f"{part.file}: initializer '{t.name}'"
                findings.append(bad(text, "float32 or bfloat16", "float16", reason="half"))
    return findings


CHECKS = (
    Check(
        "dtype.policy",
        "element types are those claimed and allowed",
        policy,
        ("graph.parse", "layout.schema"),
    ),
)
