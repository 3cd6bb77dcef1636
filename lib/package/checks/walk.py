"""Walking an ONNX model: main graph, graphs in attributes, functions, training graphs.

An external tensor or a custom operator may hide in any of them, so every check walks all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto


def label(node: NodeProto, index: int) -> str:
    """How messages call a node: its name, else operator and place; with the operator."""
    return f"{node.name or f'#{index}'} ({node.op_type})"


def bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Graphs in the attributes of a node, with the attribute's name."""
    for a in node.attribute:
        if a.HasField("g"):
            yield a.name, a.g
        for i, g in enumerate(a.graphs):
            yield f"{a.name}[{i}]", g


def nodes(model: ModelProto) -> Iterator[tuple[str, NodeProto, dict[str, int]]]:
    """(path, node, opset of each domain) of every node, also nested and in functions."""
    imports = {o.domain or "": o.version for o in model.opset_import}
    for path, graph in top_graphs(model):
        yield from _nested(path, graph.node, imports)
    for f in model.functions:
        own = {o.domain or "": o.version for o in f.opset_import}
        yield from _nested(f"function {f.domain}::{f.name}", f.node, own)


def top_graphs(model: ModelProto) -> Iterator[tuple[str, GraphProto]]:
    """(path, graph) of the main graph ("") and of training graphs."""
    yield "", model.graph
    for i, training in enumerate(model.training_info):
        for what in ("initialization", "algorithm"):
            if training.HasField(what):
                yield f"training_info[{i}].{what}", getattr(training, what)


def graphs(model: ModelProto) -> Iterator[tuple[str, GraphProto]]:
    """(path, graph) of every graph, nested ones included."""
    yield from top_graphs(model)
    for path, node, _ in nodes(model):
        for name, body in bodies(node):
            yield f"{path}.{name}", body


def tensors(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """(path, tensor) of every stored tensor: initializers, attributes, sparse parts."""
    for path, graph in graphs(model):
        for t in graph.initializer:
            yield _at(path, f"initializer '{t.name}'"), t
        for s in graph.sparse_initializer:
            yield from _sparse(_at(path, f"sparse initializer '{s.values.name}'"), s)
    for path, node, _ in nodes(model):
        for a in node.attribute:
            if a.HasField("t"):
                yield f"{path}.{a.name}", a.t
            for i, t in enumerate(a.tensors):
                yield f"{path}.{a.name}[{i}]", t
            if a.HasField("sparse_tensor"):
                yield from _sparse(f"{path}.{a.name}", a.sparse_tensor)
            for i, s in enumerate(a.sparse_tensors):
                yield from _sparse(f"{path}.{a.name}[{i}]", s)
    for f in model.functions:
        for a in f.attribute_proto:
            if a.HasField("t"):
                yield f"function {f.domain}::{f.name}.{a.name}", a.t


def _sparse(path: str, s: SparseTensorProto) -> Iterator[tuple[str, TensorProto]]:
    yield f"{path}.values", s.values
    yield f"{path}.indices", s.indices


def _nested(
    path: str, many: Iterable[NodeProto], imports: dict[str, int]
) -> Iterator[tuple[str, NodeProto, dict[str, int]]]:
    for i, node in enumerate(many):
        at = _at(path, f"node {label(node, i)}")
        yield at, node, imports
        for name, body in bodies(node):
            yield from _nested(f"{at}.{name}", body.node, imports)


def _at(path: str, what: str) -> str:
    return f"{path}: {what}" if path else what
