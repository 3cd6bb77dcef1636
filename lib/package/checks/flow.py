"""flow.*: how components fit together, and the tokens that prompts and loops name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import ModelProto, numpy_helper

from ...errors import NtoolError, SourceNotFound
from .. import layout
from ..abi import family_module
from .graph import ports
from .subject import Check, Finding, Part, Subject, bad, not_applicable, not_read

FLOATS = {"float32", "float16", "bfloat16"}
"""Types between which an edge may cast."""
TOKENS = ("decode.stop_token", "decode.picture_token")
"""Places of a task that name a special token: flow.tokens judges those."""


def edges(subject: Subject) -> list[Finding]:
    """Each edge joins ports of equal type and shape; the cache feeds all that read it."""
    assert subject.manifest is not None
    if subject.weights_only:
        return [not_applicable("a package of weights has no workflow")]
    workflow = subject.manifest["workflow"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    unknown = set()
    for part in subject.parts:
        if part.path is None or part.reading.findings:
            unknown.add(part.name)
            continue
        sides = ports(part.model)
        found[part.name] = {side: {p["name"]: p for p in sides[side]} for side in sides}
    findings = []
    fed: dict[str, str] = {}
    for edge in workflow["edges"]:
        ends = []
        for key, side in (("from", "outputs"), ("to", "inputs")):
            component, _, port = edge[key].partition(".")
            if component in unknown:
                break
            if port not in found.get(component, {}).get(side, {}):
                text = f"edge {edge['from']} -> {edge['to']}: no {side[:-1]} '{edge[key]}'"
                findings.append(bad(text, reason="no-port", component=component))
                break
            ends.append(found[component][side][port])
        if len(ends) == 2:
            findings += _joined(edge, *ends)
        if edge["to"] in fed and edge["to"].split(".")[0] not in unknown:
            text = f"{edge['to']}: fed by {fed[edge['to']]} and {edge['from']}"
            findings.append(bad(text, reason="fed-twice"))
    findings += _cache(subject.manifest, found)
    findings += _tasks(subject.manifest, set(found) | unknown)
    if unknown and not findings:
        text = f"no graph of {', '.join(sorted(unknown))}: see graph.parse"
        return [not_applicable(text, see="graph.parse")]
    return findings


def _joined(edge: dict[str, Any], a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    what = f"edge {edge['from']} -> {edge['to']}"
    component = edge["to"].split(".")[0]
    given = edge.get("cast", a["dtype"])
    if given != b["dtype"]:
        text = f"{what}: element type"
        return [bad(text, given, b["dtype"], reason="dtype", component=component)]
    if "cast" in edge and (given == a["dtype"] or not {given, a["dtype"]} <= FLOATS):
        text = f"{what}: cast of {a['dtype']} to {given}"
        return [bad(text, "two float types", edge["cast"], reason="cast", component=component)]
    dims = edge.get("dims", {})
    idle = sorted(set(dims) - {d for d in a["shape"] if isinstance(d, str)})
    if idle:
        text = f"{what}: 'dims' renames '{idle[0]}', which the output does not have"
        return [bad(text, reason="dims", component=component)]
    renamed = [dims.get(d, d) if isinstance(d, str) else d for d in a["shape"]]
    if renamed != b["shape"]:
        reason = "rank" if len(renamed) != len(b["shape"]) else "shape"
        return [bad(f"{what}: shape", renamed, b["shape"], reason=reason, component=component)]
    return []


def _cache(manifest: dict[str, Any], found: dict[str, Any]) -> list[Finding]:
    """Each entry of the cache is fed back by an edge, in every component that has its input."""
    abi = family_module(manifest["family"], "abi")
    # without a maker of the cache in the package, it comes from another package: no edge says so
    makers = [
        c
        for c, sides in (abi.CACHE_PORTS if abi else {}).items()
        if "outputs" in sides and c in manifest["components"]
    ]
    joined = {(e["from"], e["to"]): e for e in manifest["workflow"]["edges"]}
    findings = []
    places = [(e["layer"], e["role"]) for e in manifest["cache"]]
    for place in sorted({p for p in places if places.count(p) > 1}, key=str):
        findings.append(bad(f"cache: layer {place[0]} {place[1]} twice", reason="cache-twice"))
    for entry in manifest["cache"]:
        for key, wanted_name in (abi.cache_names(entry) if abi else {}).items():
            if entry[key] != wanted_name:
                text = f"cache entry of layer {entry['layer']}, {entry['role']}: {key}"
                findings.append(bad(text, wanted_name, entry[key], reason="cache-name"))
        for component, sides in found.items():
            if entry["input"] not in sides["inputs"]:
                continue
            port = sides["inputs"][entry["input"]]
            wanted = [(f"{m}.{entry['output']}", f"{component}.{entry['input']}") for m in makers]
            edges = [joined[w] for w in wanted if w in joined]
            dtype = edges[0].get("cast", entry["dtype"]) if edges else entry["dtype"]
            if (port["dtype"], port["shape"]) != (dtype, entry["shape"]):
                text = f"cache entry {entry['input']}: input of {component}"
                want, have = [dtype, entry["shape"]], [port["dtype"], port["shape"]]
                findings.append(bad(text, want, have, reason="cache", component=component))
            if makers and not edges:
                text = f"cache entry {entry['input']} of {component} is fed by no edge"
                edge = " -> ".join(wanted[0])
                findings.append(bad(text, edge, None, reason="cache-edge", component=component))
    return findings


def _tasks(manifest: dict[str, Any], there: set[str]) -> list[Finding]:
    abi = family_module(manifest["family"], "abi")
    optional = abi.OPTIONAL_COMPONENTS if abi else ()
    known = getattr(abi, "TASKS", None)
    findings = []
    if abi is not None and hasattr(abi, "workflow_faults"):
        for text, wanted, have in abi.workflow_faults(manifest):
            findings.append(bad(text, wanted, have, reason="task"))
    for task, value in manifest["workflow"]["tasks"].items():
        if known is not None:
            findings += _of_family(manifest["family"], task, value, known)
        loop, decode = value.get("loop", {}), value.get("decode", {})
        named = [*value["once"], *decode.get("each_token", ())]
        named += [*loop.get("each_step", ()), *loop.get("each_step_and_branch", ())]
        for name in dict.fromkeys(named):
            if name not in there and name not in optional:
                text = f"task {task}: component '{name}' is not in this package"
                findings.append(bad(text, sorted(there), name, reason="task"))
    return findings


def _of_family(family: str, task: str, value: Any, known: dict[str, Any]) -> list[Finding]:
    """A task is that of the family: a runtime of the family reads no formula, it has them."""
    if task not in known:
        text = f"task {task}: not one of {family}"
        return [bad(text, list(known), task, reason="task")]
    wanted, found = dict(_leaves(known[task])), dict(_leaves(value))
    for place in {**wanted, **found}:
        if place not in TOKENS and wanted.get(place) != found.get(place):
            text = f"task {task}: {place} of {family}"
            return [bad(text, wanted.get(place), found.get(place), reason="task")]
    return []


def _leaves(value: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """(place, value) of what is no object."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{place}{key}.")
        else:
            yield f"{place}{key}", inner


def tokens(subject: Subject) -> list[Finding]:
    """Special tokens have the tokenizer's ids; graphs guard the right ones."""
    from ...text import tokenizer_json
    from ...text.tokenizer import load

    manifest = subject.manifest
    assert manifest is not None
    if subject.weights_only:
        return [not_applicable("a package of weights has no tokens")]
    tokenizer = None
    if manifest["tokenizer"] is not None:
        folder, why = subject.resolve(manifest["tokenizer"])
        if folder is None:
            text = f"{manifest['tokenizer']}: {why}: see layout.files"
            return [not_applicable(text, see="layout.files")]
        try:
            one_file = tokenizer_json.FILE in layout.tokenizer_files(subject.family)[0]
            tokenizer = tokenizer_json.load_any(folder) if one_file else load(folder)
        except SourceNotFound as e:
            text = f"{e.message.replace(subject.root + '/', '')}: see layout.files"
            return [not_applicable(text, see="layout.files")]
        except NtoolError as e:
            return [bad(e.message.replace(subject.root + "/", ""), reason="tokenizer")]
    findings = []
    for name, given in manifest["special_tokens"].items():
        if tokenizer is None:
            text = f"token '{name}': the package has no tokenizer"
            findings.append(bad(text, None, given, reason="no-token"))
            continue
        try:
            actual = tokenizer.id(name)
        except NtoolError as e:
            findings.append(bad(f"token '{name}': {e.message}", given, None, reason="no-token"))
            continue
        if actual != given:
            text = f"token '{name}': id in package.json"
            findings.append(bad(text, actual, given, reason="token-id"))
        if actual >= manifest["vocab_size"]:
            text = f"token '{name}': id outside the vocabulary"
            findings.append(bad(text, f"< {manifest['vocab_size']}", actual, reason="token-id"))
    for place, name in _named_tokens(manifest["workflow"]):
        if name not in manifest["special_tokens"]:
            text = f"workflow.{place}: not one of special_tokens"
            findings.append(bad(text, sorted(manifest["special_tokens"]), name, reason="no-token"))
    abi = family_module(manifest["family"], "abi")
    for task, value in manifest["workflow"]["tasks"].items():
        wanted = dict(_leaves(getattr(abi, "TASKS", {}).get(task, {})))
        for place, name in _leaves(value):
            given = wanted.get(place)
            if place in TOKENS and name in manifest["special_tokens"] and given not in (None, name):
                text = f"workflow.tasks.{task}.{place}"
                findings.append(bad(text, given, name, reason="no-token"))
    for part in subject.parts:
        guards = (abi.token_guards(manifest) if abi else {}).get(part.name)
        if part.path is None or part.reading.findings:
            if guards is not None or part.entry["unsupported_token_ids"]:
                findings.append(not_read(part))
            continue
        findings += _width(part, manifest.get("vocab_size"))
        if guards is not None:
            port, token, wanted = guards
            found = _compared(part.model, port)
            if wanted not in found:
                text = f"{part.file}: id that '{port}' is compared with ({token})"
                more = {"component": part.name, "reason": "token-guard"}
                findings.append(bad(text, wanted, sorted(found), **more))
        missing = set(part.entry["unsupported_token_ids"])
        if missing:
            missing -= _whole_numbers(part.model)
        if missing:
            text = f"{part.file}: unsupported token ids that no constant of the graph guards"
            findings.append(
                bad(text, [], sorted(missing), component=part.name, reason="token-guard")
            )
    return findings


def _width(part: Part, size: int | None) -> Iterator[Finding]:
    """Logits are as wide as the vocabulary that package.json tells."""
    for p in ports(part.model)["outputs"]:
        if size is not None and p["name"] == "logits" and p["shape"][-1:] not in ([size], [None]):
            text = f"{part.file}: vocab_size of package.json, and the width of the logits"
            want = p["shape"][-1] if p["shape"] else None
            yield bad(text, want, size, component=part.name, reason="vocabulary")


def _named_tokens(workflow: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(place, token) of the special tokens that positions and decoding loops name."""
    places = {"positions": workflow.get("positions", {})}
    places |= {f"tasks.{k}.decode": t.get("decode", {}) for k, t in workflow["tasks"].items()}
    for place, fields in places.items():
        for key, value in fields.items():
            if key.endswith("_token") and key != "each_token":  # that one lists components
                yield f"{place}.{key}", value


def _compared(model: ModelProto, port: str) -> set[int]:
    """Constants that an input is compared with by Equal."""
    constants = _constants(model)
    found: set[int] = set()
    for node in model.graph.node:
        if node.op_type == "Equal" and port in node.input:
            for name in node.input:
                found |= constants.get(name, set())
    return found


def _whole_numbers(model: ModelProto) -> set[int]:
    return {v for values in _constants(model).values() for v in values}


def _constants(model: ModelProto) -> dict[str, set[int]]:
    """Values of small int64 initializers that are stored in the graph."""
    return {
        t.name: {int(v) for v in numpy_helper.to_array(t).ravel()}
        for t in model.graph.initializer
        if t.data_type == t.INT64 and t.data_location == t.DEFAULT and len(t.raw_data) <= 1 << 20
    }


CHECKS = (
    Check(
        "flow.ports",
        "edges join equal ports, and the cache is fed",
        edges,
        ("layout.schema",),
        package=True,
    ),
    Check(
        "flow.tokens",
        "token ids are those of the tokenizer and of the graphs",
        tokens,
        ("layout.schema",),
        package=True,
    ),
)
