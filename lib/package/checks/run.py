"""run.*: does it run here? Sessions are made once and used by all three checks."""

from __future__ import annotations

import re
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

_NO_KERNEL = re.compile(r"no kernel here for (\S+?)\(\d+\) at node '([^']*)'")


def sessions(subject: Subject) -> dict[str, Session]:
    """Sessions that run.load has made, by component."""
    found: dict[str, Session] = subject.__dict__.setdefault("_sessions", {})
    return found


def load(subject: Subject, part: Part) -> list[Finding]:
    """A session can be made on the device. "Valid, no kernel" is an answer of its own."""
    from ...runtime.session import Session, Settings

    assert part.path is not None
    try:
        # the path as it is in the package: onnxruntime resolves links by itself, and checks where
        # external data lies from there
        session = Session(Path(subject.root) / part.file, Settings(subject.options.device))
    except EnvironmentProblem as e:
        match = _NO_KERNEL.search(e.message)
        if match is None:
            return [bad(e.message, reason="environment")]
        dtype = _first_type(part, match[2])
        text = f"valid, no kernel for {match[1]}({dtype}) at {match[2]}"
        device = subject.options.device[0]
        return [bad(f"{part.file}: {text}", f"a kernel on {device}", text, reason="no-kernel")]
    except NtoolError as e:
        return [bad(e.message, reason="not-loadable")]
    sessions(subject)[part.name] = session
    return []


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
    session = sessions(subject)[part.name]
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
            findings.append(bad(text, _shapes(feeds), None, reason="run"))
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
    loaded = sessions(subject)
    missing = [p.name for p in subject.parts if p.name not in loaded]
    if missing:
        return [not_applicable(f"{', '.join(missing)} not loaded: see run.load", see="run.load")]
    try:
        ran, wrong = trial.finite(subject.package(), loaded)
    except NtoolError as e:
        return [bad(e.message, reason="run")]
    return [
        bad(f"output '{name}' of {component}", "finite", "not finite", component=component)
        for component, name in wrong
    ] or [Finding(True, f"{', '.join(ran)}: finite")]


CHECKS = (
    Check(
        "run.load",
        "loads on the device",
        load,
        ("graph.parse", "graph.checker", "data.path", "data.bounds"),
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
)
