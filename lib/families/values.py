"""Sizes and flags of a config, checked as they are asked for. Standard library only."""

from __future__ import annotations

from typing import Any

from ..checkpoint.strict_json import has_lone_surrogate
from ..errors import InputError, Unsupported

MAX_COUNT = 1_000_000
"""Largest value of a size that is believed; far above any model, small enough to fail quickly."""


class Values:
    """Values of one JSON object of the config, checked as they are asked for."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def inner(self, key: str) -> Values:
        """The object at a key; raises `wrong` for anything else."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            found = "none" if value is None else type(value).__name__
            raise self.wrong(key, found, "an object")
        return Values(value, f"{self.where}: {key}")

    def wrong(self, key: str, found: object, expected: object) -> InputError:
        """The error that a value of this object is."""
        return InputError(f"{self.where}: '{key}'", found=found, expected=expected)

    def unsupported(self, key: str, expected: object) -> Unsupported:
        """The refusal of a value of this object that is sound, and that nothing is built for."""
        found = repr(self.values.get(key))[:40]
        return Unsupported(f"{self.where}: '{key}'", found=found, expected=expected)

    def given(self, key: str) -> bool:
        """Whether there is a value; null is none."""
        return self.values.get(key) is not None

    def size(
        self, key: str, default: int | None = None, *, lowest: int = 1, most: int = MAX_COUNT
    ) -> int:
        """An integer of the range; raises `wrong` for anything else."""
        value = self.values.get(key)
        value = default if value is None else value
        if (
            isinstance(value, list) and len(value) == 1
        ):  # a re-saved config may hold one-element lists
            value = value[0]
        if type(value) is not int or not lowest <= value <= most:
            expected = f"an integer from {lowest} to {most}"
            found = "none" if value is None else repr(value)[:40]
            raise self.wrong(key, found, expected)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false; raises `wrong` for anything else."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(key, repr(value)[:40], "true or false")
        return value

    def number(
        self, key: str, default: float | None = None, *, least: float = 1e-6, most: float = 1e12
    ) -> float:
        """A number of the range, as float; raises `wrong` for anything else."""
        value: Any = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, list) and len(value) == 1:  # as in `size`
            value = value[0]
        # the bounds also keep what float32 cannot hold from becoming 0 or infinity in a graph
        if type(value) not in (int, float) or not least <= value <= most:
            found = "none" if value is None else repr(value)[:40]
            raise self.wrong(key, found, f"a number from {least:g} to {most:g}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string that is valid UTF-8; raises `wrong` for anything else."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, str) or has_lone_surrogate(value):
            found = "none" if value is None else repr(value)[:40]
            raise self.wrong(key, found, "a string of UTF-8")
        return value

    def integers(
        self, key: str, default: list[int] | None = None, *, lowest: int = 0, most: int = MAX_COUNT
    ) -> tuple[int, ...]:
        """A list of integers of the range; raises `wrong` for anything else."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, list) or not all(
            type(v) is int and lowest <= v <= most for v in value
        ):
            found = "none" if value is None else repr(value)[:40]
            raise self.wrong(key, found, f"a list of integers from {lowest} to {most}")
        return tuple(value)
