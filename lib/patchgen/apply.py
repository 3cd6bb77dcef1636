"""Builds a patched module: the source statement by statement, with a plan applied to it.

What no patch touches is the source's text, comments included. Only statements that are changed
inside go through a concrete syntax tree (tree_edits.py).
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import EnvironmentProblem, InputError
from . import render
from .findings import Finding
from .model import External, Plan, PlannedPatch
from .name_map import Mapped
from .names import Names, all_literals, exported, names_of
from .snippet import Snippet, Snippets, absolute_imports, renamed, with_map
from .source import DefinitionNode, Imported, Library, SourceModule, compiled, first_line, parse
from .targets import Effective, effective, real


@dataclass
class Unit:
    """One or more statements on the same lines, with the comments and blank lines above them."""

    lead: str
    text: str
    nodes: list[ast.stmt]

    @property
    def name(self) -> str | None:
        """Name of the definition that this is."""
        node = self.nodes[0]
        return node.name if isinstance(node, DefinitionNode) else None


@dataclass
class Built:
    """A patched module before its header.

    Attributes:
        source: the source with its relative imports made absolute.
        text: the module.
        tree: its syntax tree.
        snippets: patch -> the text that was put in, after its map, and what the map did.
    """

    plan: Plan
    source: SourceModule
    patches: Effective
    text: str
    tree: ast.Module
    snippets: dict[PlannedPatch, tuple[Snippet, Mapped]]
    before: Names
    after: Names
    removed: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


def require_libcst() -> None:
    """Say how to get libcst where it is not installed.

    Raises:
        EnvironmentProblem: it is not.
    """
    try:
        import libcst  # noqa: F401
    except ImportError as e:
        raise EnvironmentProblem("libcst is not installed (pip install 'ntool[patchgen]')") from e


def build(plan: Plan, library: Library, snippets: Snippets) -> Built:
    """Apply a plan to its source.

    Raises:
        InputError: the source or a replacement cannot be read, or what comes out is not Python.
    """
    found = library.module(plan.source_module)
    text = absolute_imports(found.text, found.package, str(found.path))
    source = found if text == found.text else SourceModule(found.path, found.module, text)
    builder = _Builder(plan, source, effective(plan, source), snippets)
    before = names_of(source.tree)
    draft = builder.module(frozenset())
    tree = parse(draft, f"{plan.file}: {plan.target_file}")
    unused = _unused_imports(source, before, names_of(tree), tree)
    if unused:
        draft = builder.module(unused)
        tree = parse(draft, f"{plan.file}: {plan.target_file}")
    compiled(draft, f"{plan.file}: {plan.target_file}")
    return Built(
        plan=plan,
        source=source,
        patches=builder.patches,
        text=draft,
        tree=tree,
        snippets=builder.done,
        before=before,
        after=names_of(tree),
        removed=builder.removed,
    )


def _unused_imports(
    source: SourceModule, before: Names, after: Names, tree: ast.Module
) -> frozenset[str]:
    """Names that the source imports at its top and uses, and that the new module does not use."""
    names = {i.bound for i in source.imports if i.place == "top" and i.module != "__future__"}
    used = set(before.uses) | set(exported(source.tree)[0])
    still = set(after.uses) | set(exported(tree)[0])
    return frozenset(names & used - still)


def units(source: SourceModule) -> tuple[list[Unit], str]:
    """The statements of a module with what stands above each, and what is left below the last."""
    found: list[Unit] = []
    at = 0  # lines that are given away
    for node in source.tree.body:
        first = first_line(node) if isinstance(node, DefinitionNode) else node.lineno
        last = node.end_lineno or node.lineno
        if found and first <= at:
            found[-1].nodes.append(node)
            if last > at:
                found[-1].text += "".join(source.lines[at:last])
                at = last
            continue
        lead = source.lines[at : first - 1]
        if found:
            own = _indented(lead)
            found[-1].text += "".join(lead[:own])
            lead = lead[own:]
        found.append(Unit("".join(lead), "".join(source.lines[first - 1 : last]), [node]))
        at = last
    rest = source.lines[at:]
    if found:
        own = _indented(rest)
        found[-1].text += "".join(rest[:own])
        rest = rest[own:]
        if not found[-1].text.endswith("\n"):
            found[-1].text += "\n"
    footer = "".join(rest)
    return found, footer if footer.strip() else ""


def _indented(lines: Sequence[str]) -> int:
    """How many lines after a statement still belong to it: comments that are indented."""
    count = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            if line[0] not in " \t":
                break
            count = number
    return count


class _Builder:
    def __init__(
        self, plan: Plan, source: SourceModule, patches: Effective, snippets: Snippets
    ) -> None:
        self._plan, self._source, self.patches = plan, source, patches
        self._cutter = snippets
        self._units, self._footer = units(source)
        self._head = _head(self._units[0]) if self._units else ""
        self.done: dict[PlannedPatch, tuple[Snippet, Mapped]] = {}
        self._changed: dict[str, str] = {}
        self._dropped = set(plan.dropped)
        self.removed: set[str] = set(patches.excluded)
        """Names that exclusions and dropped imports took away."""
        for patch in patches.applied:
            self._prepare(patch)

    def _prepare(self, patch: PlannedPatch) -> None:
        if isinstance(patch.replacement, External):
            return
        snippet, result = with_map(self._cutter.cut(patch.replacement), patch.name_map)
        snippet.node  # noqa: B018 - raises where the map left no definition
        if "." not in patch.target:
            snippet = renamed(snippet, patch.target)
        elif isinstance(snippet.node, ast.ClassDef):
            raise InputError(f"{self._plan.file}: {patch.target}: a class cannot become a method")
        self.done[patch] = snippet, result

    def module(self, unused: frozenset[str]) -> str:
        """The text of the module.

        Args:
            unused: names to leave out of imports at the top of the source.
        """
        out = _Pieces()
        place = self._insertion()
        futures = [i for i in self._plan.imports if i.module == "__future__"]
        docstring = self._has_docstring()
        out.add(self._head if self._units else self._footer, touched=False)
        for number, unit in enumerate(self._units):
            if futures and number == int(docstring):
                out.add("".join(render.import_line(i, self._plan.file) for i in futures))
                futures = []
            if number == place:
                self._insert(out)
            self._unit(out, unit, unused)
        if futures:
            out.add("".join(render.import_line(i, self._plan.file) for i in futures))
        if place >= len(self._units):
            self._insert(out)
        if self._units and self._footer:
            out.add(self._footer, touched=False)
        return out.text()

    def _has_docstring(self) -> bool:
        return bool(self._units) and ast.get_docstring(self._source.tree, clean=False) is not None

    def _insertion(self) -> int:
        """Number of the unit before which additions go: behind the imports at the head.

        Guards with imports count where no class or function is in front of them.
        """
        place = int(self._has_docstring())
        for number, unit in enumerate(self._units):
            if unit.name is not None:
                break
            if any(_imports(node) for node in unit.nodes):
                place = number + 1
        return place

    def _insert(self, out: _Pieces) -> None:
        plan = self._plan
        lines = [render.import_line(i, plan.file) for i in plan.imports if i.module != "__future__"]
        if lines:
            out.add(f"{render.IMPORTS}\n{''.join(lines)}", blank=1)
        if plan.blocks:
            blocks = [self._block(number) for number in range(len(plan.blocks))]
            out.add(f"{render.BLOCKS}\n" + "\n".join(blocks), blank=1)
        if plan.helpers:
            texts = [self._cutter.cut(code).text for code in dict.fromkeys(plan.helpers)]
            out.add(render.helpers() + "\n" + "\n\n".join(texts))

    def _block(self, number: int) -> str:
        text = textwrap.dedent(self._plan.blocks[number].replace("\r\n", "\n")).strip("\n") + "\n"
        parse(text, f"{self._plan.file}: post-import block {number + 1}")
        return text

    def _unit(self, out: _Pieces, unit: Unit, unused: frozenset[str]) -> None:
        name = unit.name
        definitions = self._source.top_level.get(name, []) if name is not None else []
        if name is not None and name in self.patches.excluded:
            pass
        elif name is not None and (patch := self.patches.replaced.get(name)) is not None:
            if unit.nodes[0] is real(definitions)[-1]:
                text = (
                    render.external(patch)
                    if isinstance(patch.replacement, External)
                    else self.done[patch][0].text
                )
                out.add(render.replaced(patch) + text)
            else:
                out.add(unit.lead + unit.text, touched=False)
        elif (
            name is not None
            and name in self.patches.methods
            and unit.nodes[0] is self._source.classes(name)[-1]
        ):
            out.add(self._modified(unit, name))
        else:
            text = self._statement(unit, unused)
            if text:
                out.add(unit.lead + text, touched=False)
        if definitions and unit.nodes[0] is definitions[-1]:
            self._helpers_after(out, str(name))

    def _helpers_after(self, out: _Pieces, name: str) -> None:
        codes = dict.fromkeys(code for anchor, code in self._plan.after if anchor == name)
        if codes:
            texts = [self._cutter.cut(code).text for code in codes]
            out.add(render.helpers_after(name) + "\n" + "\n\n".join(texts))

    def _modified(self, unit: Unit, name: str) -> str:
        if name not in self._changed:
            from .tree_edits import Method, with_methods

            methods = [
                Method(tuple(path.split(".")), self.done[patch][0].text)
                for path, patch in self.patches.methods[name]
            ]
            text = self._without_dropped(unit, frozenset())
            self._changed[name] = with_methods(text, methods, str(self._source.path))
        marker = render.modified(name, [path for path, _ in self.patches.methods[name]])
        lead = unit.lead.strip("\n")
        return f"{marker}\n\n{lead + chr(10) if lead else ''}{self._changed[name]}"

    def _statement(self, unit: Unit, unused: frozenset[str]) -> str:
        """A statement that no patch touches, without dropped names, unused imports, exclusions."""
        text = self._without_dropped(unit, unused)
        gone = self.patches.excluded - self._defined_anew()
        names = {
            e.value
            for node in unit.nodes
            for value in all_literals(node)
            for e in value.elts
            if isinstance(e, ast.Constant)
        }
        if gone & names:
            from .tree_edits import without_exports

            text = without_exports(text, gone, str(self._source.path))
        return text

    def _without_dropped(self, unit: Unit, unused: frozenset[str]) -> str:
        dropped = [i for n in unit.nodes for i in self._imported_in(n) if self._dropped & i.spelled]
        plain = any(isinstance(n, ast.Import | ast.ImportFrom) for n in unit.nodes)
        text = unit.text
        if dropped:
            from .tree_edits import without_imports

            self.removed |= {i.bound for i in dropped}
            keys = {(i.module, i.name or "", i.bound) for i in dropped}
            text = without_imports(
                text, lambda *key: key in keys, str(self._source.path), nested=True
            )
        if plain and text and unused & {i.bound for n in unit.nodes for i in self._imported_in(n)}:
            from .tree_edits import without_imports

            text = without_imports(
                text, lambda m, n, b: b in unused, str(self._source.path), nested=False
            )
        return text

    def _imported_in(self, node: ast.stmt) -> list[Imported]:
        inside = {id(n) for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)}
        return [i for i in self._source.imports if id(i.node) in inside] if inside else []

    def _defined_anew(self) -> set[str]:
        """Names that helpers and added imports define."""
        plan = self._plan
        names = {code.name for code in (*plan.helpers, *(code for _, code in plan.after))}
        for spec in plan.imports:
            names |= set(spec.names or ()) | {spec.alias or ""}
        return names


def _imports(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, DefinitionNode):
        return False
    return any(isinstance(n, ast.Import | ast.ImportFrom) for n in ast.walk(node))


def _head(first: Unit) -> str:
    """Take the comments at the head of a file off its first statement, which may go.

    Comments right above a class or function are its own, unless they speak of a licence; those
    right above anything else are the file's.
    """
    lead = head = first.lead
    own = re.search(r"(?:^#.*\n)+\Z", lead, re.M)
    if first.name is not None and own and not re.search("copyright|licen[cs]e|spdx", own[0], re.I):
        head = lead[: own.start()]
    first.lead = lead[len(head) :]
    return head


class _Pieces:
    """Text of a module in the making; blank lines around what was put in, others as they were."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._touched = False
        self._blank = 2

    def add(self, text: str, *, touched: bool = True, blank: int = 2) -> None:
        """Add text that ends with a line feed.

        Args:
            touched: it was put in: `blank` lines go before and after it.
        """
        if not text:
            return
        if touched or self._touched:
            text = text.lstrip("\n")
            if self._parts:
                gap = max(blank if touched else 0, self._blank if self._touched else 0)
                self._parts[-1] = self._parts[-1].rstrip("\n") + "\n" * (gap + 1)
        elif not self._parts:
            text = text.lstrip("\n")
        self._touched, self._blank = touched, blank
        self._parts.append(text)

    def text(self) -> str:
        text = "".join(self._parts).rstrip("\n")
        return text + "\n" if text else ""
