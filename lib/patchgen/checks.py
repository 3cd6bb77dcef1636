"""Findings about a built module: names, signatures, decorators, maps, leftovers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from .apply import Built
from .definitions import kind_of, with_article
from .findings import Finding, finding
from .lost_fields import lost_fields
from .model import PatchType, PlannedPatch
from .name_map import Mapped
from .names import GIVEN, MODULE, exported, names_of
from .snippet import Snippet, decorator_name
from .source import DefinitionNode, FunctionNode, Library, guarded, methods
from .targets import class_at, real


def check(built: Built, library: Library) -> list[Finding]:
    """All findings about what was built, those of its patches' targets first."""
    found = list(built.patches.findings)
    for patch in built.patches.applied:
        if patch in built.snippets:
            snippet, result = built.snippets[patch]
            found += _of_patch(built, library, patch, snippet, result)
    found += _names(built, library)
    found += _dead(built)
    return found


def _of_patch(
    built: Built, library: Library, patch: PlannedPatch, snippet: Snippet, result: Mapped
) -> Iterator[Finding]:
    target = patch.target
    nodes = originals(built, patch)
    new = snippet.node
    if patch.kind is PatchType.METHOD_OVERRIDE:
        owner, _, name = target.rpartition(".")
        node = class_at(built.source, owner)
        under = [n for n in guarded(node) if n.name == name] if node is not None else []
        yield from _of_method(target, nodes, under, new)
    elif nodes:
        lost = _lost_decorators(nodes[-1], new)
        if lost:
            text = f"the source has {_listed('@' + d for d in lost)}, the replacement has not"
            yield finding("decorator-lost", target, text, decorators=lost)
    if nodes:
        old = nodes[0] if patch.kind is PatchType.METHOD_OVERRIDE else nodes[-1]
        yield from _kind(target, old, new)
        if isinstance(old, FunctionNode) and isinstance(new, FunctionNode):
            yield from _signature(target, old, new, method="." in target)
    yield from lost_fields(built, library, patch, snippet, nodes)
    for d in result.doubled:
        text = f"{d.place}: {d.found} became {d.would_be}"
        message = f"{d.place}: '{d.found}' is left; plain replacement makes '{d.would_be}' of it"
        yield finding("map-over-reach", target, message, detail=text)
    for literal in result.literals:
        message = f"the map changed the text '{_short(literal.old)}' to '{_short(literal.new)}'"
        yield finding("map-changed-literal", target, message, old=literal.old, new=literal.new)


def originals(built: Built, patch: PlannedPatch) -> list[DefinitionNode]:
    """The source's definitions of a target, without the stubs of overloads."""
    parts = patch.target.split(".")
    if len(parts) == 1:
        return real(built.source.top_level.get(parts[0], []))
    node = class_at(built.source, ".".join(parts[:-1]))
    return real(methods(node, parts[-1])) if node is not None else []


def _of_method(
    target: str,
    nodes: list[DefinitionNode],
    under: list[DefinitionNode],
    new: DefinitionNode,
) -> Iterator[Finding]:
    """
    Args:
        nodes: the source's definitions of the method directly in the class.
        under: those under a condition in the class.
    """
    if not nodes:
        return
    if len(nodes) + len(under) > 1:
        roles = [
            d.rpartition(".")[2] for n in nodes[1:] for d in map(decorator_name, n.decorator_list)
        ]
        roles = [r for r in dict.fromkeys(roles) if r in ("setter", "deleter", "getter")]
        detail = f"the property has a {' and a '.join(roles)}" if roles else ""
        lines = sorted(n.lineno for n in (*nodes, *under))
        detail = detail or f"the class defines it {len(lines)} times"
        yield finding(
            "accessor-split", target, f"{detail}; one is replaced", detail=detail, lines=lines
        )
    has = {ast.unparse(d) for d in nodes[0].decorator_list}
    twice = [decorator_name(d) for d in new.decorator_list if ast.unparse(d) in has]
    if twice:
        text = f"the source's method has {_listed('@' + d for d in twice)} already"
        yield finding("duplicate-decorator", target, text, decorators=twice)
    if isinstance(nodes[0], FunctionNode) and isinstance(new, FunctionNode):
        yield from _undocumented(target, nodes[0], new)


def _kind(target: str, old: DefinitionNode, new: DefinitionNode) -> Iterator[Finding]:
    """Callers that await, or do not, still do."""
    was, now = kind_of(old), kind_of(new)
    if was != now:
        text = f"the source has {with_article(was)}, the replacement is {with_article(now)}"
        yield finding("kind-changed", target, text, old=was, new=now)


def _lost_decorators(old: DefinitionNode, new: DefinitionNode) -> list[str]:
    kept = {decorator_name(d) for d in new.decorator_list}
    return [n for n in map(decorator_name, old.decorator_list) if n not in kept]


def parameters(node: FunctionNode, method: bool) -> list[str]:
    """Names of a function's parameters without `*args` and `**kwargs`, nor a method's first."""
    a = node.args
    positional = [x.arg for x in (*a.posonlyargs, *a.args)]
    static = "staticmethod" in map(decorator_name, node.decorator_list)
    if method and not static:
        positional = positional[1:]
    return positional + [x.arg for x in a.kwonlyargs]


def _signature(
    target: str, old: FunctionNode, new: FunctionNode, method: bool
) -> Iterator[Finding]:
    static = "staticmethod" in map(decorator_name, old.decorator_list)
    had = parameters(old, method)
    has = set(parameters(new, method and not static))
    gone = [p for p in had if p not in has]
    if gone:
        caught = new.args.kwarg is not None
        text = f"the source's {_listed(gone)} {'is' if len(gone) == 1 else 'are'} gone"
        if caught:
            text += f"; **{new.args.kwarg.arg if new.args.kwarg else ''} takes what is passed"
        yield finding("signature-narrowed", target, text, note=caught, parameters=gone)
        return
    stars = [
        mark + was.arg
        for mark, was, now in (
            ("*", old.args.vararg, new.args.vararg),
            ("**", old.args.kwarg, new.args.kwarg),
        )
        if was is not None and now is None
    ]
    if stars:
        text = f"the source takes {_listed(stars)}, the replacement does not"
        yield finding("signature-narrowed", target, text, note=True, parameters=stars)


def _undocumented(target: str, old: FunctionNode, new: FunctionNode) -> Iterator[Finding]:
    decorators = [decorator_name(d) for d in (*old.decorator_list, *new.decorator_list)]
    if not any("docstring" in d for d in decorators):
        return
    known = set(parameters(old, True))
    text = ast.get_docstring(new) or ""
    missing = [
        p
        for p in parameters(new, True)
        if p not in known and not re.search(rf"(?<!\w){re.escape(p)}\b", text)
    ]
    if missing:
        message = f"the docstring says nothing of {_listed(missing)}"
        yield finding("undocumented-parameter", target, message, parameters=missing)


def _names(built: Built, library: Library) -> Iterator[Finding]:
    after, before = built.after, built.before
    free = [n for n in after.uses if n not in after.bound and n not in GIVEN]
    unknown = False
    given: set[str] = set()
    for node in ast.walk(built.tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names = _public(library, node)
            unknown |= names is None
            given |= names or set()
    for name in free:
        if name in given:
            continue
        where = after.where(name)
        shown = _listed(where)
        if name in built.removed:
            message = f"was removed and is still used in {shown}"
            yield finding("dangling-name", name, message, where=where)
        elif not unknown:
            own = name in before.uses and name not in before.bound
            text = f"is defined nowhere and used in {shown}"
            if own:
                text += "; the source has it so"
            yield finding("undefined-name", name, text, note=own, where=where)
    listed, _ = exported(built.tree)
    for name in dict.fromkeys(listed):
        if name in built.removed and name not in after.bound and name not in free:
            message = "was removed and is still in __all__"
            yield finding("dangling-name", name, message, where=[MODULE])


def _public(library: Library, node: ast.ImportFrom) -> set[str] | None:
    """What `from module import *` binds, None where the module cannot be read."""
    module = library.readable(node.module) if node.module and not node.level else None
    if module is None or any(i.name == "*" for i in module.imports):
        return None
    names, given = exported(module.tree)
    if given:
        return set(names)
    return {n for n in names_of(module.tree).bound if not n.startswith("_")}


def _dead(built: Built) -> Iterator[Finding]:
    names, _ = exported(built.tree)
    for name, nodes in built.source.top_level.items():
        if not name.startswith("_") or name.startswith("__") or name in built.patches.excluded:
            continue
        places = built.after.where(name)
        if name in names or any(p != name and not p.startswith(f"{name}.") for p in places):
            continue
        line = nodes[0].lineno
        message = f"private, and nothing that is kept uses it (line {line} of the source)"
        yield finding("dead-definition", name, message, line=line)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
