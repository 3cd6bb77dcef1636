"""Changes inside one top-level statement, on concrete syntax trees: nothing else in it moves.

The only module that imports libcst (extra `patchgen`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import libcst as cst
from libcst.helpers import get_full_name_for_node

from ..errors import InputError, printable

Names = Callable[[str, str, str], bool]
"""(module, name, bound name) of what an import takes -> whether to leave it out."""


@dataclass(frozen=True)
class Method:
    """A method to put into a class.

    Attributes:
        path: names of inner classes, then of the method.
        text: its definition at column 0, comments above it and its own decorators included.
    """

    path: tuple[str, ...]
    text: str


def _parsed(text: str, what: str) -> cst.Module:
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as e:
        raise InputError(f"{what}: not understood by libcst ({printable(e.message)})") from e


def with_methods(text: str, methods: Sequence[Method], what: str) -> str:
    """A class with methods replaced in place, or added at the end of its body.

    The source's decorators on a method stay, those of the replacement come below them. The comments
    above the replacement take the place of those above the method. Of several definitions of one
    name the first that is no overload is replaced.
    """
    module = _parsed(text, what)
    (node,) = module.body
    assert isinstance(node, cst.ClassDef)
    for method in methods:
        node = _with_method(node, method.path, _definition(method.text, what))
    return module.with_changes(body=[node]).code


def _definition(text: str, what: str) -> cst.FunctionDef:
    # without a statement behind it, comments at the end of the body belong to the file
    module = _parsed(text + "pass\n", what)
    node = module.body[0]
    assert isinstance(node, cst.FunctionDef)
    return node.with_changes(leading_lines=[*module.header, *node.leading_lines])


def _with_method(node: cst.ClassDef, path: tuple[str, ...], new: cst.FunctionDef) -> cst.ClassDef:
    new_name = cst.Name(path[-1])
    body = _opened(node.body)
    statements = list(body.body)
    if len(path) > 1:
        for index in reversed(range(len(statements))):
            inner = statements[index]
            if isinstance(inner, cst.ClassDef) and inner.name.value == path[0]:
                statements[index] = _with_method(inner, path[1:], new)
                break
        return node.with_changes(body=body.with_changes(body=statements))
    found = [
        i
        for i, s in enumerate(statements)
        if isinstance(s, cst.FunctionDef) and s.name.value == path[0]
    ]
    real = [i for i in found if not _is_overload(statements[i])] or found
    comments = _comments(new.leading_lines)
    if real:
        old = statements[real[0]]
        assert isinstance(old, cst.FunctionDef)
        statements[real[0]] = new.with_changes(
            name=new_name,
            decorators=[*old.decorators, *new.decorators],
            leading_lines=[*_blanks(old.leading_lines), *comments],
            lines_after_decorators=new.lines_after_decorators if new.decorators else (),
        )
        return node.with_changes(body=body.with_changes(body=statements))
    kept = [s for s in statements if not _says_nothing(s)]
    lost = [c for s in statements if _says_nothing(s) for c in _comments_of(s)]
    blank = [cst.EmptyLine(indent=False)] if kept else []
    added = new.with_changes(name=new_name, leading_lines=[*blank, *lost, *comments])
    return node.with_changes(body=body.with_changes(body=[*kept, added]))


def _opened(body: cst.BaseSuite) -> cst.IndentedBlock:
    """A body in lines of its own: `class A: ...` has it on the class's line."""
    if isinstance(body, cst.IndentedBlock):
        return body
    assert isinstance(body, cst.SimpleStatementSuite)
    line = cst.SimpleStatementLine(
        body=[s.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for s in body.body],
        trailing_whitespace=body.trailing_whitespace,
    )
    return cst.IndentedBlock(body=[line])


def _says_nothing(statement: cst.BaseStatement) -> bool:
    """Whether a statement is only `pass` or `...`."""
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(s, cst.Pass) or (isinstance(s, cst.Expr) and isinstance(s.value, cst.Ellipsis))
        for s in statement.body
    )


def _comments_of(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    assert isinstance(statement, cst.SimpleStatementLine)
    found = _comments(statement.leading_lines)
    if statement.trailing_whitespace.comment is not None:
        found.append(cst.EmptyLine(comment=statement.trailing_whitespace.comment))
    return found


def _comments(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    return [line for line in lines if line.comment is not None]


def _blanks(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The blank lines in front of the comments."""
    found = []
    for line in lines:
        if line.comment is not None:
            break
        found.append(line)
    return found


def _is_overload(node: cst.BaseStatement) -> bool:
    assert isinstance(node, cst.FunctionDef)
    names = set()
    for d in node.decorators:
        if isinstance(d.decorator, cst.Attribute):
            names.add(d.decorator.attr.value)
        elif isinstance(d.decorator, cst.Name):
            names.add(d.decorator.value)
    return "overload" in names


Between: TypeAlias = cst.BaseParenthesizableWhitespace


def _without(
    items: Sequence[Any], gone: Callable[[Any], bool], opening: Between, closing: Between
) -> tuple[list[Any], Between, Between]:
    """Items of a list (with `comma`) without some; comments of the others stay.

    A comment at the end of a line belongs to all items of that line, those above a line to its
    first one.

    Args:
        opening, closing: what stands behind the opening bracket and in front of the closing one.
    Returns:
        the items, and what stands behind and in front of the brackets now.
    """
    if not any(map(gone, items)):
        return list(items), opening, closing
    comma = items[-1].comma
    # behind a comma at the end, a tuple has no blanks of its own: they belong to the bracket
    own = isinstance(comma, cst.Comma) and not comma.whitespace_after.empty
    gaps: list[Between] = [opening]  # gaps[i] is in front of item i
    gaps += [i.comma.whitespace_after for i in items[:-1]]
    gaps.append(comma.whitespace_after if own else closing)
    kept: list[Any] = []
    between = [gaps[0]]
    for item, after in zip(items, gaps[1:], strict=True):
        if gone(item):
            between[-1] = _joined(between[-1], after, first=not kept)
        else:
            kept.append(item)
            between.append(after)
    if not kept:
        return [], cst.SimpleWhitespace(""), cst.SimpleWhitespace("")
    for index, after in enumerate(between[1:-1]):
        comma = kept[index].comma.with_changes(whitespace_after=after)
        kept[index] = kept[index].with_changes(comma=comma)
    comma = items[-1].comma
    if own:
        comma = comma.with_changes(whitespace_after=between[-1])
    else:
        closing = between[-1]
    kept[-1] = kept[-1].with_changes(comma=comma)
    return kept, between[0], closing


def _joined(before: Between, after: Between, *, first: bool) -> Between:
    """What is left of what stood before and after an item that goes.

    Args:
        first: no other item is in front of it on the line of the opening bracket.
    """
    lines = cst.ParenthesizedWhitespace
    if not isinstance(after, lines):
        return before if first or isinstance(before, lines) else after
    if not isinstance(before, lines):  # the last of its line
        if not first:
            return after
        line = cst.TrailingWhitespace(newline=after.first_line.newline)
        return after.with_changes(first_line=line)
    above = list(before.empty_lines)
    while above and above[-1].comment is not None:
        above.pop()
    return after.with_changes(
        first_line=before.first_line, empty_lines=[*above, *after.empty_lines]
    )


class _Imports(cst.CSTTransformer):
    """Leaves names out of imports; a statement that is left without names goes."""

    def __init__(self, gone: Names, nested: bool) -> None:
        super().__init__()
        self._gone, self._nested = gone, nested

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return self._nested

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return self._nested

    def leave_Import(
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.RemovalSentinel:
        def bound(alias: cst.ImportAlias) -> tuple[str, str, str]:
            name = alias.evaluated_name
            return name, "", alias.evaluated_alias or name.partition(".")[0]

        blank = cst.SimpleWhitespace("")
        kept, _, _ = _without(updated_node.names, lambda a: self._gone(*bound(a)), blank, blank)
        return updated_node.with_changes(names=kept) if kept else cst.RemoveFromParent()

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        node = updated_node
        if isinstance(node.names, cst.ImportStar) or node.module is None:
            return node
        module = get_full_name_for_node(node.module) or ""

        def gone(alias: cst.ImportAlias) -> bool:
            name = alias.evaluated_name
            return self._gone(module, name, alias.evaluated_alias or name)

        if node.lpar is None or node.rpar is None:
            blank = cst.SimpleWhitespace("")
            kept, _, _ = _without(node.names, gone, blank, blank)
            return node.with_changes(names=kept) if kept else cst.RemoveFromParent()
        kept, opening, closing = _without(
            node.names, gone, node.lpar.whitespace_after, node.rpar.whitespace_before
        )
        if not kept:
            return cst.RemoveFromParent()
        return node.with_changes(
            names=kept,
            lpar=node.lpar.with_changes(whitespace_after=opening),
            rpar=node.rpar.with_changes(whitespace_before=closing),
        )

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        body = updated_node.body
        if len(body) == len(original_node.body):
            return updated_node
        if body:
            last = body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            return updated_node.with_changes(body=[*body[:-1], last])
        return cst.RemoveFromParent()  # libcst writes `pass` into a block that is left empty


def without_imports(text: str, gone: Names, what: str, *, nested: bool) -> str:
    """A statement without some imported names; empty text if nothing is left of it.

    Args:
        nested: also inside functions and classes.
    """
    module = _parsed(text, what)
    changed = module.visit(_Imports(gone, nested))
    if not changed.body:
        return ""
    return changed.code


class _Exports(cst.CSTTransformer):
    def __init__(self, gone: set[str]) -> None:
        super().__init__()
        self._gone = gone

    def leave_List(self, original_node: cst.List, updated_node: cst.List) -> cst.List:
        node = updated_node
        kept, opening, closing = _without(
            node.elements,
            self._is_gone,
            node.lbracket.whitespace_after,
            node.rbracket.whitespace_before,
        )
        return node.with_changes(
            elements=kept,
            lbracket=node.lbracket.with_changes(whitespace_after=opening),
            rbracket=node.rbracket.with_changes(whitespace_before=closing),
        )

    def leave_Tuple(self, original_node: cst.Tuple, updated_node: cst.Tuple) -> cst.Tuple:
        node = updated_node
        lpar, rpar = list(node.lpar), list(node.rpar)
        blank: Between = cst.SimpleWhitespace("")
        opening = lpar[-1].whitespace_after if lpar else blank
        closing = rpar[0].whitespace_before if rpar else blank
        kept, opening, closing = _without(node.elements, self._is_gone, opening, closing)
        if len(kept) == 1 and kept[0].comma == cst.MaybeSentinel.DEFAULT:
            kept = [kept[0].with_changes(comma=cst.Comma())]
        if lpar:
            lpar[-1] = lpar[-1].with_changes(whitespace_after=opening)
            rpar[0] = rpar[0].with_changes(whitespace_before=closing)
        elif not kept:
            lpar, rpar = [cst.LeftParen()], [cst.RightParen()]
        return node.with_changes(elements=kept, lpar=lpar, rpar=rpar)

    def _is_gone(self, element: cst.BaseElement) -> bool:
        return (
            isinstance(element.value, cst.SimpleString | cst.ConcatenatedString)
            and element.value.evaluated_value in self._gone
        )


def without_exports(text: str, gone: set[str], what: str) -> str:
    """An assignment of `__all__` without some names."""
    return _parsed(text, what).visit(_Exports(gone)).code
