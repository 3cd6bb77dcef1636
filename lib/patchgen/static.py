"""Reading a config as syntax, without running it or anything it imports.

A config is followed statement by statement. What touches a config has to be of a form whose effect
is known: the constructor, decorators, calls with literals, changes of its fields and lists, also of
a sibling's. Whatever else could touch one is a `not-static` problem; the rest of the file does not
matter and may be anything. Where running and reading are both possible, they give the same patches.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

from ..checkpoint.tensor import Problem
from ..errors import InputError
from .discover import Found
from .model import Code, PatchConfig, Plan, plan_of
from .run import NoConfig
from .source import find_module
from .static_names import Function, bound, used_in_definition, used_when_called
from .static_scope import Scope, Session
from .static_values import RECORDS, Definition, Imported, Known, NotStatic, Unknown


class Module(Scope):
    """A file whose statements are followed in order."""

    def follow(self, body: Iterable[ast.stmt]) -> None:
        """Follow statements in order; what is not understood becomes a problem, and they go on."""
        for statement in body:
            try:
                self._follow(statement)
            except NotStatic as e:
                self._problem(e)
                self._forget(statement)
            except RecursionError as e:
                line = statement.lineno
                raise InputError(f"{self.file}: line {line}: nested too deeply") from e

    def _problem(self, e: NotStatic) -> None:
        line = getattr(e.node, "lineno", 0)
        text = f"line {line}: {e.why}; read without running, only plain forms are understood"
        problem = Problem("not-static", text, file=str(self.file), malformed=True)
        self.problems.append(problem)

    def _follow(self, node: ast.stmt) -> None:
        self._deep = self._touches(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, Function | ast.ClassDef):
            self._define(node)
        elif isinstance(node, ast.Assign):
            self._assign(node, node.targets, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node, [node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            self._augment(node)
        elif isinstance(node, ast.Delete):
            self._delete(node)
        elif isinstance(node, ast.Expr):
            self._expression(node)
        elif isinstance(node, ast.If) and _skipped(node.test) is not None:
            self.follow(node.body if _skipped(node.test) is False else node.orelse)
        elif isinstance(node, ast.Try | ast.TryStar) and not self._touches(node):
            self._try(node)
        elif not isinstance(node, ast.Pass | ast.Global):
            self._other(node)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        made = Definition(self.file, self.name, node)
        register: list[tuple[ast.expr, Any]] = []
        for decorator in reversed(node.decorator_list):
            if self._touches(decorator):
                register.append((decorator, self._decorator(decorator)))
        if self._any_live(used_in_definition(node)):
            raise NotStatic(node, "a config is used while this is defined")
        for decorator, call in register:
            try:
                call(made)
            except Exception as e:
                raise NotStatic(decorator, f"{type(e).__name__}: {e}") from e
        self.names[node.name] = made

    def _decorator(self, node: ast.expr) -> Callable[[Any], Any]:
        value = self._evaluate(node)
        if isinstance(value, Known):
            return value.call
        if isinstance(value, MethodType) and isinstance(value.__self__, PatchConfig):
            return value
        raise NotStatic(node, "this decorator is not read")

    def _assign(self, node: ast.stmt, targets: list[ast.expr], expression: ast.expr) -> None:
        try:
            value = self._evaluate(expression)
            for target in targets:
                self._bind(target, value)
        except NotStatic as e:
            stores = [t for t in targets if not isinstance(t, ast.Name)]
            if any(map(self._touches, [expression, *stores])):
                raise
            self._forget(node)
            uses = frozenset(used_when_called(expression))
            for name in set().union(*map(bound, targets)):
                self.names[name] = Unknown(f"known only by running ({e.why})", uses)

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            if not isinstance(value, list | tuple) or len(value) != len(target.elts):
                raise NotStatic(target, "these names and values do not pair")
            for part, item in zip(target.elts, value, strict=True):
                self._bind(part, item)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self._store(target, value)
        else:
            raise NotStatic(target, "this target is not read")

    def _store(self, target: ast.Attribute | ast.Subscript, value: Any) -> None:
        """`config.field = value`, `config.patches[0] = value`, `names["key"] = value`."""
        try:
            owner = self._evaluate(target.value)
            if isinstance(target, ast.Subscript) and isinstance(owner, list | dict):
                owner[self._evaluate(target.slice)] = value
                return
            if isinstance(target, ast.Attribute) and isinstance(owner, PatchConfig | RECORDS):
                if not hasattr(owner, target.attr) or callable(getattr(owner, target.attr)):
                    raise NotStatic(target, f"no field {target.attr!r}")
                setattr(owner, target.attr, value)
                return
        except (TypeError, IndexError, AttributeError) as e:
            raise NotStatic(target, f"{type(e).__name__}: {e}") from e
        except NotStatic:
            if self._touches(target):
                raise
        if self._touches(target):
            raise NotStatic(target, "this target is not read")
        self._forget(target)

    def _augment(self, node: ast.AugAssign) -> None:
        """`config.exclude += [...]`, `config.drop_imported_names |= {...}`."""
        try:
            load = ast.parse(ast.unparse(node.target), mode="eval").body
            for part in ast.walk(load):
                ast.copy_location(part, node.target)
            owner, value = self._evaluate(load), self._evaluate(node.value)
            if isinstance(node.op, ast.Add) and isinstance(owner, list):
                owner.extend(value)  # in place, as Python does
            elif isinstance(node.op, ast.BitOr) and isinstance(owner, set | dict):
                owner.update(value)
            elif isinstance(node.op, ast.Sub) and isinstance(owner, set):
                owner.difference_update(value)
            else:
                raise NotStatic(node, "this operator is not read")
        except NotStatic:
            if self._touches(node):
                raise
            self._forget(node)
        except TypeError as e:
            raise NotStatic(node, f"TypeError: {e}") from e

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript) and self._touches(target):
                owner = self._evaluate(target.value)
                try:
                    del owner[self._evaluate(target.slice)]
                except (TypeError, IndexError, KeyError, AttributeError) as e:
                    raise NotStatic(target, f"{type(e).__name__}: {e}") from e
            elif self._touches(target):
                raise NotStatic(target, "this is not read")

    def _expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        try:
            self._evaluate(node.value)
        except NotStatic:
            if self._touches(node):
                raise
            self._forget(node)

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        """The imports of a `try`: a name that a handler makes something else is not known."""
        before = dict(self.names)
        self.follow(node.body)
        self.follow(node.orelse)
        for handler in node.handlers:
            taken, self.names = self.names, dict(before)
            for statement in handler.body:
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    self._import(statement)
            other, self.names = self.names, taken
            for name in set().union(*map(bound, handler.body)):
                if name not in taken or not self._same(taken[name], other.get(name)):
                    self.names[name] = Unknown("one thing or another, from a try")
        self.follow(node.finalbody)

    def _same(self, a: Any, b: Any) -> bool:
        found = self._resolved(a, False), self._resolved(b, False)
        return not isinstance(found[0], Unknown) and (
            found[0] is found[1] or (isinstance(found[0], Imported) and found[0] == found[1])
        )

    def _other(self, node: ast.stmt) -> None:
        """A statement that is not followed: a loop, a condition, a context."""
        if self._touches(node):
            kind = type(node).__name__.lower()
            raise NotStatic(node, f"a config is used in a statement that is not read ({kind})")
        self._forget(node)


def _skipped(test: ast.expr) -> bool | None:
    """True for a condition that is false when a config is loaded, False for its opposite."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _skipped(test.operand)
        return None if inner is None else not inner
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    if name == "TYPE_CHECKING" or (isinstance(test, ast.Constant) and test.value is False):
        return True
    if ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__"):
        return True
    return None


def _place(obj: Any) -> Code:
    if isinstance(obj, Definition):
        return obj.place()
    raise InputError(f"a replacement or helper is {obj!r}", expected="a function or class")


class Loaded:
    """A config module that was read.

    Args:
        found: the module.
        root: its names after its last statement.
    """

    def __init__(self, found: Found, root: Scope) -> None:
        self._found, self._root = found, root

    def plan(self, variable: str) -> tuple[Plan | None, list[Problem]]:
        """The plan of a variable, or None and why not.

        Raises:
            NoConfig: the file makes nothing of this name.
            InputError: it is no PatchConfig; a field has the wrong type.
        """
        found, root = self._found, self._root
        problems = root.session.problems(root)
        if problems:
            return None, problems
        where = f"{found.file}: variable '{variable}'"
        if variable not in root.names:
            raise NoConfig(where, found="nothing", expected="a PatchConfig")
        value = root.lookup(variable)
        if isinstance(value, Unknown):
            text = f"{variable!r} is {value.why}, expected a PatchConfig"
            return None, [Problem("not-static", text, file=str(found.file), malformed=True)]
        if not isinstance(value, PatchConfig):
            raise InputError(where, found="something else", expected="a PatchConfig")
        try:
            return plan_of(value, str(found.file), found.module, variable, _place), []
        except (AttributeError, TypeError) as e:  # something else in one of the lists
            raise InputError(f"{where}: {e}") from e

    @property
    def target_files(self) -> set[str]:
        """Names of the files that the configs of this module write, under whatever variable."""
        values = map(self._root.lookup, list(self._root.names))
        files = {v.target_file for v in values if isinstance(v, PatchConfig)}
        return {f for f in files if isinstance(f, str)}


def load(found: Found, roots: Sequence[Path], shim_modules: Iterable[str] = ()) -> Loaded:
    """Read a config module as syntax.

    Args:
        roots: folders that its imports are looked up in, as where it is run.
        shim_modules: further module names under which `PatchConfig` is ours.
    Raises:
        InputError: the file cannot be read or is not Python.
    """
    session = Session(Module, lambda name: find_module(name, roots), frozenset(shim_modules))
    return Loaded(found, session.module(found.file, found.module))
