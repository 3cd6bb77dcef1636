"""Fields of an output that the source's method fills and its replacement does not.

A forward that is written for one model and reused for a sibling builds the sibling's output class
without the fields that only the sibling has: they keep their default, and nothing fails at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from .apply import Built
from .findings import Finding, finding
from .model import PlannedPatch
from .snippet import Snippet
from .source import DefinitionNode, Library, SourceModule, dotted, parse

Place = tuple[str, str]
"""A class by its module and name."""


@dataclass
class Calls:
    """What all calls of one class pass.

    Attributes:
        spelled: the name that it is called by.
        passed: fields that some call passes, by keyword or position.
        open: whether a call passes `*values` or `**mapping`.
    """

    spelled: str
    source: SourceModule
    node: ast.ClassDef
    passed: set[str] = field(default_factory=set)
    open: bool = False


def lost_fields(
    built: Built,
    library: Library,
    patch: PlannedPatch,
    snippet: Snippet,
    originals: list[DefinitionNode],
) -> Iterator[Finding]:
    """`lost-field` findings of a patched method or function."""
    new = snippet.node
    if isinstance(new, ast.ClassDef):
        return
    source = built.source
    ours = _calls(library, [source], [new])
    theirs = _calls(library, [source], [n for n in originals if not isinstance(n, ast.ClassDef)])
    for place, calls in ours.items():
        fields = library.fields(calls.source, calls.node)
        expected = theirs[place].passed if place in theirs else set()
        reasons = ["the source passes it"] if expected - calls.passed else []
        if patch.name_map:
            only = _only_sibling(library, patch, snippet, calls, set(fields))
            if only - calls.passed:
                reasons.append("the class before the map has no such field")
            expected = expected | only
        lost = [f for f in fields if f in expected and f not in calls.passed]
        if not lost:
            continue
        message = f"{calls.spelled}({', '.join(lost)}) is not passed: {'; '.join(reasons)}"
        if calls.open:
            message += ", unless what is unpacked has it"
        yield finding(
            "lost-field",
            patch.target,
            message,
            note=calls.open,
            cls=calls.spelled.rpartition(".")[2],
            fields=lost,
        )


def _calls(
    library: Library, sources: list[SourceModule], nodes: list[DefinitionNode]
) -> dict[Place, Calls]:
    """Calls of readable classes with fields, by class."""
    found: dict[Place, Calls] = {}
    for node in nodes:
        for call in ast.walk(node):
            name = dotted(call.func) if isinstance(call, ast.Call) else None
            if name is None or not isinstance(call, ast.Call):
                continue
            hit = next((h for s in sources if (h := library.find_class(s, name))), None)
            if hit is None:
                continue
            fields = library.fields(*hit)
            if not fields:
                continue
            place = (hit[0].module, hit[1].name)
            calls = found.setdefault(place, Calls(name, *hit))
            for number, argument in enumerate(call.args):
                if isinstance(argument, ast.Starred):
                    calls.open = True
                    break
                if number < len(fields):
                    calls.passed.add(fields[number])
            for keyword in call.keywords:
                if keyword.arg is None:
                    calls.open = True
                else:
                    calls.passed.add(keyword.arg)
    return found


def _only_sibling(
    library: Library, patch: PlannedPatch, snippet: Snippet, calls: Calls, fields: set[str]
) -> set[str]:
    """Fields that a class has after a name map and not before it."""
    text = snippet.before_map
    if text is None:
        return set()
    home = _written_for(library, snippet)
    before = [parse(text, snippet.code.file).body[0]]
    nodes = [n for n in before if isinstance(n, DefinitionNode)]
    from .name_map import mapped

    for old in _calls(library, home, nodes).values():
        if mapped(old.spelled, patch.name_map).text == calls.spelled and (
            old.source.module,
            old.node.name,
        ) != (calls.source.module, calls.node.name):
            return fields - set(library.fields(old.source, old.node))
    return set()


def _written_for(library: Library, snippet: Snippet) -> list[SourceModule]:
    """Modules that a replacement's names mean things in: the source of its config, its file."""
    file = snippet.file
    names = []
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("PatchConfig"):
            values = [k.value for k in node.keywords if k.arg == "source_module"] + node.args[:1]
            names += [
                v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)
            ]
    modules = [library.readable(name) for name in names]
    return [*(m for m in modules if m is not None), file]
