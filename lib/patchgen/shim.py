"""The module that config modules import, there while one is loaded and gone afterwards."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import model

NAMES = ("patchgen",)
OFFERED = (
    "PatchConfig",
    "PatchType",
    "Patch",
    "ImportSpec",
    "PositionedHelper",
    "create_patch_from_external",
)


@contextmanager
def shim(more: Iterable[str] = ()) -> Iterator[None]:
    """Answer `import patchgen` and `patchgen.patch_spec`, unless the real package is installed.

    Args:
        more: further names that the modules go by, whether or not they exist. They need no package
            around them: one that is not there is there, empty, for as long.
    """
    wanted = [n for n in NAMES if not _installed(n)] + list(more)
    before: dict[str, ModuleType | None] = {}

    def put(module: ModuleType) -> None:
        before.setdefault(module.__name__, sys.modules.get(module.__name__))
        sys.modules[module.__name__] = module

    try:
        for name in wanted:
            for around in _missing_around(name):
                put(_empty(around))
            spec = _module(f"{name}.patch_spec")
            package = _module(name, __path__=[], patch_spec=spec)
            put(package)
            put(spec)
        for name in before:  # as imports do: `import acme.specs` gives acme, and that has specs
            owner, _, last = name.rpartition(".")
            if owner in before:
                setattr(sys.modules[owner], last, sys.modules[name])
        yield
    finally:
        for name, module_before in before.items():
            if module_before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module_before


def _missing_around(name: str) -> list[str]:
    """Packages that a dotted name lies in and that are not there; nothing is imported."""
    parts = name.split(".")[:-1]
    places: list[str] | None = None
    for number, part in enumerate(parts, 1):
        owner = ".".join(parts[:number])
        if (there := sys.modules.get(owner)) is not None:
            places = list(getattr(there, "__path__", ()))
            continue
        try:
            if places is None:
                spec = importlib.util.find_spec(part)
            else:
                spec = importlib.machinery.PathFinder.find_spec(owner, places)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is None:
            return [".".join(parts[:n]) for n in range(number, len(parts) + 1)]
        places = list(spec.submodule_search_locations or ())
    return []


def _empty(name: str) -> ModuleType:
    module = ModuleType(name, "A package around what config modules of ntool patchgen import.")
    module.__dict__["__path__"] = []
    return module


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name, "What config modules of ntool patchgen import.")
    module.__dict__.update({n: getattr(model, n) for n in OFFERED}, **attributes)
    module.__dict__["__all__"] = list(OFFERED)
    return module


def _installed(name: str) -> bool:
    """Whether the real package is there, and not only a folder of its name."""
    if name in sys.modules:
        return hasattr(sys.modules[name], "PatchConfig")
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return any(os.path.isfile(os.path.join(place, "patch_spec.py")) for place in places)
