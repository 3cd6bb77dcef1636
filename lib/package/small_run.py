"""What small runs of a package's components are made of, whatever its family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..runtime.arrays import Arrays
from ..runtime.session import Session, to_numpy

Sizes = dict[str, int]
"""Symbolic dimension -> length."""
MAX_ELEMENTS = 1 << 28


def port(manifest: dict[str, Any], component: str, name: str) -> dict[str, Any]:
    """An input of a component, as package.json has it."""
    ports = manifest["components"][component]["inputs"]
    found: dict[str, Any] = next(p for p in ports if p["name"] == name)
    return found


def noise(*shape: int, dtype: str = "float32") -> np.ndarray:
    """The same normal numbers each time, in a type of package.json.

    Raises:
        InputError: more of them than a small run has; sizes come from package.json, which may say
            anything.
    """
    if math.prod(shape) > MAX_ELEMENTS:
        raise InputError(
            "small run: elements of an input", found=list(shape), expected=MAX_ELEMENTS
        )
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)


def nothing(shape: Sequence[Any]) -> np.ndarray | None:
    """An array of length 0 for an input of this declared shape; None where more than its first axis
    is open, or sizes that nothing has."""
    rest = tuple(shape[1:])
    if not all(isinstance(d, int) and 0 < d < MAX_ELEMENTS for d in rest):
        return None
    return np.zeros((0, *rest), np.float32)


class Watched:
    """A session that reports outputs which are not finite."""

    def __init__(
        self, component: str, session: Session, report: Callable[[str, str], None]
    ) -> None:
        self._component, self._session, self._report = component, session, report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(
        self, feeds: Arrays, outputs: list[str] | None = None, *, keep: bool = False
    ) -> dict[str, Any]:
        """Run; every output of floating type is looked at."""
        found = self._session.run(feeds, outputs, keep=keep)
        for name, value in found.items():
            array = to_numpy(value) if keep and self._session.on_host else value
            floats = isinstance(array, np.ndarray) and array.dtype.kind in "fV"
            if floats and not np.isfinite(array.astype(np.float32)).all():
                self._report(self._component, name)
        return found
