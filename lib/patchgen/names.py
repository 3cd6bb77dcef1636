"""Which names of a module's own scope are bound, and where they are used.

Scopes as in Python: a class body is seen by itself alone, comprehensions and lambdas have their
own. Annotations count, those in quotes too.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from .source import dotted

GIVEN = frozenset(dir(builtins)) | {
    *("__name__", "__file__", "__doc__", "__spec__", "__package__", "__loader__", "__path__"),
    *("__builtins__", "__annotations__", "__dict__", "__class__", "__qualname__", "__module__"),
    *(
        "__cached__",
        "__debug__",
        "__warningregistry__",
        "__conditional_annotations__",
        "WindowsError",
    ),
}
"""Names that no module has to define."""
MODULE = "module level"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Use:
    """A use of a name of the module's scope (or of none).

    Attributes:
        where: `Class.method` around it, or MODULE.
        node: the name; for one inside a quoted annotation the whole literal.
    """

    name: str
    where: str
    node: ast.expr


@dataclass
class Names:
    """Names of a module.

    Attributes:
        bound: those that its own scope binds, `global` statements of functions included.
        uses: name -> its uses that no inner scope answers, in order.
    """

    bound: set[str] = field(default_factory=set)
    uses: dict[str, list[Use]] = field(default_factory=dict)

    def where(self, name: str) -> list[str]:
        """The places that use a name, each once, in order."""
        return list(dict.fromkeys(use.where for use in self.uses.get(name, ())))


@dataclass
class _Scope:
    kind: str  # module, class, function
    bound: set[str]
    globals: set[str]
    parent: _Scope | None
    where: str


def names_of(tree: ast.Module) -> Names:
    """Names of a module, see `Names`."""
    visitor = _Visitor()
    bound, _ = _bindings(tree.body)
    visitor.names.bound |= bound
    visitor.scope = _Scope("module", bound, set(), None, MODULE)
    for node in tree.body:
        visitor.visit(node)
    return visitor.names


def exported(tree: ast.Module) -> tuple[list[str], bool]:
    """Names in the literals of `__all__`, and whether there is an `__all__`."""
    found: list[str] = []
    any_ = False
    for node in tree.body:
        for value in all_literals(node):
            any_ = True
            found += [
                e.value
                for e in value.elts
                if isinstance(e, ast.Constant) and isinstance(e.value, str)
            ]
    return found, any_


def all_literals(node: ast.stmt) -> list[ast.List | ast.Tuple]:
    """Lists and tuples that a statement assigns or adds to `__all__`."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets, value = [node.target], node.value or ast.Constant(None)
    elif (
        isinstance(node, ast.Expr)
        and isinstance(call := node.value, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "extend"
        and len(call.args) == 1
    ):
        targets, value = [call.func.value], call.args[0]
    else:
        return []
    named = any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets)
    return list(_lists(value)) if named else []


def _lists(node: ast.expr) -> Iterator[ast.List | ast.Tuple]:
    if isinstance(node, ast.List | ast.Tuple):
        yield node
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _lists(node.left)
        yield from _lists(node.right)


def _bindings(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """(names that these nodes bind in their scope, names declared global or nonlocal there)."""
    bound: set[str] = set()
    declared: set[str] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            todo += node.decorator_list
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, _COMPREHENSIONS):
            bound |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {a.asname or a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            declared |= set(node.names)
        todo += ast.iter_child_nodes(node)
    return bound - declared, declared


def _arguments(node: ast.arguments) -> list[ast.arg]:
    every = [*node.posonlyargs, *node.args, node.vararg, *node.kwonlyargs, node.kwarg]
    return [a for a in every if a is not None]


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names = Names()
        self.scope = _Scope("module", set(), set(), None, MODULE)
        self._quoted: ast.expr | None = None

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._used(node.id, node)

    def _used(self, name: str, node: ast.expr) -> None:
        scope: _Scope | None = self.scope
        first = True
        while scope is not None and scope.kind != "module":
            if name in scope.globals:
                # a nonlocal one is bound further out, and found there by the next function
                pass
            elif name in scope.bound and (first or scope.kind != "class"):
                if scope.kind == "class" and self._before_binding(name):
                    break
                return
            first = False
            scope = scope.parent
        use = Use(name, self.scope.where, self._quoted or node)
        self.names.uses.setdefault(name, []).append(use)

    def _before_binding(self, name: str) -> bool:
        """`x = x` in a class body reads the module's x."""
        return name in self._unbound

    _unbound: frozenset[str] = frozenset()

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._used(node.target.id, node.target)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer = self.scope
        self._head(node)
        self._defaults(node.args)
        for argument in _arguments(node.args):
            self._annotation(argument.annotation)
        self._annotation(node.returns)
        self.scope = replace(self.scope, where=outer.where)
        bound, declared = _bindings(node.body)
        bound |= {a.arg for a in _arguments(node.args)}
        self._inside("function", bound, declared, node.name, node.body)
        self.scope = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        bound, declared = _bindings([node.body])
        bound |= {a.arg for a in _arguments(node.args)}
        self._inside("function", bound, declared, None, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self.scope
        self._head(node)
        for part in (*node.bases, *node.keywords):
            self.visit(part)
        self.scope = replace(self.scope, where=outer.where)
        bound, declared = _bindings(node.body)
        self._inside("class", bound, declared, node.name, node.body)
        self.scope = outer

    def _head(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Visit decorators and type parameters; what follows of the head is in their scope, and
        counts as used by the definition."""
        self.scope = replace(self.scope, where=_inside(self.scope.where, node.name))
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._type_parameters(node)

    def _type_parameters(self, node: ast.AST) -> _Scope:
        """Enter the scope of `[T]`, if there is one; gives the scope to go back to."""
        outer = self.scope
        parameters = getattr(node, "type_params", None) or []
        if parameters:
            bound = {p.name for p in parameters}
            self.scope = _Scope("function", bound, set(), outer, outer.where)
            for p in parameters:
                for part in ("bound", "default_value"):
                    if getattr(p, part, None) is not None:
                        self.visit(getattr(p, part))
        return outer

    def visit_TypeAlias(self, node: ast.AST) -> None:
        outer = self._type_parameters(node)
        self.visit(node.value)  # type: ignore[attr-defined]
        self.scope = outer

    def _defaults(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *node.kw_defaults):
            if default is not None:
                self.visit(default)

    def _inside(
        self,
        kind: str,
        bound: set[str],
        declared: set[str],
        name: str | None,
        body: Iterable[ast.AST],
    ) -> None:
        outer = self.scope
        where = outer.where
        if name is not None:
            where = _inside(where, name)
        self.names.bound |= {n for n in declared if not _bound_around(outer, n)}
        self.scope = _Scope(kind, bound, declared, outer, where)
        before = self._unbound
        seen: set[str] = set()
        for node in body:
            simple = kind == "class" and isinstance(node, ast.Assign | ast.AnnAssign)
            self._unbound = frozenset(bound - seen if simple else ())
            self.visit(node)
            if kind == "class":
                seen |= _bindings([node])[0]
        self._unbound = before
        self.scope = outer

    def _comprehension(self, node: ast.expr) -> None:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        self.visit(generators[0].iter)
        bound = {
            n.id
            for g in generators
            for n in ast.walk(g.target)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        parts: list[ast.AST] = []
        for number, g in enumerate(generators):
            parts += [*([g.iter] if number else ()), *g.ifs]
        if isinstance(node, ast.DictComp):
            parts += [node.key, node.value]
        else:
            parts.append(node.elt)  # type: ignore[attr-defined]
        self._inside("function", bound, set(), None, parts)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        self.visit(node.target)

    def _annotation(self, node: ast.expr | None) -> None:
        """Visit an annotation: what stands in quotes is code here."""
        if node is None:
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    inner = ast.parse(node.value.strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return
            outer, self._quoted = self._quoted, self._quoted or node
            self._annotation(inner)
            self._quoted = outer
        elif isinstance(node, ast.Subscript):
            self.visit(node.value)
            last = (dotted(node.value) or "").rpartition(".")[2]
            if last == "Literal":
                return
            if last == "Annotated" and isinstance(node.slice, ast.Tuple) and node.slice.elts:
                self._annotation(node.slice.elts[0])
                for part in node.slice.elts[1:]:
                    self.visit(part)
            else:
                self._annotation(node.slice)
        elif isinstance(node, ast.Tuple | ast.List):
            for part in node.elts:
                self._annotation(part)
        elif isinstance(node, ast.BinOp):
            self._annotation(node.left)
            self._annotation(node.right)
        else:
            self.visit(node)


def _inside(where: str, name: str) -> str:
    return name if where == MODULE else f"{where}.{name}"


def _bound_around(scope: _Scope, name: str) -> bool:
    """Whether a function around binds the name: then `nonlocal` means that one."""
    around: _Scope | None = scope
    while around is not None and around.kind != "module":
        if around.kind == "function" and name in around.bound:
            return True
        around = around.parent
    return False
