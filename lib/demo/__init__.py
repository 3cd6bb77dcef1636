"""The demonstration checkpoint that ships with ntool: package data, a complete model of 10 MB."""

from __future__ import annotations

import os

NAMES = ("shapes",)


def path(name: str = "shapes") -> str:
    """Absolute path of the folder of `demo:NAME`.

    Raises:
        KeyError: no demonstration of that name.
    """
    if name not in NAMES:
        raise KeyError(name)
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
