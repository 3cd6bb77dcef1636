"""The rules of names in ONNX graphs: single assignment, topological order, known operators.

Source: ONNX IR.md, "Names Within a Graph", "Nodes" and "Functions".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import onnx_walk as walk
from .onnx_operators import exists
from .onnx_rules import MAX_FAULTS, Fault

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

STANDARD = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
"""Domains whose operators onnx itself defines."""
RUNTIME_OPERATORS = frozenset(("SimplifiedLayerNormalization",))
"""What ONNX Runtime adds to the default domain, and builders of models for it write: every decoder
of onnxruntime-genai has this one. Well formed, though no operator of ONNX."""


def scope_faults(model: ModelProto) -> list[Fault]:
    """All that breaks the rules of names, in all graphs and functions."""
    rules = _Rules(model)
    for path, graph in walk.top_graphs(model):
        outer = _Names(rules.main) if path else None
        rules.graph(path, graph, _Names(outer=outer), rules.imports(model))
        if not path:
            rules.main = rules.declared(graph)
    for f in model.functions:
        path = walk.function_path(f)
        known = _Names(f.input)
        if len(known.here) != len(f.input):
            rules.add(path, "an input's name twice", "duplicate-name")
        rules.nodes(path, f.node, known, rules.imports(f))
        for name in f.output:
            if name not in known:
                rules.add(path, f"output '{name}' is made by no node", "undefined-value")
    rules.recursion()
    return rules.faults


def _at(path: str, node: NodeProto, index: int) -> str:
    return f"{path + ': ' if path else ''}node {walk.label(node, index)}"


class _Names:
    """Names that are known in a graph. Those of the graphs around it are not copied: thousands of
    branches would each copy thousands of names."""

    __slots__ = ("_outer", "here")

    def __init__(self, here: Iterable[str] = (), outer: _Names | None = None) -> None:
        self.here, self._outer = set(here), outer

    def outside(self, name: str) -> bool:
        """Whether a graph around this one has the name."""
        around = self._outer
        while around is not None:
            if name in around.here:
                return True
            around = around._outer
        return False

    def __contains__(self, name: str) -> bool:
        return name in self.here or self.outside(name)


class _Rules:
    def __init__(self, model: ModelProto) -> None:
        self.faults: list[Fault] = []
        self.main: set[str] = set()
        self._functions = {(f.domain, f.name): f for f in model.functions}
        if len({(f.domain, f.name, f.overload) for f in model.functions}) != len(model.functions):
            self.add("", "two functions of one name", "duplicate-name")

    def add(
        self, path: str, text: str, reason: str, expected: Any = None, actual: Any = None
    ) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(reason, path, text, expected, actual))

    def imports(self, owner: Any) -> dict[str, int]:
        return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in owner.opset_import}

    def declared(self, graph: GraphProto) -> set[str]:
        names = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        names |= {s.values.name for s in graph.sparse_initializer}
        return names | {o for n in graph.node for o in n.output}

    def graph(self, path: str, graph: GraphProto, known: _Names, imports: dict[str, int]) -> None:
        """Judge one graph; `known` are the names of the graphs around it, and gets its own."""
        for what, names in (
            ("input", [v.name for v in graph.input]),
            (
                "initializer",
                [t.name for t in graph.initializer]
                + [s.values.name for s in graph.sparse_initializer],
            ),
        ):
            seen: set[str] = set()
            for name in names:
                if not name:
                    self.add(path, f"{what} without a name", "no-name")
                elif name in seen or known.outside(name):
                    self.add(path, f"{what} '{name}' twice", "duplicate-name")
                seen.add(name)
            known.here |= seen  # an initializer may be the default of an input of its name
        self.nodes(path, graph.node, known, imports)
        seen = set()
        for v in graph.output:
            if v.name in seen:
                self.add(path, f"output '{v.name}' twice", "duplicate-name")
            seen.add(v.name)
            if v.name not in known:
                self.add(path, f"output '{v.name}' is made by no node", "undefined-value")

    def nodes(
        self, path: str, nodes: Sequence[NodeProto], known: _Names, imports: dict[str, int]
    ) -> None:
        """Judge a list of nodes; adds what they make to `known`."""
        later = {o: i for i, n in enumerate(nodes) for o in n.output if o}
        here = known.here
        for i, node in enumerate(nodes):
            for name in node.input:
                if name and name not in here and not known.outside(name):
                    self._unknown(_at(path, node, i), name, later, nodes)
            domain = "" if node.domain == "ai.onnx" else node.domain
            if not self._operator(node, domain, imports):
                self._not_an_operator(_at(path, node, i), node, domain, imports)
            if len(node.attribute) > 1:
                attributes = {a.name for a in node.attribute}
                if len(attributes) != len(node.attribute):
                    self.add(_at(path, node, i), "an attribute twice", "duplicate-name")
            for name, body in walk.bodies(node):
                inner = walk.below(_at(path, node, i), name)
                self.graph(inner, body, _Names(outer=known), imports)
            for name in node.output:
                if name and name in known:
                    text = f"makes '{name}', which exists already"
                    self.add(_at(path, node, i), text, "duplicate-name")
                here.add(name)

    def _unknown(
        self, at: str, name: str, later: dict[str, int], nodes: Sequence[NodeProto]
    ) -> None:
        if name in later:
            maker = walk.label(nodes[later[name]], later[name])
            text = f"input '{name}' is made later, by node {maker}"
            self.add(at, text, "not-sorted", "topological order")
        else:
            self.add(at, f"input '{name}' is made by no node", "undefined-value")

    def _operator(self, node: NodeProto, domain: str, imports: dict[str, int]) -> bool:
        if self._functions and (node.domain, node.op_type) in self._functions:
            return True
        version = imports.get(domain)
        if version is None:
            return False
        if domain not in STANDARD or exists(node.op_type, version, domain):
            return True
        return domain in STANDARD[:2] and node.op_type in RUNTIME_OPERATORS

    def _not_an_operator(
        self, at: str, node: NodeProto, domain: str, imports: dict[str, int]
    ) -> None:
        if domain not in imports:
            text = f"operator of domain '{domain or 'ai.onnx'}', which is not imported"
            self.add(at, text, "unknown-domain", sorted(imports), domain)
        else:
            text = f"no operator '{node.op_type}' in opset {imports[domain]}"
            self.add(at, text, "unknown-operator", None, node.op_type)

    def recursion(self) -> None:
        """Functions that call themselves, also through others: inlining would not end."""
        calls = {
            key: {
                (n.domain, n.op_type)
                for n in _all_nodes(f.node)
                if (n.domain, n.op_type) in self._functions
            }
            for key, f in self._functions.items()
        }
        callers: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for key, called in calls.items():
            for other in called:
                callers.setdefault(other, []).append(key)
        ready = [key for key, called in calls.items() if not called]
        for key in ready:  # grows while it is walked
            for caller in callers.get(key, ()):
                calls[caller].discard(key)
                if not calls[caller]:
                    ready.append(caller)
        for domain, name in sorted(set(calls) - set(ready)):
            self.add(f"function {domain}::{name}", "calls itself", "recursion")


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    for n in nodes:
        yield n
        for _, body in walk.bodies(n):
            yield from _all_nodes(body.node)
