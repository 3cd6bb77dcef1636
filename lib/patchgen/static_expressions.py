"""Expressions of a config as values, without running it.

Literals, names, containers, attributes, calls of what `PatchConfig` offers and of the methods of
its lists, and comprehensions that pick from them. Nothing is computed: `"A" + ".f"` is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from .model import PatchConfig, PatchType
from .static_values import METHODS, RECORDS, Definition, Imported, Known, NotStatic, Unknown

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}


@contextmanager
def as_run(node: ast.AST) -> Iterator[None]:
    """What fails in the block would fail when run as well: refused as what it is."""
    try:
        yield
    except NotStatic:
        raise
    except Exception as e:
        raise NotStatic(node, f"{type(e).__name__}: {e}") from e


class Evaluator:
    """Values of expressions in one scope.

    Args:
        lookup: the value of a name, `Unknown` included, or KeyError.
        of_import: the value of an attribute of what an import stands for.
    """

    def __init__(
        self, lookup: Callable[[str], Any], of_import: Callable[[Any, str, ast.AST], Any]
    ) -> None:
        self._lookup, self._of_import = lookup, of_import

    def value(self, node: ast.expr) -> Any:
        """The value of an expression.

        Raises:
            NotStatic: it is of no form that is read.
        """
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotStatic(node, f"{_words(node)} is not a literal")
        return method(node)

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        try:
            found = self._lookup(node.id)
        except KeyError:
            raise NotStatic(node, f"name {node.id!r} is not defined here") from None
        if isinstance(found, Unknown):
            raise NotStatic(node, f"{node.id!r} is {found.why}")
        return found

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        if isinstance(node.op, ast.Not) and isinstance(value, bool):
            return not value
        raise NotStatic(node, "an operator is not a literal")

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._elements(node.elts))

    def _list(self, node: ast.List) -> Any:
        return self._elements(node.elts)

    def _set(self, node: ast.Set) -> Any:
        with as_run(node):
            return set(self._elements(node.elts))

    def _elements(self, nodes: list[ast.expr]) -> list[Any]:
        out: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                out += self._container(node.value)
            else:
                out.append(self._item(node))
        return out

    def _item(self, node: ast.expr) -> Any:
        value = self.value(node)
        if isinstance(value, Imported) and value.name is not None:
            raise NotStatic(node, f"{_words(node)} is looked into only where a config is used")
        return value

    def _dict(self, node: ast.Dict) -> Any:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                with as_run(value):
                    out.update(self._container(value))
            else:
                with as_run(key):
                    out[self.value(key)] = self._item(value)
        return out

    def _container(self, node: ast.expr) -> Any:
        value = self.value(node)
        if not isinstance(value, list | tuple | set | frozenset | dict):
            raise NotStatic(node, f"{_words(node)} is not a list of known values")
        return value

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        name = node.attr
        if isinstance(owner, PatchConfig | RECORDS | PatchType) or owner is PatchType:
            with as_run(node):
                return getattr(owner, name)
        if isinstance(owner, Definition) and name in ("__name__", "__qualname__", "__module__"):
            return getattr(owner, name)
        for kind, methods in METHODS.items():
            if type(owner) is kind and name in methods:
                return getattr(owner, name)
        return self._of_import(owner, name, node)

    def _subscript(self, node: ast.Subscript) -> Any:
        owner, index = self.value(node.value), self.value(node.slice)
        if not isinstance(owner, list | tuple | dict):
            raise NotStatic(node, "an item of this is not known")
        with as_run(node):
            return owner[index]

    def _slice(self, node: ast.Slice) -> Any:
        return slice(*(p and self.value(p) for p in (node.lower, node.upper, node.step)))

    def _call(self, node: ast.Call) -> Any:
        function = self.callee(node.func)
        arguments = self._elements(node.args)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named.update(value)
            else:
                raise NotStatic(keyword.value, "a mapping of arguments is not known")
        with as_run(node):
            made = function(*arguments, **named)
        # a method of a config used as a decorator gives the function that registers
        return Known(made) if isinstance(made, FunctionType) else made

    def callee(self, node: ast.expr) -> Callable[..., Any]:
        """The function that a call calls, where its effect is known."""
        function = self.value(node)
        if isinstance(function, Known):
            return function.call
        if isinstance(function, MethodType | BuiltinMethodType) and _followed(function):
            return function
        raise NotStatic(node, f"{_words(node)} is called, and what it does is not known")

    def _boolop(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is isinstance(node.op, ast.Or):
                break
        return value

    def _compare(self, node: ast.Compare) -> Any:
        left = self.value(node.left)
        for operator, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part)
            compare = _COMPARISONS.get(type(operator))
            if compare is None:
                raise NotStatic(node, "this comparison is not read")
            with as_run(node):
                if not compare(left, right):
                    return False
            left = right
        return True

    def _listcomp(self, node: ast.ListComp) -> Any:
        return list(self._picked(node))

    def _generatorexp(self, node: ast.GeneratorExp) -> Any:
        return list(self._picked(node))

    def _setcomp(self, node: ast.SetComp) -> Any:
        with as_run(node):
            return set(self._picked(node))

    def _picked(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Iterator[Any]:
        """Values of a comprehension with one loop over known values."""
        loop = node.generators[0]
        if len(node.generators) > 1 or loop.is_async or not isinstance(loop.target, ast.Name):
            raise NotStatic(node, "this comprehension is not read")
        for item in list(self._container(loop.iter)):
            inner = Evaluator(_with(self._lookup, {loop.target.id: item}), self._of_import)
            if all(inner.value(condition) for condition in loop.ifs):
                yield inner.value(node.elt)


def _with(lookup: Callable[[str], Any], names: Mapping[str, Any]) -> Callable[[str], Any]:
    return lambda name: names[name] if name in names else lookup(name)


def _followed(function: Any) -> bool:
    owner = function.__self__
    return isinstance(owner, PatchConfig) or type(owner) in METHODS


def _words(node: ast.AST) -> str:
    """An expression for a message, short."""
    text = " ".join(ast.unparse(node).split())
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
