"""What a config may leave changed in the process that ran it, so that the next needs another."""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import sys
from types import ModuleType
from typing import Any

WATCHED: tuple[ModuleType, ...] = (ast, builtins, io, json, os, os.path)
"""Modules outside of ntool whose functions loading a config relies on."""
OWN = __name__.partition(".")[0] + "."


class ProcessState:
    """What this process is like now, to be compared with what it is like later."""

    def __init__(self) -> None:
        own = [m for name, m in sys.modules.items() if name.startswith(OWN)]
        self._namespaces = [vars(m) for m in (*WATCHED, *own) if isinstance(m, ModuleType)]
        self._functions = [
            (space, name, value)
            for space in self._namespaces
            for name, value in space.items()
            if callable(value)
        ]
        self._modules = sys.modules
        self._recursion = sys.getrecursionlimit()
        self._limits = _limits()
        self.note_modules()

    def note_modules(self) -> None:
        """Remember the modules that are there now: configs import, and what they import stays."""
        self._there = dict(self._modules)

    def changed(self) -> bool:
        """Whether a module was taken out or replaced, a function that ntool relies on replaced,
        or a limit of the process changed. Modules and names that are new are no change."""
        return (
            sys.modules is not self._modules
            or any(self._modules.get(name) is not m for name, m in self._there.items())
            or any(space.get(name) is not value for space, name, value in self._functions)
            or sys.getrecursionlimit() < self._recursion
            or _limits() != self._limits
        )


try:
    import resource
except ImportError:  # Windows has no such limits, and no process of configs
    _NUMBERS: frozenset[int] = frozenset()
else:
    _NUMBERS = frozenset(getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_"))
    _getrlimit = resource.getrlimit


def _limits() -> list[Any]:
    return [_getrlimit(number) for number in _NUMBERS]
