"""Whether a model is made of standard operators alone, wherever its nodes stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import onnx

from ..checkpoint.onnx_walk import Place, walk

if TYPE_CHECKING:
    from onnx import ModelProto

PLAIN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
"""Domains that every ONNX runtime is expected to know."""


class Foreign(NamedTuple):
    """A node that is no standard operator: where it is, what it asks for, and why that is none."""

    path: str
    domain: str
    op_type: str
    reason: str


def custom_nodes(model: ModelProto, nodes: list[Place]) -> Iterator[Place]:
    """Nodes of other domains, in the main graph, graphs of attributes and functions. A call of a
    function that the model defines is standard when the function's own nodes are."""
    own = {(f.domain, f.name) for f in model.functions}
    for place in nodes:
        key = (place.node.domain, place.node.op_type)
        if key[0] not in PLAIN_DOMAINS and key not in own:
            yield place


def foreign_nodes(model: ModelProto) -> Iterator[Foreign]:
    """Nodes of other domains, and nodes of standard domains that have no schema in their opset."""
    nodes = walk(model).nodes
    for place in custom_nodes(model, nodes):
        reason = "not a standard domain"
        yield Foreign(place.path, place.node.domain, place.node.op_type, reason)
    known: set[tuple[str, str, int]] = set()
    own = {(f.domain, f.name) for f in model.functions}
    for place in nodes:
        node = place.node
        if node.domain not in PLAIN_DOMAINS or (node.domain, node.op_type) in own:
            continue
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = place.imports.get(node.domain, place.imports.get(domain, 0))
        key = (node.op_type, domain, version)
        if key in known:
            continue
        if not version or not onnx.defs.has(node.op_type, version, domain):
            reason = f"no such operator in opset {version}"
            yield Foreign(place.path, node.domain, node.op_type, reason)
        known.add(key)
