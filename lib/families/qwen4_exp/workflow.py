"""How a qwen4_exp package is run, read from its package.json: components in order, ports, state.

A package.json is a stranger's: what does not fit together is refused here, before anything is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import InputError, SourceNotFound, Unsupported
from ...package import layout
from ...package.package import Package
from .processor import MERGE
from .request import NAME, TASK
from .state import State, read_states

LOGITS = "logits"
PIXELS, GRIDS = "pixel_values", "image_grid_thw"
"""Inputs of the component that sees (docs/qwen4-exp.md, "Vision tower")."""
FEATURES = "image_tokens"
"""Symbolic dimension of what pictures become: 0 without any."""
CHANNELS = 4
"""Of a position."""


class Edge(NamedTuple):
    """An output of a component that feeds `target`, COMPONENT.PORT; `cast`: its type there."""

    port: str
    target: str
    cast: str | None


@dataclass(frozen=True)
class Workflow:
    """How prompts and tokens are run.

    Attributes:
        once: components of a prompt, in order. each_token: those of a further token.
        seeing: components that pictures alone need, not all of which a package has to have.
        stop: ids that end a row.
        inputs: token_ids, attention_mask, position_ids -> COMPONENT.PORT of each reader.
        edges: component -> what of its outputs goes on to other components.
        states: the state of the last component.
        empty: COMPONENT.PORT -> shape of its value where there are no pictures.
        image_token: id that stands for a feature of a picture; None in a package of text.
    """

    once: tuple[str, ...]
    each_token: tuple[str, ...]
    seeing: frozenset[str]
    stop: tuple[int, ...]
    inputs: dict[str, tuple[str, ...]]
    edges: dict[str, tuple[Edge, ...]]
    states: tuple[State, ...]
    empty: dict[str, tuple[int, ...]]
    image_token: int | None


def read_workflow(package: Package) -> Workflow:
    """The workflow of a package.

    Raises:
        Unsupported: another family, or another rule of positions.
        SourceNotFound: components are missing that every prompt needs.
        InputError: ports that are not there, that nothing feeds, or a state that is not of the last
            component; names them.
    """
    m = package.manifest
    where = f"{package.root}: {layout.MANIFEST}"
    if m.get("family") != NAME:
        raise Unsupported(f"{package.root}: family", found=m.get("family"), expected=NAME)
    given: dict[str, Any] = m["workflow"]
    rule = given["positions"]
    if (rule["rule"], rule["channels"], rule["merge_size"]) != ("mrope", CHANNELS, MERGE):
        raise Unsupported(f"{where}: workflow.positions", found=rule, expected="rule mrope")
    task = given["tasks"].get(TASK)
    if task is None:
        raise SourceNotFound(
            f"{package.root}: package lacks components for task {TASK}",
            found=", ".join(m["components"]),
            hint="export all components: ntool export-component SOURCE -o PKG",
        )
    once, each_token = tuple(task["once"]), tuple(task["decode"]["each_token"])
    seeing = frozenset(once) - frozenset(each_token)
    ports = {c: _ports(entry) for c, entry in m["components"].items()}
    for c in each_token:
        if c not in ports or c not in once:
            raise InputError(f"{where}: task {TASK}: each_token: component", found=c)
    if not each_token or once[-1] != each_token[-1]:
        raise InputError(f"{where}: task {TASK}: last components differ", found=list(once))
    states = read_states(m["cache"])
    edges = _edges(given["edges"], ports, where)
    inputs = {k: tuple(v) for k, v in given["inputs"].items()}
    last = each_token[-1]
    _check_state(states, last, ports, where)
    given_ports = {port for readers in inputs.values() for port in readers}
    given_ports |= {f"{last}.{s.input}" for s in states}
    seen = {f"{c}.{port}" for c in seeing for port in (PIXELS, GRIDS)}
    _fed(once, given_ports | seen, edges, ports, where)
    return Workflow(
        once,
        each_token,
        seeing,
        tuple(task["decode"]["stop_token_ids"]),
        inputs,
        edges,
        states,
        _fed(each_token, given_ports, edges, ports, where),
        rule["image_token_id"],
    )


Ports = tuple[dict[str, list[Any]], dict[str, list[Any]]]
"""Shapes of inputs and of outputs by name."""


def _ports(entry: dict[str, Any]) -> Ports:
    inputs, outputs = (
        {p["name"]: p["shape"] for p in entry[side]} for side in ("inputs", "outputs")
    )
    return inputs, outputs


def _edges(
    given: list[dict[str, Any]], ports: dict[str, Ports], where: str
) -> dict[str, tuple[Edge, ...]]:
    """Edges between different components, by the one that they start from."""
    found: dict[str, list[Edge]] = {}
    for edge in given:
        source, _, port = edge["from"].partition(".")
        reader, _, target = edge["to"].partition(".")
        if port not in ports.get(source, ({}, {}))[1] or target not in ports.get(reader, ({},))[0]:
            raise InputError(f"{where}: edge of no port", found=f"{edge['from']} -> {edge['to']}")
        if source != reader:  # those of one component are its state, which `cache` has
            found.setdefault(source, []).append(Edge(port, edge["to"], edge.get("cast")))
    return {k: tuple(v) for k, v in found.items()}


def _check_state(states: tuple[State, ...], last: str, ports: dict[str, Ports], where: str) -> None:
    inputs, outputs = ports[last]
    for s in states:
        if s.input not in inputs or s.output not in outputs:
            raise InputError(
                f"{where}: cache: {s.name}", found=f"{s.input}, {s.output}", expected=f"of {last}"
            )
        free = [d for axis, d in enumerate(s.shape) if isinstance(d, str) and axis != s.grows]
        if list(s.shape) != inputs[s.input] or len(free) != 1:  # what is free is the batch
            raise InputError(
                f"{where}: cache: {s.name}: shape",
                found=list(s.shape),
                expected=f"{inputs[s.input]}, with one axis of rows",
            )
    if LOGITS not in outputs:
        raise InputError(f"{where}: {last}: no output '{LOGITS}'")


def _fed(
    names: tuple[str, ...],
    given: set[str],
    edges: dict[str, tuple[Edge, ...]],
    ports: dict[str, Ports],
    where: str,
) -> dict[str, tuple[int, ...]]:
    """Shapes of what pictures would feed to these components, run in this order without pictures.

    Args:
        given: COMPONENT.PORT of what is there from the beginning.
    Raises:
        InputError: an input that nothing feeds.
    """
    fed, found = set(given), {}
    for c in names:
        for port, shape in ports.get(c, ({}, {}))[0].items():
            key = f"{c}.{port}"
            if key in fed:
                continue
            if FEATURES not in shape or not all(d == FEATURES or isinstance(d, int) for d in shape):
                raise InputError(f"{where}: nothing feeds input '{port}' of {c}")
            found[key] = tuple(0 if d == FEATURES else d for d in shape)
        fed |= {e.target for e in edges.get(c, ())}
    return found
