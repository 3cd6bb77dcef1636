"""What a patch rests on: signature, decorators, bases, fields and body of a definition, compared.

Facts are small and hold no positions, so that they can be stored (fingerprint.py). Bodies are
written by our own walk of the tree: `ast.dump` differs between versions of Python.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .source import DefinitionNode, FunctionNode, Library, SourceModule

POSITIONAL = ("positional-only", "positional")


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        kind: `positional-only`, `positional`, `*`, `keyword-only` or `**`.
        default: its text, or None without one.
    """

    name: str
    kind: str
    default: str | None = None


@dataclass(frozen=True)
class Facts:
    """What is compared of a definition.

    Attributes:
        kind: `class`, `function` or `async function`.
        parameters: of a function, in order.
        decorators, bases: their texts, in order; bases with keywords (`metaclass=...`).
        fields: names of a class's annotated assignments, bases' first.
        body: digest of the syntax, without comments, docstrings and the fields' own lines.
        parts: of a class: name -> digest, of its methods and of what else its body holds.
    """

    kind: str
    parameters: tuple[Parameter, ...] = ()
    decorators: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    body: str = ""
    parts: tuple[tuple[str, str], ...] = ()


def shape(node: Any) -> str:
    """A syntax tree as text: the same for the same code, whatever its layout and comments.

    Docstrings, `pass` and other expressions that only state a constant are left out.
    """
    if isinstance(node, list):
        kept = [n for n in node if not _says_nothing(n)]
        return f"[{','.join(map(shape, kept))}]"
    if isinstance(node, ast.AST):
        parts = [
            f"{name}={shape(value)}"
            for name, value in ast.iter_fields(node)
            if value is not None and value != [] and name not in ("ctx", "kind", "type_comment")
        ]
        return f"{type(node).__name__}({','.join(parts)})"
    return repr(node)


def _says_nothing(node: Any) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, ast.Pass)


def digest(nodes: Sequence[ast.AST]) -> str:
    """16 hexadecimal digits of the shape of some statements."""
    return hashlib.sha256(shape(list(nodes)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def parameters(node: FunctionNode) -> tuple[Parameter, ...]:
    """Parameters of a function, in the order in which they are written."""
    return tuple(_parameters(node.args))


def _parameters(args: ast.arguments) -> Iterator[Parameter]:
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + [ast.unparse(d) for d in args.defaults]
    for index, (arg, default) in enumerate(zip(plain, defaults, strict=True)):
        kind = POSITIONAL[index >= len(args.posonlyargs)]
        yield Parameter(arg.arg, kind, default)
    if args.vararg is not None:
        yield Parameter(args.vararg.arg, "*")
    for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield Parameter(arg.arg, "keyword-only", None if value is None else ast.unparse(value))
    if args.kwarg is not None:
        yield Parameter(args.kwarg.arg, "**")


def decorators(node: DefinitionNode) -> tuple[str, ...]:
    """Texts of the decorators, in order."""
    return tuple(ast.unparse(d) for d in node.decorator_list)


def facts_of(
    nodes: Sequence[DefinitionNode], source: SourceModule | None, library: Library | None
) -> Facts:
    """Facts of a name that is defined once, or several times (overloads, accessors).

    The signature is that of the definition that is no stub of an overload, and of several of those
    the first, which a property's getter is; the body is that of all.

    Args:
        source, library: to look for the fields of a class's bases; without them its own count.
    """
    real = [n for n in nodes if not _is_overload(n)] or list(nodes)
    node = real[0]
    if isinstance(node, ast.ClassDef):
        return _class_facts(node, source, library)
    whole: list[ast.AST] = [*node.body, *(n for n in nodes if n is not node)]
    return Facts(kind_of(node), parameters(node), decorators(node), body=digest(whole))


def kind_of(node: DefinitionNode) -> str:
    """`class`, `function` or `async function`."""
    if isinstance(node, ast.ClassDef):
        return "class"
    return "async function" if isinstance(node, ast.AsyncFunctionDef) else "function"


def _is_overload(node: DefinitionNode) -> bool:
    return any(d.rpartition(".")[2] == "overload" for d in decorators(node))


def _class_facts(node: ast.ClassDef, source: SourceModule | None, library: Library | None) -> Facts:
    fields = [name for name in map(_field, node.body) if name]
    if source is not None and library is not None:
        fields = library.fields(source, node)
    bases = (*map(ast.unparse, node.bases), *(f"{k.arg}={ast.unparse(k.value)}"
                                              for k in node.keywords))  # fmt: skip
    grouped: dict[str, list[ast.AST]] = {}
    for part in node.body:
        if not _says_nothing(part):
            name = part.name if isinstance(part, DefinitionNode) else _field(part)
            grouped.setdefault(name, []).append(part)
    parts = tuple(sorted((name, digest(found)) for name, found in grouped.items()))
    return Facts("class", (), decorators(node), bases, tuple(fields), "", parts)


def _field(node: ast.stmt) -> str:
    """The name that an annotated assignment gives a value, or nothing."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return ""


@dataclass(frozen=True)
class Change:
    """One difference between the facts of two versions.

    Attributes:
        code: a code of findings.
        message: what changed, one line.
        details: fields for a record.
    """

    code: str
    message: str
    details: dict[str, Any]


def changes(old: Facts, new: Facts) -> list[Change]:
    """Differences between two versions of a definition. Of different kinds, only that."""
    if (old.kind == "class") is not (new.kind == "class"):
        return [_kind(old, new)]
    found: list[Change] = []
    if old.kind != new.kind:
        found.append(_kind(old, new))
    if old.parameters != new.parameters:
        found.append(_signature(old.parameters, new.parameters))
    for code, before, after in (
        ("decorators-changed", old.decorators, new.decorators),
        ("bases-changed", old.bases, new.bases),
        ("fields-changed", old.fields, new.fields),
    ):
        if before != after:
            found.append(_lists(code, before, after))
    changed = _changed_parts(old, new)
    if old.body != new.body or changed:
        where = f": {', '.join(changed)}" if changed else ""
        found.append(Change("body-changed", f"the code of the source changed{where}", {}))
    return found


def _kind(old: Facts, new: Facts) -> Change:
    text = f"was {with_article(old.kind)}, is {with_article(new.kind)}"
    return Change("kind-changed", text, {"old": old.kind, "new": new.kind})


def with_article(words: str) -> str:
    """`a class`, `an async function`."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _lists(code: str, before: Sequence[str], after: Sequence[str]) -> Change:
    added = [x for x in after if x not in before]
    removed = [x for x in before if x not in after]
    words = [*(f"{x} added" for x in added), *(f"{x} removed" for x in removed)]
    text = ", ".join(words) or "another order"
    return Change(code, text, {"added": added, "removed": removed})


def _changed_parts(old: Facts, new: Facts) -> list[str]:
    """Members of a class whose code differs; fields that came or went are told as such."""
    before, after = dict(old.parts), dict(new.parts)
    fields = set(old.fields) ^ set(new.fields)
    names = sorted({*before, *after} - fields)
    return [n or "class body" for n in names if before.get(n) != after.get(n)]


def _signature(old: Sequence[Parameter], new: Sequence[Parameter]) -> Change:
    """How a signature changed.

    `reordered` says that a parameter which both have is at another place for a call by position:
    one was put before it, or taken out.
    """
    before, after = {p.name: p for p in old}, {p.name: p for p in new}
    added = [n for n in after if n not in before]
    removed = [n for n in before if n not in after]
    places_old = [p.name for p in old if p.kind in POSITIONAL]
    places_new = [p.name for p in new if p.kind in POSITIONAL]
    reordered = any(
        places_old.index(n) != places_new.index(n) for n in places_old if n in places_new
    )
    words = [f"{n} added" for n in added] + [f"{n} removed" for n in removed]
    words += ["places changed"] if reordered else []
    for name, was in before.items():
        now = after.get(name, was)
        if now.kind != was.kind:
            words.append(f"{name} was {was.kind}, is {now.kind}")
        if now.default != was.default:
            words.append(
                f"default of {name} was {was.default or 'none'}, is {now.default or 'none'}"
            )
    details = {"added": added, "removed": removed, "reordered": reordered}
    return Change("signature-changed", ", ".join(words) or "another order", details)
