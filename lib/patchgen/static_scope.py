"""Names of one file of a config read as syntax: what they stand for, and what they can reach."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinMethodType, MethodType
from typing import Any

from ..checkpoint.tensor import Problem
from ..errors import InputError
from . import model
from .model import PatchConfig, PatchType
from .shim import OFFERED
from .source import absolute, parse, read_text
from .static_expressions import Evaluator
from .static_names import bound, head, used_at_once
from .static_values import (
    BUILTINS,
    CONTAINERS,
    FUNCTIONS,
    RECORDS,
    Definition,
    Imported,
    Known,
    NotStatic,
    Unknown,
)

API: dict[str, Any] = {
    name: PatchType if name == "PatchType" else Known(getattr(model, name)) for name in OFFERED
}
"""What configs import of the tool, under whatever module name."""
API_MODULES = ("patchgen", "patch_spec")
"""Last parts of the names of modules that offer it."""
MENTIONS = ("PatchConfig", "patchgen", "patch_gen", "patch_spec")
"""A module whose text has none of these neither makes nor changes a config."""

DYNAMIC = frozenset(("exec", "eval", "globals"))
"""Functions that reach names without naming them."""

Find = Callable[[str], Path | None]


@dataclass
class Session:
    """Scopes that were read for one config; a sibling is read once, as running imports it once.

    Attributes:
        make: makes a module that can be followed.
        find: file of an absolute dotted module name, or None; imports nothing.
        api_modules: more module names that offer `PatchConfig`.
        modules: by file, in the order in which running would begin them.
        unreadable: files that cannot be read or parsed, and why; running would stop there.
    """

    make: Callable[[Session, Path, str], Scope]
    find: Find
    api_modules: frozenset[str] = frozenset()
    modules: dict[Path, Scope] = field(default_factory=dict)
    resolving: set[Imported] = field(default_factory=set)
    unreadable: dict[Path, InputError] = field(default_factory=dict)
    _mentions: dict[Path, bool] = field(default_factory=dict)

    def module(self, file: Path, name: str) -> Scope:
        """The module in a file, read now if it was not yet; half read where imports are circular.

        Raises:
            InputError: it cannot be read or is not Python.
        """
        key = file.resolve()
        if key in self.unreadable:
            raise self.unreadable[key]
        if key not in self.modules:
            file = Path(os.path.abspath(file))
            try:
                tree = parse(read_text(file), file)
            except InputError as e:
                self.unreadable[key] = e
                raise
            module = self.make(self, file, name)
            self.modules[key] = module
            module.follow(tree.body)
        return self.modules[key]

    def may_matter(self, value: Imported) -> bool:
        """Whether a module may make or change a config: its text says so. Others stay unread."""
        if value.file is None or self.offers_api(value.module):
            return False
        return self.matters(value.file)

    def matters(self, file: Path) -> bool:
        """`may_matter`, of a file."""
        key = file.resolve()
        if key not in self._mentions:
            try:
                text = read_text(key)
            except InputError:
                text = ""
            self._mentions[key] = any(word in text for word in (*MENTIONS, *self.api_modules))
        return self._mentions[key]

    def problems(self, root: Scope) -> list[Problem]:
        """What was not understood and may concern the configs of `root`, and what is unreadable."""
        found = [p for m in self.modules.values() if m is root or m.shared for p in m.problems]
        return found + [
            Problem("not-readable", e.message, file=str(file), malformed=True)
            for file, e in self.unreadable.items()
        ]

    def offers_api(self, module: str) -> bool:
        """Whether a module is the tool's own, so that its `PatchConfig` is ours."""
        return module in self.api_modules or module.rpartition(".")[2] in API_MODULES


@dataclass
class Scope:
    """The names of one file that is followed.

    Attributes:
        file: its path.
        name: dotted name under which running would import it.
        names: what its names stand for so far.
        problems: what was not understood in it.
        shared: it takes a config from another module, or another one takes one from it.
    """

    session: Session
    file: Path
    name: str
    names: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    shared: bool = False

    def __post_init__(self) -> None:
        self._evaluate = Evaluator(self.lookup, self._of_import).value
        self._stars: list[Imported] = []
        self.matters = not self.session.modules or self.session.matters(self.file)
        self._deep = False
        """Whether what is followed touches a config, so that any module may be looked into."""

    # names

    def lookup(self, name: str) -> Any:
        """What a name stands for, imports looked into; KeyError without one."""
        if name in self.names:
            return self._resolved(self.names[name], self._deep)
        if name == "__name__":
            return self.name
        for origin in reversed(self._stars):
            found = self._resolved(dataclasses.replace(origin, name=name), True)
            if not isinstance(found, Unknown):
                return found
        return BUILTINS[name]

    def _resolved(self, value: Any, deep: bool) -> Any:
        """What an import stands for; without `deep`, that of a module that cannot matter stays."""
        if not isinstance(value, Imported) or value.name is None:
            return value
        if self.session.offers_api(value.module) and value.name in API:
            return API[value.name]
        inner = f"{value.module}.{value.name}"
        around = any(name.startswith(inner + ".") for name in self.session.api_modules)
        if self.session.offers_api(inner) or (around and value.file is None):
            return _module(inner, self.session.find(inner) if around else None)
        if (value.module, value.name) in FUNCTIONS:
            return FUNCTIONS[value.module, value.name]
        if not deep and not self.session.may_matter(value):
            return value
        if value in self.session.resolving:
            return Unknown("imported in a circle")
        self.session.resolving.add(value)
        try:
            return self._looked_up(value, value.name)
        finally:
            self.session.resolving.discard(value)

    def _looked_up(self, value: Imported, name: str) -> Any:
        try:
            module = self._read(value)
        except InputError as e:
            return Unknown(f"of module {value.module}, which cannot be read: {e}")
        if module is not None:
            deep, module._deep = module._deep, True
            try:
                found = module.lookup(name)
            except KeyError:
                found = None
            finally:
                module._deep = deep
            if found is not None and found is not BUILTINS.get(name):
                if self._part_of_config(found):
                    self.shared = module.shared = True
                return found
        if (made := self._submodule(value, name)).file:
            return made
        if module is None:
            return Unknown(f"of module {value.module}, which is not found")
        return Unknown(f"not defined in {value.module}")

    def _submodule(self, package: Imported, name: str) -> Imported:
        inner = f"{package.module}.{name}"
        if package.folder is not None and (file := _module_file(package.folder / name)):
            return _module(inner, file)
        return _module(inner, self.session.find(inner))

    def _read(self, value: Imported) -> Scope | None:
        return None if value.file is None else self.session.module(value.file, value.module)

    def _of_import(self, owner: Any, name: str, node: ast.AST) -> Any:
        if isinstance(owner, Imported) and owner.name is None:
            found = self._resolved(dataclasses.replace(owner, name=name), self._deep)
            if not isinstance(found, Unknown):
                return found
            raise NotStatic(node, f"{name!r} is {found.why}")
        raise NotStatic(node, f"attribute {name!r} of this is not known")

    def follow(self, body: Iterable[ast.stmt]) -> None:
        """Follow statements in order; see the class that does."""
        raise NotImplementedError

    # imports

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                self.names[alias.asname or whole] = _module(whole, self.session.find(whole))
                self._with_effects(_module(alias.name, self.session.find(alias.name)))
            return
        origin = self._origin(node)
        self._with_effects(origin)
        for alias in node.names:
            if alias.name == "*":
                self._import_all(origin)
            else:
                value = dataclasses.replace(origin, name=alias.name)
                self.names[alias.asname or alias.name] = value
                if origin.folder is not None:
                    self._with_effects(self._submodule(origin, alias.name))

    def _origin(self, node: ast.ImportFrom) -> Imported:
        """The module of a `from` import."""
        if not node.level:
            return _module(node.module or "", self.session.find(node.module or ""))
        package = self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]
        name = absolute(node, package)
        parents = self.file.parents
        folder = parents[min(node.level, len(parents)) - 1]
        if node.module:
            folder = folder.joinpath(*node.module.split("."))
            return _module(name, _module_file(folder), folder)
        init = folder / "__init__.py"
        return Imported(name, init if init.is_file() else None, folder=folder)

    def _import_all(self, origin: Imported) -> None:
        if self.session.offers_api(origin.module):
            self.names.update(API)
            return
        if not self.session.may_matter(origin):
            self._stars.append(origin)
            return
        try:
            module = self._read(origin)
        except InputError:
            return
        if module is not None:
            listed = module.names.get("__all__")
            names = listed if isinstance(listed, list | tuple) else None
            for name in names or [n for n in module.names if not n.startswith("_")]:
                self.names[name] = dataclasses.replace(origin, name=name)

    def _with_effects(self, value: Imported) -> None:
        """Read a module now that may change a config while it is imported."""
        if self.session.may_matter(value):
            with suppress(InputError):  # told at the end
                self._read(value)

    # what a statement could reach

    def _forget(self, node: ast.AST) -> None:
        """Names that a statement rebinds, and lists and mappings it could change, are not known."""
        why = f"known only by running line {getattr(node, 'lineno', 0)}"
        for name in bound(node):
            self.names[name] = Unknown(why)
        for scope, name in self._reached(used_at_once(node)):
            if scope is self and isinstance(self.names.get(head(name)), list | dict | set):
                self.names[head(name)] = Unknown(why)

    def _touches(self, node: ast.AST) -> bool:
        """Whether running this could read or change a config."""
        return self._any_live(used_at_once(node))

    def _any_live(self, names: Iterable[str]) -> bool:
        if not self.matters:
            return False
        return any(scope._is_live(name) for scope, name in self._reached(names))

    def _reached(self, names: Iterable[str]) -> Iterator[tuple[Scope, str]]:
        """Names, and those that calling what they stand for could read, here and in siblings."""
        seen: set[tuple[Path, str]] = set()
        left: deque[tuple[Scope, str]] = deque((self, name) for name in names)
        while left:
            scope, name = left.popleft()
            if (scope.file, name) not in seen:
                seen.add((scope.file, name))
                yield scope, name
                left.extend(scope._behind(name))

    def _behind(self, name: str) -> list[tuple[Scope, str]]:
        value = self._standing_for(name)
        if isinstance(value, Imported):  # a module, handed on whole
            home = self._read(value) if self.session.may_matter(value) else None
            return [] if home is None else [(home, n) for n in list(home.names)]
        if isinstance(value, Definition):
            home = self.session.modules[value.file.resolve()]
            return [(home, n) for n in value.uses] if home.matters else []
        return [(self, n) for n in value.uses] if isinstance(value, Unknown) else []

    def _standing_for(self, name: str) -> Any:
        """What a dotted name stands for, as far as modules that matter go."""
        first, *rest = name.split(".")
        value = self.names.get(first)
        if isinstance(value, Imported) and value.name is None:
            value = self._attribute_of(value, rest)
        if isinstance(value, Imported) and self.session.may_matter(value):
            with suppress(InputError):
                return self._resolved(value, True)
        return value

    def _is_live(self, name: str) -> bool:
        """Whether a name is a config or part of one, or could reach one unnamed."""
        if name in DYNAMIC and name not in self.names:
            return bool(self._configs())
        return self._part_of_config(self._standing_for(name))

    def _attribute_of(self, value: Any, names: list[str]) -> Any:
        """What `a.b.c` stands for when `a` is a module, as far as modules that matter go."""
        for name in names:
            if not isinstance(value, Imported) or value.name is not None:
                break
            inner = self._submodule(value, name)
            value = inner if inner.file else dataclasses.replace(value, name=name)
        return value

    def _part_of_config(self, value: Any, depth: int = 0) -> bool:
        if isinstance(value, PatchConfig | RECORDS):
            return True
        if isinstance(value, MethodType | BuiltinMethodType):
            return self._part_of_config(value.__self__)
        if isinstance(value, Known):
            return (
                value not in API.values()
                and value not in BUILTINS.values()
                and (value not in FUNCTIONS.values())
            )
        if isinstance(value, CONTAINERS):
            if depth > 4 or id(value) in self._held():  # too deep to tell: refused
                return True
            items = value.values() if isinstance(value, dict) else value
            return any(self._part_of_config(v, depth + 1) for v in items)
        return False

    def _held(self) -> set[int]:
        """Identities of the containers in configs: also a list that `add_import` was given."""
        found: set[int] = set()
        seen: set[tuple[int, bool]] = set()
        left = [(v, False) for m in self.session.modules.values() for v in m.names.values()]
        while left:
            value, inside = left.pop()
            if (id(value), inside) in seen:
                continue
            seen.add((id(value), inside))
            if isinstance(value, PatchConfig | RECORDS):
                left += ((v, True) for v in vars(value).values())
            elif isinstance(value, CONTAINERS):
                if inside:
                    found.add(id(value))
                items = value.values() if isinstance(value, dict) else value
                left += ((v, inside) for v in items)
        return found

    def _configs(self) -> list[PatchConfig]:
        found = (v for m in self.session.modules.values() for v in m.names.values())
        return [v for v in found if isinstance(v, PatchConfig)]


def _module_file(path: Path) -> Path | None:
    """The file of a module below a folder that is on nobody's import path."""
    for file in (path.with_name(path.name + ".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def _module(name: str, file: Path | None, folder: Path | None = None) -> Imported:
    if file is not None:
        folder = file.parent if file.name == "__init__.py" else None
    return Imported(name, file, folder=folder)
