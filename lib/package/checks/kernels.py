"""run.support: which nodes have no kernel on this ONNX Runtime and provider, without weights.

ONNX Runtime itself is asked, with the graph of which weights have become inputs: it takes nodes
into functions, adds casts where a type has no kernel, and falls back to the CPU, so a table of
kernels would not give its answer. It stops at the first node that it cannot run. To name them all,
one node of each kind (operator and types) goes into a graph of its own, which loses a kind each
time that it is refused.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto

from ...checkpoint import onnx_walk as walk
from ...checkpoint.onnx_types import type_name
from ...errors import EnvironmentProblem, InputError, NtoolError
from .subject import MAX_LISTED, Finding, Part, bad, not_applicable

NO_KERNEL = re.compile(r"no kernel here for (\S+?)\(\d+\) at node '([^']*)'")
_UNKNOWN = re.compile(r"(\S*):(\S+?)\(-?\d+\) is not a registered function/op")
_NO_OPERATOR = re.compile(r'In Node, \("([^"]*)".*No Op registered for')
_NUMBERED = re.compile(r"node (n[0-9]+) \([^)]*\)")
SMALL = 1 << 16
"""Bytes of a tensor that stays in the graph: shapes and axes, which kernels want to know."""


@dataclass
class _Kind:
    """Nodes of one operator and of the same types.

    Attributes:
        inputs: types of the inputs; None for one that is left out.
        node, scope: the first of them, and what its names mean.
        known: whether all types of inputs are known.
    """

    operator: str
    inputs: list[TypeProto | None]
    node: NodeProto
    path: str
    scope: _Scope
    count: int = 1
    known: bool = True

    @property
    def label(self) -> str:
        types = ", ".join(_spelled(t) if t is not None else "-" for t in self.inputs)
        return f"{self.operator}({types})"


@dataclass(frozen=True)
class _Scope:
    """Names of a graph: their types and small constants."""

    types: Mapping[str, TypeProto]
    constants: Mapping[str, onnx.TensorProto]


def support(part: Part, device: tuple[str, int]) -> list[Finding]:
    """Findings of run.support about a part: one for each kind of node without a kernel."""
    model = weightless(part)
    if model is None:
        return [not_applicable("weights in nested graphs, without which it cannot be told")]
    try:
        _session(model, device, part.file)
    except NtoolError as e:
        if not _refused(e):
            text = f"{part.file}: ONNX Runtime does not take it without weights: {e.message}"
            return [not_applicable(text)]
        return _findings(part, model, device, e)
    count = len(part.walk.nodes)
    return [Finding(True, f"{count} nodes, each with a kernel", None, count)]


def weightless(part: Part) -> ModelProto | None:
    """A copy of the model whose larger tensors are inputs instead; None where that is impossible.

    Nodes of the main graph are called by their numbers, so that messages can be read.
    """
    source = part.model
    stored = {t.name for t in source.graph.initializer}
    if any(e.tensor.name not in stored for e in part.externals):
        return None
    model = ModelProto(ir_version=source.ir_version)
    model.opset_import.extend(source.opset_import)
    model.functions.extend(source.functions)
    graph = model.graph
    graph.name = "g"
    graph.node.extend(source.graph.node)
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
    graph.output.extend(source.graph.output)
    graph.value_info.extend(source.graph.value_info)
    given = {v.name: v for v in source.graph.input}
    for t in source.graph.initializer:
        if t.data_location == t.EXTERNAL or t.ByteSize() > SMALL:
            value = onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
            given.setdefault(t.name, value)
        else:
            graph.initializer.append(t)
            given.pop(t.name, None)
    for s in source.graph.sparse_initializer:
        name, kind = s.values.name, s.values.data_type
        given.setdefault(name, onnx.helper.make_tensor_value_info(name, kind, s.dims))
    graph.input.extend(given.values())
    return model


def _session(model: ModelProto, device: tuple[str, int], name: str) -> None:
    from ...runtime.session import Session, Settings

    Session(model.SerializeToString(), Settings(device, threads=1), name=name)


def _refused(error: NtoolError) -> bool:
    """Whether an error is about a kernel or an operator that is not there."""
    if isinstance(error, EnvironmentProblem):
        return NO_KERNEL.search(error.message) is not None
    text = error.message
    found = _UNKNOWN.search(text) or _NO_OPERATOR.search(text)
    return isinstance(error, InputError) and found is not None


def _findings(
    part: Part, model: ModelProto, device: tuple[str, int], error: NtoolError
) -> list[Finding]:
    kinds = dict(enumerate(_kinds(part, model)))
    unknown = sum(k.count for k in kinds.values() if not k.known)
    kinds = {number: k for number, k in kinds.items() if k.known}
    missing: list[tuple[_Kind, str]] = []
    while kinds:
        try:
            _session(_together(model, kinds), device, part.file)
        except NtoolError as e:
            lost, reason = _lost(kinds, e)
            if not lost:
                break
            missing += [(kinds.pop(number), reason) for number in lost]
        else:
            break
    if not missing:
        return [bad(error.message, reason="no-kernel")]
    rest = f"; {unknown} nodes of unknown types were not looked at" if unknown else ""
    found = [
        bad(
            f"{part.file}: no kernel for {k.label}: {k.count} nodes, the first: {k.path}{rest}",
            f"a kernel on {device[0]}",
            k.label,
            reason=reason,
        )
        for k, reason in sorted(missing, key=lambda m: -m[0].count)
    ]
    if len(found) > MAX_LISTED:
        more = bad(f"{part.file}: and {len(found) - MAX_LISTED} kinds more")
        found = [*found[:MAX_LISTED], more]
    return found


def _lost(kinds: dict[int, _Kind], error: NtoolError) -> tuple[list[int], str]:
    """Numbers of the kinds that an error is about, and why they are refused."""
    kernel = NO_KERNEL.search(error.message)
    if kernel is not None:
        return _numbered(kinds, kernel[2]), "no-kernel"
    operator = _NO_OPERATOR.search(error.message)
    if operator is not None:
        return _numbered(kinds, operator[1]), "unknown-operator"
    unknown = _UNKNOWN.search(error.message)
    if unknown is None:
        return [], ""
    key = (unknown[1], unknown[2])
    same = [n for n, k in kinds.items() if (k.node.domain, k.node.op_type) == key]
    return same, "unknown-operator"


def _numbered(kinds: dict[int, _Kind], name: str) -> list[int]:
    number = int(name[1:]) if re.fullmatch(r"k[0-9]{1,9}", name, re.ASCII) else -1
    return [number] if number in kinds else []


def _kinds(part: Part, model: ModelProto) -> Iterator[_Kind]:
    """The kinds of nodes, nested ones too; calls of functions are replaced by what they call.

    Nodes that hold graphs are left out: they run wherever what they hold does.
    """
    paths = {f"n{number}": p.path for number, p in enumerate(_main(part))}
    everything = walk.walk(_typed(model))
    own = {path: _scope(graph) for path, graph in everything.graphs}
    # a nested graph sees the names of those around it; here it sees those of all
    types = {name: kind for s in own.values() for name, kind in s.types.items()}
    constants = {name: t for s in own.values() for name, t in s.constants.items()}
    scopes = {
        path: _Scope(ChainMap(dict(s.types), types), ChainMap(dict(s.constants), constants))
        for path, s in own.items()
    }
    found: dict[tuple[Any, ...], _Kind] = {}
    for place in everything.nodes:
        node = place.node
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
            continue
        scope = scopes.get(place.prefix) or _Scope(types, constants)
        inputs = [scope.types.get(n) if n else None for n in node.input]
        outputs = [_spelled(scope.types.get(n)) if n else "-" for n in node.output]
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        key = (operator, *(_spelled(t) for t in inputs), "->", *outputs)
        if key in found:
            found[key].count += 1
            continue
        known = all(t is not None for t, n in zip(inputs, node.input, strict=True) if n)
        found[key] = _Kind(operator, inputs, node, place.path, scope, known=known)
        match = _NUMBERED.match(place.path)
        if match and match[1] in paths:
            found[key].path = paths[match[1]] + place.path[match.end() :]
    yield from found.values()


def _typed(model: ModelProto) -> ModelProto:
    """The model without functions, and with the types that onnx finds."""
    from onnx import inliner

    try:
        if model.functions:
            model = inliner.inline_local_functions(model)
        return onnx.shape_inference.infer_shapes(model)
    except MemoryError:
        raise
    except Exception:  # theirs have no common base; a kind of unknown types is not looked at
        return model


def _main(part: Part) -> list[walk.Place]:
    return [p for p in part.walk.nodes if not p.prefix]


def _scope(graph: GraphProto) -> _Scope:
    types = {
        v.name: v.type
        for v in (*graph.input, *graph.value_info, *graph.output)
        if v.type.WhichOneof("value") is not None
    }
    for t in graph.initializer:
        types[t.name] = onnx.helper.make_tensor_type_proto(t.data_type, t.dims)
    return _Scope(types, {t.name: t for t in graph.initializer})


def _spelled(kind: TypeProto | None) -> str:
    """A type for people; of a tensor, its element type."""
    if kind is None:
        return "?"
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return type_name(kind.tensor_type.elem_type)
    return str(which).removesuffix("_type")


def _together(model: ModelProto, kinds: dict[int, _Kind]) -> ModelProto:
    """A model of one node of each kind, side by side; node `kI` is of kind I."""
    made = ModelProto(ir_version=model.ir_version)
    made.opset_import.extend(model.opset_import)
    graph = made.graph
    graph.name = "kinds"
    for number, kind in kinds.items():
        node = graph.node.add()
        node.CopyFrom(kind.node)
        node.name = f"k{number}"
        names: dict[str, str] = {}
        for at, (name, given) in enumerate(zip(kind.node.input, kind.inputs, strict=True)):
            if not name:
                continue
            if name not in names:
                names[name] = f"k{number}.{at}"
                constant = kind.scope.constants.get(name)
                if constant is not None:
                    copy = graph.initializer.add()
                    copy.CopyFrom(constant)
                    copy.name = names[name]
                else:
                    value = graph.input.add()
                    value.name = names[name]
                    value.type.CopyFrom(given)
            node.input[at] = names[name]
        for at, name in enumerate(kind.node.output):
            if name:
                node.output[at] = f"k{number}.out{at}"
                output = graph.output.add()
                output.name = node.output[at]
                known = kind.scope.types.get(name)
                if known is not None:
                    output.type.CopyFrom(known)
    return made
