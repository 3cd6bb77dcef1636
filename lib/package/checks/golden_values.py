"""What components, prompts and recipes give, compared with golden files: golden.values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checkpoint.onnx_types import type_name
from ...errors import NtoolError, Unsupported
from ..abi import family_module
from ..closeness import Closeness, compare, tolerance
from ..golden_feeds import Ports, Shape, fed, real_elements
from ..golden_file import LOGITS, Golden
from .run import all_sessions
from .subject import Finding, Part, Subject, bad, one_line, warn

if TYPE_CHECKING:
    from ...runtime.arrays import ArrayFile, Arrays

STATE = ("present", "past")
"""First words of names that are state, whatever the family: one of these that no port has is a
mistake, where another tensor is a note of who made the file."""
PSNR = {"float32": 40.0, "float16": 30.0, "bfloat16": 30.0}
"""Least PSNR in dB of a picture, by the coarsest type that draws it (docs/verify-package.md)."""
SHOWN = 8


def run_component(subject: Subject, name: str, feeds: Arrays) -> Arrays:
    """All outputs of a component. With `run_task` the only place where anything is run."""
    found: Arrays = all_sessions(subject)[name].run(feeds)
    return found


def run_task(subject: Subject, what: str, given: Any) -> Any:
    """`replay` (a prefix again) or `redraw` (a picture again) of the family's trial module.

    Raises:
        Unsupported: the family has no such run.
        NtoolError: what the run refuses.
    """
    trial = family_module(subject.family, "trial")
    function = getattr(trial, what, None)
    if function is None:
        raise Unsupported(f"family {subject.family}: goldens of this form", expected="of ports")
    return function(subject.package(), all_sessions(subject), given)


def values(subject: Subject) -> list[Finding]:
    """Every output of every golden, a finding each."""
    findings: list[Finding] = []
    for golden in subject.options.goldens:
        try:
            findings += _judged(subject, golden)
        except NtoolError as e:
            findings.append(bad(_of(golden.path, e), reason="golden"))
    return findings


def _of(path: str, error: NtoolError) -> str:
    """An error about a golden, which names the file once."""
    text = one_line(error)
    named = text.startswith((f"{path}: ", f"{Path(path)}: "))  # readers of arrays say it as a Path
    return text if named else f"{path}: {text}"


def _judged(subject: Subject, golden: Golden) -> Iterator[Finding]:
    if golden.recipe is not None:
        return _picture(subject, golden)
    if golden.prefix:
        return _prefix(subject, golden)
    return _ports(subject, golden)


# -- ports ----------------------------------------------------------------------------------------


def _ports(subject: Subject, golden: Golden) -> Iterator[Finding]:
    file = golden.arrays
    assert file is not None
    named = golden.component
    used: set[str] = set()
    known: set[str] = set()
    lacking: dict[str, list[str]] = {}
    compared = 0
    for part in subject.parts:
        ports = ports_of(part)
        known |= {*ports.inputs, *ports.outputs}
        if named not in (None, part.name):
            continue
        wanted = [name for name in ports.outputs if name in file.tensors]
        own = [name for name in ports.inputs if name in file.tensors]
        if not wanted or (named is None and not own):
            lacking[part.name] = [] if wanted else ["no output"]
            continue
        trial = family_module(subject.family, "trial")
        implied = getattr(trial, "implied", None) if subject.is_package else None
        feeds, missing = fed(file, part.name, ports, subject.manifest or {}, implied)
        if missing:
            lacking[part.name] = missing
            continue
        used |= {*ports.inputs, *ports.outputs}
        compared += 1
        yield from _component(subject, part, ports, file, golden.path, feeds, wanted)
    if not compared:
        text = f"{golden.path}: no component has its inputs and an output in it"
        yield bad(text, "ports of a component", lacking, reason="nothing-to-compare")
        return
    left = sorted(file.tensors.keys() - used)
    yield from _unused(golden.path, left, known, named)


def _unused(
    path: str, names: list[str], known: set[str], component: str | None
) -> Iterator[Finding]:
    """Tensors that were no port: state that is spelled wrongly, or what somebody keeps there.

    Args:
        known: ports of all components.
    """
    state = [n for n in names if n.replace("_", ".").split(".")[0] in STATE and n not in known]
    for name in state[:SHOWN]:
        yield bad(f"{path}: '{name}': no such port", component=component, reason="no-port")
    others = [n for n in names if n not in state]
    if others:
        said = ", ".join(others[:SHOWN]) + (", ..." if len(others) > SHOWN else "")
        whose = f"of {component}" if component else "that was run"
        text = f"{path}: not compared, because no port {whose} has the name: {said}"
        yield warn(text, None, len(others), component=component)


def _component(
    subject: Subject,
    part: Part,
    ports: Ports,
    file: ArrayFile,
    path: str,
    feeds: Arrays,
    wanted: Sequence[str],
) -> Iterator[Finding]:
    try:
        found = run_component(subject, part.name, feeds)
    except NtoolError as e:
        shapes = {k: list(v.shape) for k, v in list(feeds.items())[:SHOWN]}
        yield bad(_of(path, e), None, shapes, component=part.name, reason="run")
        return
    if not any(found[name].size for name in wanted):
        text = f"{path}: outputs of no elements: {', '.join(wanted)}"
        yield bad(text, component=part.name, reason="nothing-to-compare")
        return
    computed = part.entry.get("compute_dtype", "")
    for name in wanted:
        declared, shape = ports.outputs[name]
        real = real_elements(name, found[name].shape, ports, feeds)
        peak = 2.0 if list(shape[1:2]) == [3] and len(shape) == 4 else None  # values of -1..1
        yield _finding(
            name,
            path,
            found[name],
            file.read(name),
            (computed, declared),
            component=part.name,
            real=real,
            peak=peak,
        )


def ports_of(part: Part) -> Ports:
    """Inputs and outputs as the graph has them; initializers that are listed as inputs are none."""
    graph = part.model.graph
    inside = {t.name for t in graph.initializer}
    sides = []
    for side in (graph.input, graph.output):
        found: dict[str, tuple[str, Shape]] = {}
        for v in side:
            if v.name in inside:
                continue
            t = v.type.tensor_type
            dims = [
                d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in t.shape.dim
            ]
            found[v.name] = (type_name(t.elem_type), dims)
        sides.append(found)
    return Ports(sides[0], sides[1])


# -- prompts and pictures -------------------------------------------------------------------------


def _prefix(subject: Subject, golden: Golden) -> Iterator[Finding]:
    """Logits and state of a prefix file, made again of its tokens."""
    file = golden.arrays
    assert file is not None
    given = {n: file.read(n) for n in file.tensors if not n.startswith("past.")}
    found = run_task(subject, "replay", given)
    types = _compute_types(subject)
    for name in file.tensors:
        if name in found:
            component = _maker(subject)
            wanted = given[name] if name in given else file.read(name)
            yield _finding(
                name,
                golden.path,
                found[name],
                wanted,
                (*types, found[name].dtype.name),
                component=component,
            )
        elif name.startswith("past."):
            yield bad(f"{golden.path}: '{name}': no such state", reason="no-port")
    for name in found:
        if name not in file.tensors:
            yield bad(f"{golden.path}: '{name}' is missing", reason="golden")


def _maker(subject: Subject) -> str | None:
    """The component that has the logits, which is the one that has the state."""
    for part in subject.parts:
        if any(p["name"] == LOGITS for p in part.entry.get("outputs", ())):
            return part.name
    return None


def _picture(subject: Subject, golden: Golden) -> Iterator[Finding]:
    """A picture, drawn again by its recipe."""
    from ...sampling.image import load_image

    wanted = np.asarray(load_image(golden.path).convert("RGB"))
    what = f"{golden.path}: picture"
    assert golden.recipe is not None
    said = [golden.recipe.get("height"), golden.recipe.get("width"), 3]
    if said != list(wanted.shape):  # before it costs a drawing
        text = f"{what}: height and width in its recipe"
        yield bad(text, list(wanted.shape), said, reason="golden")
        return
    found = run_task(subject, "redraw", golden.recipe)
    if found.shape != wanted.shape:
        yield bad(what, list(wanted.shape), list(found.shape), reason="shape")
        return
    least = min(PSNR.get(t, PSNR["float32"]) for t in _compute_types(subject))
    made = compare(found, wanted, 0, peak=255.0)
    psnr = made.numbers["psnr"]
    ok = psnr is None or psnr >= least
    text = f"{what}: {'equal' if psnr is None else f'PSNR {psnr:.1f} dB'}"
    expected = {"psnr": least}
    yield Finding(ok, text, expected, made.numbers, reason=None if ok else "value")


def _compute_types(subject: Subject) -> tuple[str, ...]:
    return tuple(p.entry.get("compute_dtype", "") for p in subject.parts)


# -- one output -----------------------------------------------------------------------------------


def _finding(
    name: str,
    path: str,
    found: Any,
    wanted: Any,
    types: Iterable[str],
    *,
    component: str | None,
    **more: Any,
) -> Finding:
    """What comparing one output gave; a golden in 16 bits is known no better than its type."""
    if found.shape != wanted.shape:
        shapes = list(wanted.shape), list(found.shape)
        return bad(f"{name}: shape ({path})", *shapes, component=component, reason="shape")
    floats = "float" in found.dtype.name or "float" in wanted.dtype.name
    limit = tolerance(*types, found.dtype.name, wanted.dtype.name) if floats else 0.0
    made = compare(found, wanted, limit, **more)
    expected: dict[str, Any] = {"rtol": limit, "atol": limit} if limit else {"equal": True}
    return Finding(
        made.ok,
        f"{name}: {_told(made, found, wanted)} ({path})",
        expected,
        {**made.numbers, "at": made.place},
        component=component,
        reason=None if made.ok else "value",
    )


def _told(made: Closeness, found: Any, wanted: Any) -> str:
    n = made.numbers
    if made.ok:
        if not made.place:
            return f"equal, {n['of']} values"
        return f"within tolerance, max abs {n['max_abs']:.3g}, rel L2 {n['rel_l2'] or 0:.3g}"
    at = tuple(made.place)
    there = f"{found[at]} for {wanted[at]} at {made.place}"
    return f"{n['outside']} of {n['of']} values differ, the worst {there}"
