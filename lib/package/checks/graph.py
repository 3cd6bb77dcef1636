"""graph.*: the graph of each component, its weights aside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from ...checkpoint import onnx_walk as walk
from ...checkpoint.onnx_external import location_fault
from ...checkpoint.onnx_scopes import RUNTIME_OPERATORS
from ...checkpoint.onnx_types import type_name
from ...graph.standard import PLAIN_DOMAINS, custom_nodes
from .. import layout
from .subject import INFER, Check, Finding, Part, Subject, bad, not_applicable, one_line, warn

STAND_IN = "stand-in.bin"


def parse(subject: Subject, part: Part) -> list[Finding]:
    """Bytes to a model: own rules on top of protobuf's (see parse.py)."""
    if part.path is None and subject.is_package:
        return [
            not_applicable(f"{part.file}: {part.refused}: see layout.files", see="layout.files")
        ]
    return part.reading.findings


def checker(subject: Subject, part: Part) -> list[Finding]:
    """onnx.checker by path, on a copy whose external data is one empty file, and inference.

    Other tools write operators of ONNX Runtime's own into the standard domain. Without package.json
    they are a warning; the copy has them in a domain that the checker leaves alone.

    The checker never compares external data with anything, but opens it; it refuses the links of a
    Hub cache, and names like `model..v2.bin`. Which files may be read is settled by data.path; here
    only the graph is judged. Its full_check would add the inference of `inferred`, a second time.
    """
    assert part.path is not None
    own = {} if subject.is_package else runtime_operators(part)
    try:
        if not part.externals and not own:
            onnx.checker.check_model(part.path)
        else:
            folder = _stand_in(subject)
            graph = os.path.join(folder, "model.onnx")
            with open(graph, "wb") as f, _without_locations(part), _elsewhere(own, part.model):
                f.write(part.model.SerializeToString())
            onnx.checker.check_model(graph)
        inferred(part)
    except MemoryError:
        raise
    except Exception as e:  # its errors, and those of shape inference, have no common base
        return [_failed(part, e)]
    return [
        warn(
            f"{part.file}: {place.path}: not an operator of ONNX, but of ONNX Runtime",
            "a domain of its own",
            place.node.op_type,
            reason="runtime-operator",
        )
        for place in {p.node.op_type: p for p in reversed(own.values())}.values()
    ]


def runtime_operators(part: Part) -> dict[int, walk.Place]:
    """Nodes of the standard domain that only ONNX Runtime knows."""
    return {
        id(p.node): p
        for p in part.walk.nodes
        if p.node.domain in ("", "ai.onnx") and p.node.op_type in RUNTIME_OPERATORS
    }


@contextmanager
def _elsewhere(own: dict[int, walk.Place], model: ModelProto) -> Iterator[None]:
    """Those nodes in a domain that no checker knows, for as long as the block lasts."""
    if not own:
        yield
        return
    kept = [(p.node, p.node.domain) for p in own.values()]
    imports = model.opset_import.add(domain="ntool.runtime", version=1)
    try:
        for node, _ in kept:
            node.domain = imports.domain
        yield
    finally:
        for node, domain in kept:
            node.domain = domain
        del model.opset_import[-1]


class Ended(Exception):
    """What inference has been: the end of a process. Its argument is the finding."""


def _failed(part: Part, error: Exception) -> Finding:
    if isinstance(error, Ended):
        found: Finding = error.args[0]
        return found
    return bad(f"{part.file}: {one_line(error)}", reason=type(error).__name__)


def _stand_in(subject: Subject) -> str:
    """A folder with the empty file; one for all components."""
    folder = subject.scratch
    open(os.path.join(folder, STAND_IN), "ab").close()
    return folder


def inferred(part: Part) -> ModelProto:
    """The model with inferred types, which agree with the declared ones; made once.

    Raises:
        Exception: what onnx.shape_inference raises, the same each time.
    """
    kept = part.__dict__.get("_inferred")
    if kept is None and INFER in part.ends:
        kept = Ended(part.ends[INFER])
    if kept is None:
        try:
            with part.watch(INFER):
                kept = onnx.shape_inference.infer_shapes(
                    part.model, check_type=True, strict_mode=True
                )
        except MemoryError:
            raise
        except Exception as e:
            kept = e
        part.__dict__["_inferred"] = kept
    if isinstance(kept, Exception):
        raise kept
    assert isinstance(kept, ModelProto)
    return kept


@contextmanager
def _without_locations(part: Part) -> Iterator[None]:
    """The model with one location everywhere, for as long as the block lasts: a copy costs more."""
    entries = [x for e in part.externals for x in e.tensor.external_data if x.key == "location"]
    kept = [x.value for x in entries]
    try:
        for x in entries:
            x.value = STAND_IN
        yield
    finally:
        for x, value in zip(entries, kept, strict=True):
            x.value = value


def types(subject: Subject, part: Part) -> list[Finding]:
    """Every value of every graph has a type, and what is declared agrees with what is inferred."""
    try:
        typed = inferred(part)
    except MemoryError:
        raise
    except Exception as e:
        return [_failed(part, e)]
    findings = []
    excused = 0
    single = len(part.walk.graphs) == 1
    for path, graph in [("", typed.graph)] if single else walk.walk(typed).graphs:
        if path.startswith("function "):
            continue  # a function's types are those of its callers
        untyped = _untyped(graph)
        if untyped and not subject.is_package:
            # of operators that onnx does not know, and of what follows them
            behind = _behind_custom(graph)
            excused += sum(name in behind for name in untyped)
            untyped = [name for name in untyped if name not in behind]
        for name in untyped:
            where = f"{path}: " if path else ""
            text = f"{part.file}: {where}value '{name}' has no type, declared or inferred"
            findings.append(bad(text, reason="no-type"))
    part.__dict__["typed"] = typed
    if excused and not findings:
        text = f"{excused} values have no type: onnx does not know the operators before them"
        return [Finding(True, f"{part.file}: {text}")]
    return findings


def _behind_custom(graph: GraphProto) -> set[str]:
    """Values of operators that onnx does not know, and of those that read such values."""
    found: set[str] = set()
    for node in graph.node:
        custom = node.domain not in PLAIN_DOMAINS or node.op_type in RUNTIME_OPERATORS
        bodies = (b for _, b in walk.bodies(node))
        if custom or not found.isdisjoint(node.input) or any(_behind_custom(b) for b in bodies):
            found.update(o for o in node.output if o)
    return found


def _untyped(graph: GraphProto) -> list[str]:
    known = {v.name for v in (*graph.input, *graph.output, *graph.value_info) if _has_type(v.type)}
    return [o for n in graph.node for o in n.output if o and o not in known]


def _has_type(t: TypeProto) -> bool:
    kind = t.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or t.tensor_type.elem_type != 0)


def standard(subject: Subject, part: Part) -> list[Finding]:
    """Only operators of standard domains, wherever they stand.

    A call of a function that the model defines is standard when the function's own nodes are.
    """
    if not subject.options.standard_only and part.entry.get("execution_provider") != layout.ANY_EP:
        return [not_applicable("no --standard-only, and the package is not onnx-standard")]
    return [
        bad(
            f"{part.file}: {place.path}: operator {place.node.domain}::{place.node.op_type}",
            list(PLAIN_DOMAINS),
            place.node.domain,
        )
        for place in (
            *custom_nodes(part.model, part.walk.nodes),
            *runtime_operators(part).values(),
        )
    ]


def port(value: onnx.ValueInfoProto) -> dict[str, Any]:
    """Name, dtype and shape of a graph input or output, as package.json spells them."""
    tensor = value.type.tensor_type
    shape = [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
    ]
    return {"name": value.name, "dtype": type_name(tensor.elem_type), "shape": shape}


def ports(model: ModelProto) -> dict[str, list[dict[str, Any]]]:
    """`inputs` (initializers are not inputs) and `outputs` of the main graph."""
    stored = {t.name for t in model.graph.initializer}
    return {
        "inputs": [port(v) for v in model.graph.input if v.name not in stored],
        "outputs": [port(v) for v in model.graph.output],
    }


def names(subject: Subject, part: Part) -> list[Finding]:
    """Ports, versions and data files agree with package.json; ports agree with the family's ABI."""
    from ..abi import abi_findings

    findings = []
    found = ports(part.model)
    for side in ("inputs", "outputs"):
        declared = {p["name"]: p for p in part.entry[side]}
        actual = {p["name"]: p for p in found[side]}
        for name in [*declared, *(n for n in actual if n not in declared)]:
            a, d = actual.get(name), declared.get(name)
            if a is None or d is None:
                where = "in the graph" if a is None else "in package.json"
                text = f"{part.file}: {side[:-1]} '{name}' is not {where}"
                findings.append(bad(text, list(declared), list(actual), reason="missing-port"))
            elif (a["dtype"], a["shape"]) != (d["dtype"], d["shape"]):
                text = f"{part.file}: {side[:-1]} '{name}'"
                want, have = ([p["dtype"], p["shape"]] for p in (d, a))
                findings.append(bad(text, want, have, reason="port"))
        if not findings and list(declared) != list(actual):
            text = f"{part.file}: order of {side}"
            findings.append(bad(text, list(declared), list(actual), reason="order"))
    opset = {o.domain: o.version for o in part.model.opset_import}
    for key, value in (
        ("opset", opset.get("", opset.get("ai.onnx"))),
        ("ir_version", part.model.ir_version),
    ):
        if part.entry[key] != value:
            text = f"{part.file}: {key} of package.json"
            findings.append(bad(text, value, part.entry[key], reason=key.replace("_", "-")))
    folder = os.path.dirname(part.file)
    plain = {e.location for e in part.externals if location_fault(e.location) is None}
    used = {os.path.join(folder, location) for location in plain}
    listed = set(part.entry["data"])
    for name in sorted(used - listed):
        text = f"{part.file}: data file '{name}' is not in package.json"
        findings.append(bad(text, sorted(listed), name, reason="data-file"))
    findings += _facts(subject.manifest or {}, part)
    return findings + abi_findings(subject.manifest or {}, part.name, found, part.file)


def _facts(manifest: dict[str, Any], part: Part) -> Iterator[Finding]:
    """What a graph says of itself in its properties."""
    variant = manifest.get("variant")
    values = variant.values() if isinstance(variant, dict) else ()
    wanted = {
        "ntool.family": manifest.get("family"),
        "ntool.component": part.name,
        "ntool.variant": "/".join(map(str, values)),
    }
    from ..abi import family_module

    abi = family_module(manifest.get("family"), "abi")
    if (
        abi is not None
        and hasattr(abi, "property_faults")
        and manifest.get("kind") != layout.WEIGHTS
    ):
        properties = {p.key: p.value for p in part.model.metadata_props}
        for text, want, have in abi.property_faults(manifest, part.name, properties):
            yield bad(f"{part.file}: {text}", want, have, reason="property")
    for prop in part.model.metadata_props:
        if sorted(str(wanted.get(prop.key, prop.value)).split("/")) != sorted(
            prop.value.split("/")
        ):
            text = f"{part.file}: property {prop.key}, and {layout.MANIFEST}"
            yield bad(text, prop.value, wanted[prop.key], reason="property")


def dead(subject: Subject, part: Part) -> list[Finding]:
    """Every initializer of every graph and every input of the main graph is used."""
    findings = []
    single = len(part.walk.graphs) == 1
    for path, graph in part.walk.graphs:
        used = _used_flat(graph) if single else _used(graph)
        where = f"{part.file}: {path + ': ' if path else ''}"
        stored = [t.name for t in graph.initializer]
        stored += [s.values.name for s in graph.sparse_initializer]
        findings += [
            bad(f"{where}initializer '{n}' is used by no node", reason="unused-initializer")
            for n in stored
            if n not in used
        ]
        if not path:
            findings += [
                bad(f"{where}input '{v.name}' is used by no node", reason="unused-input")
                for v in graph.input
                if v.name not in used and v.name not in stored
            ]
    return findings


def _used_flat(graph: GraphProto) -> set[str]:
    return {v.name for v in graph.output}.union(*(n.input for n in graph.node))


def _used(graph: GraphProto) -> set[str]:
    used = {v.name for v in graph.output}
    pending = [graph]
    while pending:
        g = pending.pop()
        for node in g.node:
            used.update(node.input)
            for _, body in walk.bodies(node):
                used.update(v.name for v in body.output)
                pending.append(body)
    return used


def is_float(data_type: int) -> bool:
    """Whether an ONNX element type holds floating-point numbers."""
    return "FLOAT" in TensorProto.DataType.Name(data_type) or data_type == TensorProto.DOUBLE


CHECKS = (
    Check("graph.parse", "well-formed model of a known opset", parse, plain=True),
    Check("graph.checker", "onnx.checker accepts the graph", checker, ("graph.parse",), plain=True),
    Check("graph.types", "every value has a type", types, ("graph.parse",), plain=True),
    Check("graph.standard", "standard operators only", standard, ("graph.parse",), plain=True),
    Check(
        "graph.names",
        "ports agree with package.json and the family",
        names,
        ("graph.parse", "layout.schema"),
    ),
    Check("graph.dead", "no unused initializer or input", dead, ("graph.parse",), plain=True),
)
