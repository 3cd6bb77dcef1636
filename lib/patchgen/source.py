"""Python files as text and syntax: found by dotted name without an import, parsed once, queried.

Standard library alone. A name that a file defines several times (overloads, properties with a
setter, branches of an `if`) has several definitions here too; nothing picks one in silence.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import io
import os
import re
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType

from ..checkpoint.regular_file import read_file
from ..errors import InputError, SourceNotFound, printable

MAX_BYTES = 32 << 20
"""Of one Python file; the largest modelling files have 300 kB."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
DefinitionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_GUARDS = (ast.If, ast.Try, ast.TryStar, ast.With, ast.For, ast.While, ast.Match)


def split_lines(text: str) -> list[str]:
    """Lines with their line feeds, as the positions of syntax trees count them."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def decode(data: bytes, path: str) -> str:
    """Text of a Python file: its declared encoding or BOM, line ends as line feeds.

    Raises:
        InputError: an unknown encoding, or bytes that it does not have.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, LookupError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: not Python text ({printable(e)})") from e
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_text(path: Path | str) -> str:
    """Text of a Python file, see `decode`.

    Raises:
        InputError: not a regular file, too large, cannot be read or decoded.
    """
    try:
        data = read_file(os.path.realpath(path), MAX_BYTES)
    except SourceNotFound as e:
        raise InputError(f"{path}: no such file") from e
    return decode(data, str(path))


def parse(text: str, path: Path | str) -> ast.Module:
    """The syntax tree.

    Raises:
        InputError: a syntax error, with its line; nesting too deep.
    """
    with _as_input(text, path):
        return ast.parse(text)


def compiled(text: str, path: Path | str) -> CodeType:
    """The code of a module; nothing of it runs.

    Raises:
        InputError: what `parse` raises it for, and what only the compiler refuses: a `return`
            outside of a function, a late `from __future__`.
    """
    with _as_input(text, path):
        return compile(text, str(path), "exec", dont_inherit=True)


@contextmanager
def _as_input(text: str, path: Path | str) -> Iterator[None]:
    """What Python finds wrong with a text is an error of that input, with its line."""
    if "\0" in text:  # Python tells no line, and versions differ in what they tell
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{path}: line {line}: not Python (a NUL byte)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a source that is not ours
            yield
    except SyntaxError as e:
        line_of = f"line {e.lineno}: " if e.lineno else ""
        raise InputError(f"{path}: {line_of}not Python ({e.msg})") from e
    except (ValueError, RecursionError, MemoryError) as e:
        raise InputError(f"{path}: not Python ({printable(e)})") from e


def find_module(name: str, roots: Sequence[Path | str]) -> Path | None:
    """The file of a dotted module name below the first root that has it; nothing is imported.

    Packages without `__init__.py` count as folders on the way, as they do for imports.
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for root in roots:
        folder = Path(root, *parts[:-1])
        for path in (folder / parts[-1] / "__init__.py", folder / f"{parts[-1]}.py"):
            if path.is_file():
                return path
    return _installed(parts)


def _installed(parts: list[str]) -> Path | None:
    """Through the finders of editable installs, which name folders that are on no path.

    Only the top-level name is asked for: asking for more would import the package.
    """
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if len(parts) == 1:
        python = isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        return Path(spec.origin) if python and spec.origin else None
    for place in spec.submodule_search_locations or ():
        folder = Path(place, *parts[1:-1])
        for path in (folder / parts[-1] / "__init__.py", folder / f"{parts[-1]}.py"):
            if path.is_file():
                return path
    return None


@dataclass(frozen=True)
class Imported:
    """One name that one import statement binds.

    Attributes:
        node: the statement.
        module: absolute dotted name; a relative one is resolved against the source's package.
        name: what is taken from it; None for `import module`, `*` for all.
        bound: name that it gets in the module; for `import a.b` it is `a`.
        place: `top`, `guard` (inside if, try, with, ... at module level) or `nested` (in a
            function or class).
    """

    node: ast.Import | ast.ImportFrom
    module: str
    name: str | None
    bound: str
    place: str

    @property
    def spelled(self) -> frozenset[str]:
        """What `drop_import_names` knows it by: the name, its last part, its alias."""
        full = self.module if self.name is None else self.name
        aliases = {a.asname for a in self.node.names if a.name == full and a.asname == self.bound}
        return frozenset((full, full.rpartition(".")[2], *filter(None, aliases)))


class SourceModule:
    """A Python file and what is defined in it.

    Args:
        path: where it was found.
        module: its dotted name.
        text: its text, line ends as line feeds.
    Raises:
        InputError: not Python.
    """

    def __init__(self, path: Path, module: str, text: str) -> None:
        self.path, self.module, self.text = path, module, text
        self.tree = parse(text, path)

    @property
    def package(self) -> str:
        """Dotted name against which relative imports count."""
        return self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]

    @cached_property
    def lines(self) -> list[str]:
        """Lines with their line feeds; form feeds and other separators end none."""
        return split_lines(self.text)

    @cached_property
    def top_level(self) -> dict[str, list[DefinitionNode]]:
        """Name -> definitions directly in the module, in order."""
        found: dict[str, list[DefinitionNode]] = {}
        for node in self.tree.body:
            if isinstance(node, DefinitionNode):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def guarded(self) -> dict[str, list[DefinitionNode]]:
        """Name -> definitions inside if, try, with, for, while at module level."""
        found: dict[str, list[DefinitionNode]] = {}
        for inner in guarded(self.tree):
            found.setdefault(inner.name, []).append(inner)
        return found

    @cached_property
    def everywhere(self) -> dict[tuple[int, str], DefinitionNode]:
        """(line of `class` or `def`, name) -> definition, at any depth."""
        nodes = (n for n in ast.walk(self.tree) if isinstance(n, DefinitionNode))
        return {(n.lineno, n.name): n for n in nodes}

    def classes(self, name: str) -> list[ast.ClassDef]:
        """Top-level classes of this name."""
        return [n for n in self.top_level.get(name, ()) if isinstance(n, ast.ClassDef)]

    def functions(self, name: str) -> list[FunctionNode]:
        """Top-level functions of this name, `async` ones included."""
        return [n for n in self.top_level.get(name, ()) if not isinstance(n, ast.ClassDef)]

    def methods(self, class_name: str, name: str) -> list[FunctionNode]:
        """Definitions of a method directly in the last top-level class of this name."""
        classes = self.classes(class_name)
        return methods(classes[-1], name) if classes else []

    @cached_property
    def imports(self) -> tuple[Imported, ...]:
        """All imported names, at any depth, in order of appearance."""
        return tuple(_imports(self.tree.body, self.package, "top"))

    def imported(self, bound: str) -> Imported | None:
        """The last import at module level (guards included) that binds a name."""
        hits = [i for i in self.imports if i.bound == bound and i.place != "nested"]
        return hits[-1] if hits else None


def methods(node: ast.ClassDef, name: str) -> list[FunctionNode]:
    """Definitions of a method directly in a class body: several for overloads and properties."""
    return [n for n in node.body if isinstance(n, FunctionNode) and n.name == name]


def guarded(node: ast.Module | ast.ClassDef) -> Iterator[DefinitionNode]:
    """Definitions inside if, try, with, for, while, match, directly in a module or class."""
    for statement in node.body:
        if isinstance(statement, _GUARDS):
            for inner in _statements(statement):
                if isinstance(inner, DefinitionNode):
                    yield inner


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """Statements inside a guard at any depth, not those inside classes and functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if isinstance(child, _GUARDS):
                yield from _statements(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            for inner in child.body:
                yield inner
                if isinstance(inner, _GUARDS):
                    yield from _statements(inner)


def _imports(nodes: Sequence[ast.AST], package: str, place: str) -> Iterator[Imported]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield Imported(node, alias.name, None, bound, place)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, package)
            for alias in node.names:
                yield Imported(node, module, alias.name, alias.asname or alias.name, place)
        else:
            inside = place
            if isinstance(node, DefinitionNode):
                inside = "nested"
            elif isinstance(node, ast.stmt) and place == "top":
                inside = "guard"
            # only what holds statements can hold imports
            children = [
                n
                for n in ast.iter_child_nodes(node)
                if isinstance(n, ast.stmt | ast.ExceptHandler | ast.match_case)
            ]
            yield from _imports(children, package, inside)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """Module of a `from` import, relative ones resolved against `package`.

    One that leads above the top-level package keeps its dots, as it cannot be resolved.
    """
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return "." * node.level + (node.module or "")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)


class Library:
    """Source modules by dotted name, each read and parsed once.

    Args:
        roots: folders of the import path, in order.
        known: modules that are not looked for there.
    """

    def __init__(
        self, roots: Sequence[Path | str], known: Mapping[str, SourceModule] | None = None
    ) -> None:
        self.roots = tuple(roots)
        self._modules: dict[str, SourceModule | None] = dict(known or {})

    def module(self, name: str) -> SourceModule:
        """The module of a dotted name.

        Raises:
            InputError: it is not found, cannot be read, or is not Python.
        """
        if self._modules.get(name) is None:
            path = find_module(name, self.roots)
            if path is None:
                raise InputError(f"source module '{name}' is not found", expected="a Python file")
            self._modules[name] = SourceModule(path, name, read_text(path))
        found = self._modules[name]
        assert found is not None
        return found

    def readable(self, name: str) -> SourceModule | None:
        """The module, or None where it cannot be found or read."""
        if name not in self._modules:
            try:
                self._modules[name] = self.module(name)
            except InputError:
                self._modules[name] = None
        return self._modules[name]

    def find_class(
        self, source: SourceModule, name: str, depth: int = 8
    ) -> tuple[SourceModule, ast.ClassDef] | None:
        """The class that a dotted or plain name means in a module, through its imports.

        Args:
            name: `Output`, or `module.Output` with the module's bound name.
            depth: imports to follow, so that two modules that import each other end.
        """
        if depth < 0:
            return None
        head, _, rest = name.partition(".")
        if not rest:
            classes = source.classes(name) or [
                n for n in source.guarded.get(name, ()) if isinstance(n, ast.ClassDef)
            ]
            if classes:
                return source, classes[-1]
        imported = source.imported(head)
        if imported is not None:
            return self._through(imported, rest, depth)
        if not rest:
            for star in source.imports:
                if star.name == "*" and (module := self.readable(star.module)) is not None:
                    found = self.find_class(module, name, depth - 1)
                    if found is not None:
                        return found
        return None

    def _through(
        self, imported: Imported, rest: str, depth: int
    ) -> tuple[SourceModule, ast.ClassDef] | None:
        if imported.name is None:  # import a.b: the name is spelled a.b.Class
            full = imported.module if imported.bound != imported.module.partition(".")[0] else ""
            full = f"{full or imported.bound}.{rest}" if rest else ""
            owner, _, name = full.rpartition(".")
            module = self.readable(owner) if owner else None
            return self.find_class(module, name, depth - 1) if module else None
        if rest:  # from package import module: module.Class
            owner, _, name = rest.rpartition(".")
            full = f"{imported.module}.{imported.name}" + (f".{owner}" if owner else "")
            module = self.readable(full)
            return self.find_class(module, name, depth - 1) if module else None
        module = self.readable(imported.module)
        return self.find_class(module, imported.name, depth - 1) if module else None

    def fields(self, source: SourceModule, node: ast.ClassDef, depth: int = 16) -> list[str]:
        """Names of the annotated assignments of a class and its bases, bases first, in order.

        Bases that cannot be read contribute none. `ClassVar` and `KW_ONLY` are no fields.
        """
        found: dict[str, None] = {}
        if depth:
            for base in reversed(node.bases):
                name = dotted(base)
                hit = self.find_class(source, name) if name else None
                if hit is not None and hit[1] is not node:
                    found.update(dict.fromkeys(self.fields(*hit, depth - 1)))
        for statement in node.body:
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and not re.search(r"\b(ClassVar|KW_ONLY)\b", ast.unparse(statement.annotation))
            ):
                found[statement.target.id] = None
        return list(found)


def literals(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Strings and bytes in a tree, f-strings whole and in pieces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        ):
            yield node


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of names and attributes (subscripts of generics aside), else None."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else None
    return node.id if isinstance(node, ast.Name) else None


def definition_at(tree: ast.Module, line: int, name: str) -> DefinitionNode | None:
    """The class or function whose `class` or `def` is on a line, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, DefinitionNode) and node.lineno == line and node.name == name:
            return node
    return None


def first_line(node: DefinitionNode) -> int:
    """First line of a definition, its decorators included; from 1."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])
