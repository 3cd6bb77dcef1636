"""What names of a config stand for when it is read without being run."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .model import Code, ImportSpec, Patch, PositionedHelper
from .static_names import used_when_called

RECORDS = Patch | ImportSpec | PositionedHelper
"""What the lists of a config hold; their fields may be read and set."""


class NotStatic(Exception):
    """An expression or statement whose effect is known only by running it.

    Args:
        node: where.
        why: what is not understood, for "line N: ...".
    """

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


class Definition:
    """A function or class in a file, as a patch's replacement: what running would make an object.

    It has the `__name__` and `__module__` that the object would have, since configs ask for them.

    Args:
        file: absolute path.
        module: dotted name under which running would import the file.
        node: its statement, decorators included.
    """

    def __init__(
        self,
        file: Path,
        module: str,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
    ) -> None:
        self.file, self.node = file, node
        self.__name__ = self.__qualname__ = node.name
        self.__module__ = module

    def place(self) -> Code:
        """Where it is, as the rest of this package knows it."""
        return Code(str(self.file), self.node.lineno, self.__name__, self.__module__)

    @cached_property
    def uses(self) -> frozenset[str]:
        """Names outside of it that calling it could read."""
        return frozenset(used_when_called(self.node))

    def __deepcopy__(self, memo: dict[int, Any]) -> Definition:
        return self


@dataclass(frozen=True)
class Imported:
    """A module, or (with `name`) something in one, that is looked into when it is needed.

    Attributes:
        module: absolute dotted name.
        file: its file, or None where it was not found.
        folder: of a package, where its modules lie.
    """

    module: str
    file: Path | None
    name: str | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Unknown:
    """A value that only running could tell.

    Attributes:
        why: what it is, for a message.
        uses: names that its expression would read when called: `lambda: config.add_import(...)`.
    """

    why: str
    uses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Known:
    """A function of another module whose effect on known values is known; called as it is."""

    call: Callable[..., Any]


FUNCTIONS = {
    ("copy", "deepcopy"): Known(copy.deepcopy),
    ("copy", "copy"): Known(copy.copy),
    ("dataclasses", "replace"): Known(dataclasses.replace),
}
"""(module, name) -> function, of the standard library: how a sibling's config is copied."""
BUILTINS: dict[str, Any] = {
    "list": Known(list), "tuple": Known(tuple), "set": Known(set), "dict": Known(dict),
    "frozenset": Known(frozenset),
}  # fmt: skip
METHODS = {
    list: {"append", "extend", "insert", "remove", "pop", "clear", "reverse", "copy", "index"},
    set: {"add", "update", "discard", "remove", "clear", "copy", "difference_update",
          "intersection_update", "union", "difference"},
    dict: {"update", "get", "copy", "pop", "clear", "setdefault"},
}  # fmt: skip
"""Methods of containers that are carried out."""
CONTAINERS = (list, set, dict, tuple, frozenset)
