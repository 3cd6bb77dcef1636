"""Sizes and flags of a config, checked as they are asked for. Standard library only."""

from __future__ import annotations

from typing import Any

from ..errors import InputError

MAX_COUNT = 1_000_000
"""Largest value of a size that is believed; far above any model, small enough to fail quickly."""


class Values:
    """Values of one JSON object of the config, checked as they are asked for."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def inner(self, key: str) -> Values:
        value = self.values.get(key)
        if not isinstance(value, dict):
            found = "none" if value is None else type(value).__name__
            raise self.wrong(key, found, "an object")
        return Values(value, f"{self.where}: {key}")

    def wrong(self, key: str, found: object, expected: object) -> InputError:
        """The error that a value of this object is."""
        return InputError(f"{self.where}: '{key}'", found=found, expected=expected)

    def size(
        self, key: str, default: int | None = None, *, lowest: int = 1, most: int = MAX_COUNT
    ) -> int:
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
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(key, repr(value)[:40], "true or false")
        return value
