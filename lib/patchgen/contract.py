"""Which patches rest on something that changed between two versions of a source module."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .definitions import Change, Facts, changes, facts_of, parameters
from .findings import Finding, finding
from .model import Code, PatchType, Plan, PlannedPatch
from .source import (
    DefinitionNode,
    FunctionNode,
    Library,
    SourceModule,
    definition_at,
    guarded,
    parse,
    read_text,
)


@dataclass(frozen=True)
class Missing:
    """Why a target has no definition.

    Attributes:
        what: `class Name`, `function name`, or `method name of Name`.
        member: its class is there; only the method is not.
        conditional: the class has the method under a condition.
    """

    what: str
    member: bool = False
    conditional: bool = False


@dataclass(frozen=True)
class Version:
    """One version of a source module, with what else of that version can be read."""

    source: SourceModule
    library: Library


def version_below(root: Path, module: str, also: Sequence[Path] = ()) -> Version:
    """The module of a dotted name in one version of its library.

    Args:
        also: where else to look for what the module imports.
        root: a folder on the import path; a folder that holds the end of the module's path (the
            package's own, or one with the file alone); a checkout with `src`; an environment; or
            the file itself.
    Raises:
        InputError: it has no such module, or that is not Python.
    """
    if root.is_file():
        return _version(root, module, also)
    parts = module.split(".")
    if root.is_dir():
        for top in (root, root / "src", *sorted(root.glob("lib/python3*/site-packages"))):
            file = _file_of(top, parts)
            if file is not None:
                return _version(file, module, (top, *also))
        for skipped in range(1, len(parts)):
            file = _file_of(root, parts[skipped:])
            if file is not None:
                top = Path(os.path.abspath(root))
                inside = list(top.parts[-skipped:]) == parts[:skipped]  # root is the package's own
                above = (top.parents[skipped - 1],) if inside else ()
                return _version(file, module, (*above, *also))
    raise InputError(f"{root}: source module '{module}' is not below it", expected="a Python file")


def _file_of(folder: Path, parts: Sequence[str]) -> Path | None:
    path = folder.joinpath(*parts)
    for file in (path / "__init__.py", path.with_name(path.name + ".py")):
        if file.is_file():
            return file
    return None


def _version(file: Path, module: str, roots: Sequence[Path]) -> Version:
    source = SourceModule(file, module, read_text(file))
    return Version(source, Library(roots, {module: source}))


def definitions(
    source: SourceModule, kind: PatchType, target: str
) -> list[DefinitionNode] | Missing:
    """What a patch's target is in a source module; the definitions of an overload are several."""
    if kind is PatchType.INIT_MODIFICATION:
        kind, target = PatchType.METHOD_OVERRIDE, f"{target}.__init__"
    if kind is not PatchType.METHOD_OVERRIDE:
        what = "class" if kind is PatchType.CLASS_REPLACEMENT else "function"
        found = source.top_level.get(target, [])
        return found[-1:] if _all_classes(found) else found or Missing(f"{what} {target}")
    owner, _, name = target.rpartition(".")
    node = _class_at(source, owner)
    if node is None:
        return Missing(f"class {owner}")
    found = [n for n in node.body if isinstance(n, DefinitionNode) and n.name == name]
    under = any(n.name == name for n in guarded(node))
    return found or Missing(f"method {name} of {owner}", member=True, conditional=under)


def _all_classes(nodes: Sequence[DefinitionNode]) -> bool:
    return bool(nodes) and all(isinstance(n, ast.ClassDef) for n in nodes)


def _class_at(source: SourceModule, dotted: str) -> ast.ClassDef | None:
    first, *inner = dotted.split(".")
    classes = source.classes(first)
    node = classes[-1] if classes else None
    for name in inner:
        if node is not None:
            found = [n for n in node.body if isinstance(n, ast.ClassDef) and n.name == name]
            node = found[-1] if found else None
    return node


def facts_at(version: Version, kind: PatchType, target: str) -> Facts | Missing:
    """Facts of a patch's target in one version.

    Raises:
        InputError: its code is nested too deeply to be compared.
    """
    found = definitions(version.source, kind, target)
    if isinstance(found, Missing):
        return found
    try:
        return facts_of(found, version.source, version.library)
    except RecursionError as e:
        raise InputError(f"{version.source.path}: {target}: nested too deeply") from e


def compare(plan: Plan, old: Version, new: Version) -> list[Finding]:
    """What changed under the patches of a plan between two versions of its source."""
    before = {(p.kind, p.target): facts_at(old, p.kind, p.target) for p in plan.patches}
    found = compare_facts(plan, before, new)
    for (kind, target), was in before.items():
        now = facts_at(new, kind, target)
        # else taken for a method that the patch adds
        if isinstance(was, Missing) and isinstance(now, Missing) and now.conditional:
            found.append(_gone(target, was, now, new.source))
    return found + _around(plan, old.source, new.source)


def compare_facts(
    plan: Plan, before: dict[tuple[PatchType, str], Facts | Missing], new: Version
) -> list[Finding]:
    """What changed under the patches of a plan since facts were taken.

    Args:
        before: facts of targets; one that it lacks is not compared.
    """
    last = {(p.kind, p.target): p for p in plan.patches}  # the last one of a target counts
    found: list[Finding] = []
    for key, patch in last.items():
        if key in before:
            found += _compared(patch, before[key], facts_at(new, *key), new.source)
    return found


def _compared(
    patch: PlannedPatch, old: Facts | Missing, new: Facts | Missing, source: SourceModule
) -> list[Finding]:
    if isinstance(new, Missing):
        if new.member and isinstance(old, Missing):
            return []  # a method that the patch adds
        return [_gone(patch.target, old, new, source)]
    if isinstance(old, Missing):
        if not old.member:
            return []  # nothing to compare; it is there now
        text = f"the source has a {old.what} now, which the patch was written to add"
        found = [Change("body-changed", text, {})]
    else:
        found = changes(old, new)
    findings = [
        finding(c.code, patch.target, c.message, target=patch.target, **c.details) for c in found
    ]
    if gained := _gained(old, new):
        codes = [c.code for c in found]
        at = codes.index("signature-changed") + 1 if "signature-changed" in codes else len(codes)
        findings[at:at] = _lacking(patch, gained)
    return findings


def _gone(target: str, old: Facts | Missing, new: Missing, source: SourceModule) -> Finding:
    name = new.what.split()[1]
    detail = (
        f"{new.what} is {'gone' if isinstance(old, Facts) or old.member else 'in neither version'}"
    )
    if new.conditional or (not new.member and name in source.guarded):
        detail = f"{new.what} is defined under a condition"
    elif not new.member and name in source.top_level:
        detail = f"{new.what} is a function"
    return finding("target-missing", target, detail, target=target, detail=detail)


def _gained(old: Facts | Missing, new: Facts) -> list[str]:
    """Parameters that the source's function has now and had not."""
    had = {p.name for p in old.parameters} if isinstance(old, Facts) else set()
    return [p.name for p in new.parameters if p.name not in had]


def _lacking(patch: PlannedPatch, gained: list[str]) -> list[Finding]:
    """A note where the replacement takes any keyword, and so drops it unseen."""
    node = _replacement(patch)
    if node is None or patch.kind is PatchType.INIT_MODIFICATION:
        return []
    has = parameters(node)
    lacking = [n for n in gained if n not in {p.name for p in has}]
    if not lacking:
        return []
    takes_any = any(p.kind == "**" for p in has)
    text = f"{node.name} has no {', '.join(lacking)}" + (", only **" if takes_any else "")
    details = {"target": patch.target, "parameters": lacking}
    return [finding("replacement-lacks-parameter", patch.target, text, note=takes_any, **details)]


def _replacement(patch: PlannedPatch) -> FunctionNode | None:
    code = patch.replacement
    if not isinstance(code, Code):
        return None
    node = definition_at(parse(read_text(code.file), code.file), code.line, code.name)
    return node if isinstance(node, FunctionNode) else None


def _around(plan: Plan, old: SourceModule, new: SourceModule) -> list[Finding]:
    """Anchors that are gone, dropped imports that are imported no longer."""
    found: list[Finding] = []
    for anchor, helper in plan.after:
        if anchor not in new.top_level:
            detail = f"{helper.name} was put after it"
            found.append(finding("anchor-missing", anchor, detail, target=anchor, detail=detail))
    for name in plan.dropped:
        if _imports(old, name) and not _imports(new, name):
            detail = "the source no longer imports it"
            found.append(finding("import-not-dropped", name, detail, detail=detail))
    return found


def _imports(source: SourceModule, name: str) -> bool:
    return any(name in imported.spelled for imported in source.imports)
