"""The module that config modules import, there while one is loaded and gone afterwards."""

from __future__ import annotations

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
            around them.
    """
    wanted = [n for n in NAMES if not _installed(n)] + list(more)
    before: dict[str, ModuleType | None] = {}
    try:
        for name in wanted:
            spec = _module(f"{name}.patch_spec")
            package = _module(name, __path__=[], patch_spec=spec)
            for module in (package, spec):
                before[module.__name__] = sys.modules.get(module.__name__)
                sys.modules[module.__name__] = module
        yield
    finally:
        for name, module_before in before.items():
            if module_before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module_before


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
