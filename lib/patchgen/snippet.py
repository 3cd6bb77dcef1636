"""The text of a replacement or helper: cut out of its file, without what only the config needs."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputError
from .edits import Edit, edited, over
from .model import REGISTRARS, Code
from .name_map import Mapped, mapped
from .names import names_of
from .source import (
    DefinitionNode,
    SourceModule,
    absolute,
    dotted,
    first_line,
    literals,
    parse,
    read_text,
    split_lines,
)


@dataclass(frozen=True)
class Snippet:
    """One definition at column 0.

    Attributes:
        code: where it comes from.
        file: the file that it is cut out of.
        text: the comments right above it, its decorators and the definition; ends with a line feed.
        before_map: its text before a name map; None without one.
    """

    code: Code
    file: SourceModule
    text: str
    before_map: str | None = None

    @property
    def node(self) -> DefinitionNode:
        """Its syntax tree.

        Raises:
            InputError: a name map made something of it that is not Python.
        """
        body = parse(self.text, f"{self.code.file}: {self.code.name}").body
        if len(body) != 1 or not isinstance(body[0], DefinitionNode):
            raise InputError(f"{self.code.file}: {self.code.name}: the map leaves no definition")
        return body[0]


class Snippets:
    """Cuts definitions out of files, each of which is read once."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], SourceModule] = {}
        self._aliases: dict[str, set[str]] = {}

    def file(self, code: Code) -> SourceModule:
        """The file that a definition is in."""
        key = (code.file, code.module)
        if key not in self._files:
            path = Path(code.file)
            self._files[key] = SourceModule(path, code.module, read_text(path))
        return self._files[key]

    def cut(self, code: Code) -> Snippet:
        """The definition with the comments right above it.

        Decorators that register it in a config are left out, by their position in the syntax
        tree; relative imports in it become absolute.

        Raises:
            InputError: it is not there.
        """
        source = self.file(code)
        node = source.everywhere.get((code.line, code.name))
        if node is None:
            raise InputError(f"{code.file}: line {code.line}: no definition of '{code.name}'")
        lines = [*source.lines]
        first, last = first_line(node), _last_line(node, lines)
        if code.file not in self._aliases:
            self._aliases[code.file] = _registrar_aliases(source.tree)
        aliases = self._aliases[code.file]
        gone = set()
        for decorator in node.decorator_list:
            if registers(decorator, aliases):
                gone |= set(range(decorator.lineno, _decorator_end(decorator, node, lines) + 1))
        above = first
        while above > 1 and _is_comment(lines[above - 2], node.col_offset):
            above -= 1
        inside = _inside_strings(node)
        cut = [
            lines[n - 1] if n in inside else _dedented(lines[n - 1], node.col_offset)
            for n in range(above, last + 1)
            if n not in gone
        ]
        text = "".join(cut)
        text = text if text.endswith("\n") else text + "\n"
        return Snippet(code, source, absolute_imports(text, source.package, code.file))


def absolute_imports(text: str, package: str, where: str) -> str:
    """Python text with its relative imports made absolute, in place, at any depth.

    Raises:
        InputError: one leads above the top-level package.
    """
    if not re.search(r"\bfrom[\s\\]*\.", text):
        return text
    lines = split_lines(text)
    return edited(
        text,
        [
            relative_import(node, package, lines, where)
            for node in ast.walk(parse(text, where))
            if isinstance(node, ast.ImportFrom) and node.level
        ],
    )


def relative_import(node: ast.ImportFrom, package: str, lines: list[str], where: str) -> Edit:
    """The edit that makes a relative import absolute, by replacing its dots and module alone.

    Raises:
        InputError: it leads above the top-level package.
    """
    module = absolute(node, package)
    if module.startswith(".") or not module:
        raise InputError(
            f"{where}: line {node.lineno}: relative import",
            found="." * node.level + (node.module or ""),
            expected=f"at most {len(package.split('.'))} dots in package '{package}'",
        )
    # `from`, dots and the module may lie on several lines only with backslashes between
    line, rest = node.lineno, lines[node.lineno - 1].encode()[node.col_offset :].decode()
    while rest.rstrip("\n").endswith("\\") and " import" not in rest:
        rest += lines[line]
        line += 1
    match = re.match(r"from((?:[\s\\.]|\w)*?)(?=\bimport\b)", rest)
    assert match is not None
    old = match[1]
    end_line = node.lineno + old.count("\n")
    tail = f"from{old}".rsplit("\n", 1)[-1]
    column = len(tail.encode()) + (node.col_offset if end_line == node.lineno else 0)
    return Edit(node.lineno, node.col_offset, end_line, column, f"from {module} ")


def registers(decorator: ast.expr, aliases: set[str]) -> bool:
    """Whether a decorator registers its definition in a config, under whatever variable name."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(target, ast.Call):  # add_helper()(...)
        return registers(target, aliases)
    if isinstance(target, ast.Attribute):
        return target.attr in REGISTRARS
    return isinstance(target, ast.Name) and target.id in aliases


def _registrar_aliases(tree: ast.Module) -> set[str]:
    """Names that stand for a registering method: `override = config.override_method`."""
    found = set(REGISTRARS)
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Attribute):
            continue
        if node.value.attr in REGISTRARS:
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return found


def _decorator_end(decorator: ast.expr, node: DefinitionNode, lines: list[str]) -> int:
    """Last line of a decorator, with what closes brackets around it."""
    end = decorator.end_lineno or decorator.lineno
    following = [d.lineno for d in node.decorator_list if d.lineno > end]
    stop = min([node.lineno, *following])
    while end + 1 < stop:
        text = lines[end].strip()
        if not text.startswith((")", "\\")):
            break
        end += 1
    return end


def _is_comment(line: str, column: int) -> bool:
    return line.strip().startswith("#") and len(line) - len(line.lstrip()) == column


def _last_line(node: DefinitionNode, lines: list[str]) -> int:
    """Last line of a definition, with the comments below it that are indented as its body is."""
    last = node.end_lineno or node.lineno
    body = node.body[0]
    column = body.col_offset if body.lineno > node.lineno else node.col_offset + 1
    for number in range(last + 1, len(lines) + 1):
        text = lines[number - 1]
        if not text.strip():
            continue
        if not text.strip().startswith("#") or len(text) - len(text.lstrip()) < column:
            break
        last = number
    return last


def _inside_strings(node: ast.AST) -> set[int]:
    """Lines that begin inside a string: their indentation is text."""
    found: set[int] = set()
    for n in literals(node):
        found |= set(range(n.lineno + 1, (n.end_lineno or n.lineno) + 1))
    return found


def _dedented(line: str, column: int) -> str:
    head = line[:column]
    return line[column:] if not head.strip() else line.lstrip(" \t")


def renamed(snippet: Snippet, name: str, uses: bool = True) -> Snippet:
    """The definition under another name.

    Args:
        uses: also rename where the body uses the definition's own name, and no other thing that
            goes by it.
    """
    node = snippet.node
    if node.name == name:
        return snippet
    old = node.name
    edits = [_name_edit(snippet.text, node, name)]
    if uses:
        for use in names_of(ast.Module([node], [])).uses.get(old, ()):
            if isinstance(use.node, ast.Constant):
                literal = ast.get_source_segment(snippet.text, use.node) or ""
                edits.append(over(use.node, re.sub(rf"\b{re.escape(old)}\b", name, literal)))
            else:
                edits.append(over(use.node, name))
    return replace(snippet, text=edited(snippet.text, edits))


def _name_edit(text: str, node: DefinitionNode, name: str) -> Edit:
    line = text.split("\n")[node.lineno - 1].encode()[node.col_offset :].decode()
    match = re.match(r"(?:async[\s\\]+)?(?:def|class)[ \t\f]+", line)
    if match is None or not line.startswith(node.name, match.end()):
        raise InputError(f"{node.name}: line breaks before its name are not supported")
    start = node.col_offset + len(line[: match.end()].encode())
    return Edit(node.lineno, start, node.lineno, start + len(node.name.encode()), name)


def with_map(snippet: Snippet, pairs: tuple[tuple[str, str], ...]) -> tuple[Snippet, Mapped]:
    """The definition after a name map, and what the map did."""
    result = mapped(snippet.text, pairs)
    before = snippet.text if pairs else None
    return replace(snippet, text=result.text, before_map=before), result


def decorator_name(decorator: ast.expr) -> str:
    """`dataclass` of `@dataclass(frozen=True)`, `torch.no_grad` of `@torch.no_grad()`."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return dotted(target) or ast.unparse(target)
