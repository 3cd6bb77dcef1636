"""Changes inside one top-level statement, on concrete syntax trees: nothing else in it moves.

The only module that imports libcst (extra `patchgen`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

        kept = [a for a in updated_node.names if not self._gone(*bound(a))]
        return self._with(updated_node, kept)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar) or updated_node.module is None:
            return updated_node
        module = get_full_name_for_node(updated_node.module) or ""
        kept = []
        for alias in updated_node.names:
            name = alias.evaluated_name
            if not self._gone(module, name, alias.evaluated_alias or name):
                kept.append(alias)
        return self._with(updated_node, kept)

    @staticmethod
    def _with(
        node: cst.Import | cst.ImportFrom, kept: list[cst.ImportAlias]
    ) -> cst.CSTNode | cst.RemovalSentinel:
        names = node.names
        assert not isinstance(names, cst.ImportStar)
        if len(kept) == len(names):
            return node
        if not kept:
            return cst.RemoveFromParent()
        kept[-1] = kept[-1].with_changes(comma=names[-1].comma)
        return node.with_changes(names=kept)

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
        kept = self._kept(updated_node.elements)
        return updated_node.with_changes(elements=kept)

    def leave_Tuple(self, original_node: cst.Tuple, updated_node: cst.Tuple) -> cst.Tuple:
        kept = self._kept(updated_node.elements)
        if len(kept) == 1 and kept[0].comma == cst.MaybeSentinel.DEFAULT:
            kept = [kept[0].with_changes(comma=cst.Comma())]
        lpar, rpar = updated_node.lpar, updated_node.rpar
        if not kept and not lpar:
            lpar, rpar = [cst.LeftParen()], [cst.RightParen()]
        return updated_node.with_changes(elements=kept, lpar=lpar, rpar=rpar)

    def _kept(self, elements: Sequence[cst.BaseElement]) -> list[cst.BaseElement]:
        kept = [
            e
            for e in elements
            if not (
                isinstance(e.value, cst.SimpleString | cst.ConcatenatedString)
                and e.value.evaluated_value in self._gone
            )
        ]
        if kept and len(kept) < len(elements):
            kept[-1] = kept[-1].with_changes(comma=elements[-1].comma)
        return kept


def without_exports(text: str, gone: set[str], what: str) -> str:
    """An assignment of `__all__` without some names."""
    return _parsed(text, what).visit(_Exports(gone)).code
