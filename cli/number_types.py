"""Types of options that take a number: plain ASCII, within a range.

click's own types take what Python's `int` and `float` take (lib/plain_numbers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import typer

from .lib import plain_numbers
from .lib.errors import MAX_ECHO, printable, shorten


def whole(least: int, most: int) -> Callable[[str | int], int]:
    """A parser of whole numbers from `least` to `most`, for `typer.Option(parser=...)`."""

    def integer(text: str | int) -> int:
        with suppress(ValueError):
            value = plain_numbers.whole(str(text))  # a default comes as a number
            if least <= value <= most:
                return value
        raise _refused(text, f"a whole number from {least} to {most}")

    return integer


def number(least: float, most: float) -> Callable[[str | float], float]:
    """A parser of numbers from `least` to `most`, for `typer.Option(parser=...)`."""

    def decimal(text: str | float) -> float:
        with suppress(ValueError):
            value = plain_numbers.decimal(str(text))
            if least <= value <= most:
                return value
        raise _refused(text, f"a number from {least:g} to {most:g}")

    return decimal


def _refused(text: object, expected: str) -> typer.BadParameter:
    found = shorten(printable(shorten(str(text), MAX_ECHO)), MAX_ECHO)
    return typer.BadParameter(f"found {found!r}, expected {expected}")
