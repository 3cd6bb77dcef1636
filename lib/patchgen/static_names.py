"""Which names a piece of a config uses: at once, or when its functions are called.

Static reading needs to know whether a statement that it does not understand could have changed a
config. Only names tell: those that are read while the statement runs, and those that the functions
it names would read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def head(name: str) -> str:
    """The first part of a dotted name."""
    return name.partition(".")[0]


def used_at_once(node: ast.AST) -> set[str]:
    """Names that are read or rebound while this statement or expression runs.

    They come with the attributes after them: `config.exclude.append`. Bodies of functions are left
    out, their decorators, defaults and annotations are not.
    """
    return set(_used(node, calls=False))


def used_when_called(node: ast.AST) -> set[str]:
    """Names outside of a function, lambda or class that anything in it reads or rebinds."""
    return set(_used(node, calls=True))


def used_in_definition(node: Function | ast.ClassDef) -> set[str]:
    """Names that defining a function or class reads, those of its decorators left out."""
    decorators = node.decorator_list
    node.decorator_list = []
    try:
        return used_at_once(node)
    finally:
        node.decorator_list = decorators


def bound(node: ast.AST) -> set[str]:
    """Names that a statement binds in its own scope."""
    names: set[str] = set()
    for part in _same_scope(node):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            names.add(part.id)
        elif isinstance(part, Function | ast.ClassDef):
            names.add(part.name)
        elif isinstance(part, ast.Import | ast.ImportFrom):
            names |= {(a.asname or a.name).partition(".")[0] for a in part.names}
        elif isinstance(part, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name:
            names.add(part.name)
        elif isinstance(part, ast.MatchMapping) and part.rest:
            names.add(part.rest)
    return names


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, Scope | ast.ClassDef | Comprehension):
        return
    for child in ast.iter_child_nodes(node):
        yield from _same_scope(child)


def _parameters(arguments: ast.arguments) -> set[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return {a.arg for a in every}


def _used(node: ast.AST, calls: bool) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute) and (name := _chain(node)) is not None:
        yield name
    elif isinstance(node, ast.Global):
        yield from node.names
    elif isinstance(node, Scope):
        yield from _all_used(_outside(node), calls)
        if calls:
            yield from _inside(node)
    elif isinstance(node, ast.ClassDef):
        yield from _all_used([*node.decorator_list, *node.bases, *node.keywords], calls)
        own = set().union(*map(bound, node.body))
        yield from (name for name in _all_used(node.body, calls) if head(name) not in own)
    else:
        yield from _all_used(ast.iter_child_nodes(node), calls)


def _chain(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        owner = _chain(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _all_used(nodes: Iterable[ast.AST], calls: bool) -> Iterator[str]:
    for node in nodes:
        yield from _used(node, calls)


def _outside(node: Scope) -> list[ast.AST]:
    """Parts of a function that run where it is defined."""
    arguments = node.args
    parts: list[ast.AST] = [*arguments.defaults, *(d for d in arguments.kw_defaults if d)]
    if isinstance(node, Function):
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        parts += node.decorator_list
        parts += [a.annotation for a in every if a.annotation is not None]
        parts += [node.returns] if node.returns is not None else []
    return parts


def _inside(node: Scope) -> Iterator[str]:
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
    outer = {n for part in body for g in _same_scope(part) if isinstance(g, ast.Global)
             for n in g.names}  # fmt: skip
    local = _parameters(node.args).union(*map(bound, body)) - outer
    yield from outer
    for part in body:
        yield from (name for name in _used(part, calls=True) if head(name) not in local)
