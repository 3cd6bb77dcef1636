"""Which patches of a plan take effect on a source, and what becomes of the others."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from .findings import Finding, finding
from .model import External, PatchType, Plan, PlannedPatch
from .snippet import decorator_name
from .source import DefinitionNode, SourceModule, guarded

_SPELLED = {
    PatchType.CLASS_REPLACEMENT: "replace_class",
    PatchType.FUNCTION_REPLACEMENT: "replace_function",
    PatchType.METHOD_OVERRIDE: "override_method",
    PatchType.INIT_MODIFICATION: "modify_init",
}


@dataclass
class Effective:
    """Patches by what they do.

    Attributes:
        replaced: top-level name -> the patch that replaces its definition.
        methods: top-level class -> (dotted name inside it, patch), in order of registration.
        excluded: top-level names that are left out.
        applied: the patches in order of registration.
    """

    replaced: dict[str, PlannedPatch] = field(default_factory=dict)
    methods: dict[str, list[tuple[str, PlannedPatch]]] = field(default_factory=dict)
    excluded: set[str] = field(default_factory=set)
    applied: list[PlannedPatch] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def effective(plan: Plan, source: SourceModule) -> Effective:
    """Judge every patch, exclusion, anchor and dropped import of a plan."""
    out = Effective(excluded={n for n in plan.excluded if n in source.top_level})
    say = out.findings.append
    for name in plan.excluded:
        if name not in source.top_level:
            where = _in_guard(source, name) or "not in the source"
            say(finding("target-missing", name, f"nothing to exclude: {where}", note=True))
    last: dict[str, PlannedPatch] = {}
    for patch in plan.patches:
        problem = _judge(patch, source)
        if problem is not None:
            say(problem)
            continue
        if patch.target in last:
            say(finding("duplicate-target", patch.target, "patched twice; the last one counts"))
        last[patch.target] = patch
    replaced = {t: p for t, p in last.items() if p.kind is not PatchType.METHOD_OVERRIDE}
    for target, patch in last.items():
        head = target.partition(".")[0]
        by = None
        if head in out.excluded:
            by = f"exclude_from_output {head}"
        elif patch.kind is PatchType.METHOD_OVERRIDE and head in replaced:
            by = f"{_SPELLED[replaced[head].kind]} {head}"
        if by is not None:
            say(finding("shadowed", target, f"has no effect because of {by}", by=by))
    for patch in plan.patches:
        head, _, rest = patch.target.partition(".")
        if last.get(patch.target) is not patch or head in out.excluded:
            continue
        if patch.kind is not PatchType.METHOD_OVERRIDE:
            out.replaced[head] = patch
            nodes = [*source.top_level[head], *source.guarded.get(head, ())]
            _several(patch.target, nodes, say)
        elif head in replaced:
            continue
        else:
            out.methods.setdefault(head, []).append((rest, patch))
        out.applied.append(patch)
    for anchor, helper in plan.after:
        if anchor not in source.top_level:
            where = _in_guard(source, anchor) or "not in the source"
            message = f"{helper.name} has no place: {where}"
            say(finding("anchor-missing", anchor, message, helper=helper.name))
    for helper in plan.helpers:
        if helper.name in source.top_level and helper.name not in out.excluded:
            by = f"the source's own {helper.name}"
            say(finding("shadowed", helper.name, f"the helper is followed by {by}", by=by))
    for name in plan.dropped:
        if not any(name in i.spelled for i in source.imports):
            say(finding("import-not-dropped", name, "the source does not import it"))
    return out


def _judge(patch: PlannedPatch, source: SourceModule) -> Finding | None:
    """Why a patch cannot be applied, or None."""
    kind, target = patch.kind, patch.target
    value = kind.value

    def refused(message: str) -> Finding:
        return finding("not-applied", target, message, patch_kind=value)

    if kind not in _SPELLED or kind is PatchType.INIT_MODIFICATION:
        return refused(
            f"{_SPELLED.get(kind, value)} has no defined effect; override __init__ instead"
        )
    head, _, rest = target.partition(".")
    if kind is PatchType.METHOD_OVERRIDE:
        if not rest:
            return refused("override_method needs Class.method")
        if isinstance(patch.replacement, External):
            return refused("an external replacement cannot become a method")
        owner, _, name = target.rpartition(".")
        node = class_at(source, owner)
        if node is None:
            guard = _class_in_guard(source, owner)
            if guard or source.functions(head):
                return refused(guard or f"{head} is a function")
            return finding("target-missing", target, f"class {owner} is not in the source")
        own = [n for n in node.body if isinstance(n, DefinitionNode) and n.name == name]
        if any(isinstance(n, ast.ClassDef) for n in own):
            return refused(f"{target} is a class")
        under = [n for n in guarded(node) if n.name == name]
        if under and not own:
            return refused(_conditional(target, under, "directly in the class"))
        return None
    found = source.top_level.get(target, [])
    wanted = ast.ClassDef if kind is PatchType.CLASS_REPLACEMENT else DefinitionNode
    if kind is PatchType.FUNCTION_REPLACEMENT and any(isinstance(n, ast.ClassDef) for n in found):
        return refused(f"{target} is a class")
    if found and not any(isinstance(n, wanted) for n in found):
        return refused(f"{target} is a function")
    if not found:
        guard = _in_guard(source, target)
        if guard:
            return refused(guard)
        what = "class" if kind is PatchType.CLASS_REPLACEMENT else "function"
        return finding("target-missing", target, f"{what} {target} is not in the source")
    return None


def _in_guard(source: SourceModule, name: str) -> str | None:
    nodes = source.guarded.get(name)
    return _conditional(name, nodes, "at the top level") if nodes else None


def _conditional(name: str, nodes: Sequence[DefinitionNode], place: str) -> str:
    return f"{name} is defined under a condition (line {nodes[0].lineno}), not {place}"


def _class_in_guard(source: SourceModule, owner: str) -> str | None:
    """Where a class, or one around it, is defined under a condition."""
    around, _, name = owner.rpartition(".")
    if not around:
        return _in_guard(source, name)
    node = class_at(source, around)
    if node is None:
        return _class_in_guard(source, around)
    under = [n for n in guarded(node) if n.name == name]
    return _conditional(owner, under, f"directly in {around}") if under else None


def class_at(source: SourceModule, owner: str) -> ast.ClassDef | None:
    """The class of a dotted name, inner ones included; of several the last."""
    head, *inner_names = owner.split(".")
    classes = source.classes(head)
    node = classes[-1] if classes else None
    for name in inner_names:
        inner = [n for n in (node.body if node else ()) if isinstance(n, ast.ClassDef)]
        node = next((n for n in reversed(inner) if n.name == name), None)
    return node


def real(nodes: Sequence[DefinitionNode]) -> list[DefinitionNode]:
    """Definitions without the stubs of overloads."""
    found = [n for n in nodes if "overload" not in {_last(d) for d in n.decorator_list}]
    return found or list(nodes)


def _last(decorator: ast.expr) -> str:
    return decorator_name(decorator).rpartition(".")[2]


def _several(target: str, nodes: list[DefinitionNode], say: object) -> None:
    if len(real(nodes)) > 1:
        lines = sorted(n.lineno for n in nodes)
        message = f"the source defines it {len(lines)} times; one is replaced"
        say(finding("accessor-split", target, message, lines=lines))  # type: ignore[operator]
