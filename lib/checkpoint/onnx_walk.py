"""Walking an ONNX model: main graph, graphs in attributes, functions, training graphs.

An external tensor or a custom operator may hide in any of them, so every check sees all. One pass
collects everything: reading a field of a protobuf message is what costs time here. Messages are
those of the onnx package or of onnx_messages.py: they are read in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..errors import shorten

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
    )


MAX_LABEL = 200
"""Characters of a name that a path repeats."""
MAX_PATH = 600
"""Characters of a path: graphs inside graphs would make it long for each tensor in them."""


class Place(NamedTuple):
    """A node, where it stands, and the opset of each domain there.

    Attributes:
        prefix: path of its graph, "" for the main graph.
        number: of the node in its graph.
    """

    prefix: str
    number: int
    node: NodeProto
    imports: dict[str, int]

    @property
    def path(self) -> str:
        """How messages call the node."""
        return _at(self.prefix, f"node {label(self.node, self.number)}")


@dataclass
class Walk:
    """All of a model, in order.

    Attributes:
        graphs: (path, graph), the main graph first, with path "".
        nodes: also nested and in functions.
        tensors: (path, tensor) of initializers, attributes and sparse parts.
    """

    graphs: list[tuple[str, GraphProto]] = field(default_factory=list)
    nodes: list[Place] = field(default_factory=list)
    tensors: list[tuple[str, TensorProto]] = field(default_factory=list)


def label(node: NodeProto, index: int) -> str:
    """A node's name, else its place; with its operator."""
    name = shorten(node.name, MAX_LABEL) or f"#{index}"
    return f"{name} ({shorten(node.op_type, MAX_LABEL)})"


def bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Graphs in the attributes of a node, with the attribute's name."""
    for a in node.attribute:
        if _holds(a):
            yield from _graphs(a)


def function_path(f: FunctionProto) -> str:
    """How messages call a function."""
    name = f"{f.domain}::{f.name}" + (f":{f.overload}" if f.overload else "")
    return f"function {shorten(name, MAX_LABEL)}"


def top_graphs(model: ModelProto) -> Iterator[tuple[str, GraphProto]]:
    """(path, graph) of the main graph ("") and of training graphs."""
    yield "", model.graph
    for i, training in enumerate(model.training_info):
        for what in ("initialization", "algorithm"):
            if training.HasField(what):
                yield f"training_info[{i}].{what}", getattr(training, what)


def walk(model: ModelProto) -> Walk:
    """Everything of a model. Depth is bounded: protobuf nests at most 100 messages."""
    found = Walk()
    imports = {o.domain: o.version for o in model.opset_import}
    for path, graph in top_graphs(model):
        _graph(found, path, graph, imports)
    for f in model.functions:
        path = function_path(f)
        for a in f.attribute_proto:
            _attribute(found, path, a, imports)
        _nodes(found, path, f.node, {o.domain: o.version for o in f.opset_import})
    return found


def _graph(found: Walk, path: str, graph: GraphProto, imports: dict[str, int]) -> None:
    found.graphs.append((path, graph))
    for t in graph.initializer:
        found.tensors.append((_at(path, f"initializer '{t.name}'"), t))
    for s in graph.sparse_initializer:
        _sparse(found, _at(path, f"sparse initializer '{s.values.name}'"), s)
    _nodes(found, path, graph.node, imports)


def _nodes(found: Walk, path: str, nodes: Iterable[NodeProto], imports: dict[str, int]) -> None:
    for i, node in enumerate(nodes):
        place = Place(path, i, node, imports)
        found.nodes.append(place)
        for a in node.attribute:
            if _holds(a):
                _attribute(found, place.path, a, imports)


_HOLDERS = frozenset((5, 6, 10, 11, 22, 23))
"""Numbers of t, g, tensors, graphs, sparse_tensor and sparse_tensors of an AttributeProto."""


def _holds(a: AttributeProto) -> bool:
    """Whether an attribute holds tensors or graphs, whatever its `type` says."""
    return any(f.number in _HOLDERS for f, _ in a.ListFields())


def _attribute(found: Walk, path: str, a: AttributeProto, imports: dict[str, int]) -> None:
    at = below(path, a.name)
    if a.HasField("t"):
        found.tensors.append((at, a.t))
    for i, t in enumerate(a.tensors):
        found.tensors.append((f"{at}[{i}]", t))
    if a.HasField("sparse_tensor"):
        _sparse(found, at, a.sparse_tensor)
    for i, s in enumerate(a.sparse_tensors):
        _sparse(found, f"{at}[{i}]", s)
    for name, graph in _graphs(a):
        _graph(found, below(path, name), graph, imports)


def _graphs(a: AttributeProto) -> Iterator[tuple[str, GraphProto]]:
    if a.HasField("g"):
        yield a.name, a.g
    for i, g in enumerate(a.graphs):
        yield f"{a.name}[{i}]", g


def _sparse(found: Walk, path: str, s: SparseTensorProto) -> None:
    found.tensors.append((f"{path}.values", s.values))
    found.tensors.append((f"{path}.indices", s.indices))


def below(path: str, name: str) -> str:
    """Path of what an attribute holds; of a long one, its end."""
    at = f"{path}.{shorten(name, MAX_LABEL)}"
    return at if len(at) <= MAX_PATH else f"...{at[-MAX_PATH:]}"


def _at(path: str, what: str) -> str:
    return f"{path}: {what}" if path else what
