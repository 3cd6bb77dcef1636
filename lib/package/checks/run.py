"""run.*: does it run here? Sessions are made once and used by all of these checks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoint import onnx_walk as walk
from ...checkpoint.onnx_types import type_name
from ...errors import EnvironmentProblem, NtoolError
from ..abi import family_module
from .subject import Check, Finding, Part, Subject, bad, not_applicable, one_line

if TYPE_CHECKING:
    from ...runtime.arrays import Arrays
    from ...runtime.session import Session


MAX_OPERATORS = 6
"""Operators that run.placement names."""


def sessions(subject: Subject) -> dict[str, Session]:
    """Sessions that run.load has made, by component."""
    found: dict[str, Session] = subject.__dict__.setdefault("_sessions", {})
    return found


def load(subject: Subject, part: Part) -> list[Finding]:
    """A session can be made on the device. "Valid, no kernel" is an answer of its own."""
    try:
        session_of(subject, part)
    except EnvironmentProblem as e:
        from . import kernels

        match = kernels.NO_KERNEL.search(e.message)
        if match is None:
            return [bad(e.message, reason=_reason(e, "environment"))]
        dtype = _first_type(part, match[2])
        text = f"valid, no kernel for {match[1]}({dtype}) at {match[2]}"
        device = subject.options.device[0]
        return [bad(f"{part.file}: {text}", f"a kernel on {device}", text, reason="no-kernel")]
    except NtoolError as e:
        return [bad(e.message, reason="not-loadable")]
    return []


def session_of(subject: Subject, part: Part) -> Session:
    """The session of a component; made by run.load, and again if its process has ended since.

    Raises:
        NtoolError: none can be made.
    """
    from ...runtime.session import Session, Settings

    made = sessions(subject)
    if part.name not in made:
        device = subject.options.device
        # the path as it is in the package: onnxruntime resolves links by itself, and checks where
        # external data lies from there
        path = Path(subject.root) / part.file
        made[part.name] = Session(path, Settings(device, placed=device[0] != "cpu"))
    return made[part.name]


def all_sessions(subject: Subject) -> dict[str, Session]:
    """Sessions of all components; raises as `session_of`."""
    return {p.name: session_of(subject, p) for p in subject.parts}


def _reason(error: NtoolError, otherwise: str) -> str:
    lack = isinstance(error, EnvironmentProblem) and "not enough memory" in error.message
    return "memory" if lack else otherwise


def support(subject: Subject, part: Part) -> list[Finding]:
    """Every node has a kernel on the device; all kinds that have none. Loads no weights."""
    if part.name in sessions(subject):
        return [Finding(True, "every node has a kernel: run.load made a session")]
    from . import kernels  # checks that run nothing start quicker without it

    return kernels.support(part, subject.options.device)


def _first_type(part: Part, node_name: str) -> str:
    """Element type of the first input of a node, `?` where it is not known."""
    known: dict[str, int] = {}
    for _, graph in walk.walk(part.typed).graphs:
        for v in (*graph.input, *graph.value_info, *graph.output):
            known[v.name] = v.type.tensor_type.elem_type
        known |= {t.name: t.data_type for t in graph.initializer}
    for place in part.walk.nodes:
        node = place.node
        if node.name == node_name:
            return type_name(next((known[i] for i in node.input if known.get(i)), 0))
    return "?"


def dynamic(subject: Subject, part: Part) -> list[Finding]:
    """Each symbolic axis runs at two values, and outputs have the lengths they promise."""
    trial = family_module(subject.family, "trial")
    session = session_of(subject, part)
    manifest = subject.manifest or {}
    if trial is None:
        return [not_applicable(f"family {subject.family} has no small runs")]
    axes: dict[str, set[int]] = {}
    findings: list[Finding] = []
    runs = 0
    try:
        cases = list(trial.cases(manifest, part.name))
    except NtoolError as e:
        return [bad(f"{part.file}: {e.message}", reason="sizes")]
    for label, feeds, sizes in cases:
        runs += 1
        for p in part.entry["inputs"]:
            for d in p["shape"]:
                if isinstance(d, str) and d in sizes:
                    axes.setdefault(d, set()).add(sizes[d])
        try:
            found = session.run(feeds)
        except NtoolError as e:
            text = f"{part.file}: with {label}: {one_line(e)}"
            reason = _reason(e, "run")
            findings.append(bad(text, _shapes(feeds), None, reason=reason))
            continue
        findings += _promised(part, found, sizes, label)
    symbolic = {d for p in part.entry["inputs"] for d in p["shape"] if isinstance(d, str)}
    stuck = sorted(d for d in symbolic if len(axes.get(d, ())) < 2)
    if stuck:
        findings.append(bad(f"{part.file}: axis '{stuck[0]}' cannot be run at two values"))
    if findings:
        return findings
    values = {d: sorted(v) for d, v in sorted(axes.items())}
    return [Finding(True, f"{runs} runs", None, values)]


def _promised(
    part: Part, found: dict[str, Any], sizes: dict[str, int], label: str
) -> list[Finding]:
    findings = []
    for p in part.entry["outputs"]:
        wanted = [sizes.get(d, d) if isinstance(d, str) else d for d in p["shape"]]
        actual = list(found[p["name"]].shape)
        if len(wanted) != len(actual) or any(
            isinstance(w, int) and w != a for w, a in zip(wanted, actual, strict=True)
        ):
            text = f"{part.file}: output '{p['name']}' with {label}"
            findings.append(bad(text, wanted, actual, reason="shape"))
    return findings


def _shapes(feeds: Arrays) -> dict[str, list[int]]:
    return {k: list(v.shape) for k, v in list(feeds.items())[:8]}


def finite(subject: Subject) -> list[Finding]:
    """As much of a tiny prefill and two denoising steps as there are components for is finite."""
    trial = family_module(subject.family, "trial")
    if trial is None:
        return [not_applicable(f"family {subject.family} has no small runs")]
    loaded = all_sessions(subject)
    try:
        ran, wrong = trial.finite(subject.package(), loaded)
    except NtoolError as e:
        return [bad(e.message, reason=_reason(e, "run"))]
    return [
        bad(f"output '{name}' of {component}", "finite", "not finite", component=component)
        for component, name in wrong
    ] or [Finding(True, f"{', '.join(ran)}: finite")]


def placement(subject: Subject) -> list[Finding]:
    """With a GPU: how many nodes of each component it runs; none at all is a fault."""
    if subject.options.device[0] == "cpu":
        return [not_applicable("the device is the CPU, which runs every node")]
    return [
        placed(part, session_of(subject, part).placement(), "CUDAExecutionProvider")
        for part in subject.parts
    ]


def placed(part: Part, found: dict[str, Counter[str]] | None, provider: str) -> Finding:
    """What placement says of a component whose nodes the providers share in this way."""
    if not found:
        return not_applicable("this ONNX Runtime does not say where nodes run", component=part.name)
    total = sum(n.total() for n in found.values())
    there = found.get(provider, Counter()).total()
    others: Counter[str] = sum((n for p, n in found.items() if p != provider), Counter())
    most = ", ".join(f"{op} {n}" for op, n in others.most_common(MAX_OPERATORS))
    text = f"{part.file}: {there} of {total} nodes on {provider}"
    text += f"; elsewhere: {most}" if most else ""
    share = round(there / total, 4)
    if there == 0:
        return bad(text, f"nodes on {provider}", share, component=part.name, reason="not-placed")
    return Finding(True, text, None, share, component=part.name)


CHECKS = (
    Check(
        "run.load",
        "loads on the device",
        load,
        ("graph.parse", "graph.checker", "data.path", "data.bounds"),
        plain=True,
    ),
    Check(
        "run.support",
        "every node has a kernel",
        support,
        ("graph.parse", "graph.checker"),
        plain=True,
    ),
    Check(
        "run.dynamic",
        "every symbolic axis runs at two values",
        dynamic,
        ("layout.schema", "graph.names", "flow.ports", "run.load"),
    ),
    Check(
        "run.finite",
        "small runs are finite",
        finite,
        ("layout.schema", "graph.names", "flow.ports", "flow.tokens", "run.load"),
        package=True,
    ),
    Check(
        "run.placement",
        "the GPU runs nodes",
        placement,
        ("run.load",),
        package=True,
        plain=True,
    ),
)
