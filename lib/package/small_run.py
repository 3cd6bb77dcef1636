"""What small runs of a package's components are made of, whatever its family."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..runtime.session import Bound, Room, Session, to_numpy

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
        self,
        feeds: Mapping[str, Any],
        outputs: list[str] | None = None,
        *,
        keep: bool | Collection[str] = False,
    ) -> dict[str, Any]:
        """Run; every output of floating type is looked at."""
        found = self._session.run(feeds, outputs, keep=keep)
        for name, value in found.items():
            if isinstance(value, np.ndarray):
                self.look(name, value)
            elif self._session.on_host:
                self.look(name, to_numpy(value))
        return found

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Room]) -> WatchedBound:
        """The session bound; what each of its runs writes is looked at."""
        return WatchedBound(self, self._session.bind(feeds, outputs), outputs)

    def look(self, name: str, array: np.ndarray) -> None:
        """Report an output with a NaN or an infinity."""
        floats = array.dtype.kind in "fV"
        if floats and not np.isfinite(array.astype(np.float32)).all():
            self._report(self._component, name)


class WatchedBound:
    """A bound session whose outputs are looked at after each run."""

    def __init__(self, watched: Watched, bound: Bound, outputs: Mapping[str, Room]) -> None:
        self._watched, self._bound, self._outputs = watched, bound, outputs

    def feed(self, name: str, value: Any) -> None:
        """See `Bound`."""
        self._bound.feed(name, value)

    def run(self) -> None:
        """See `Bound`; outputs that lie on a device are not looked at."""
        self._bound.run()
        for name, room in self._outputs.items():
            if room.array is not None:
                self._watched.look(name, room.array)
