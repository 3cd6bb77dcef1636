"""Numbers that a person wrote: plain ASCII digits.

Python's own `int` and `float` also take `1_0`, ` 5`, `٤` and `nan`, and fail on 5,000 digits in
their own way.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
MAX_LENGTH = 400
"""Characters of a number; the longest float64 that anybody spells out has 330."""


def whole(text: str) -> int:
    """The whole number that a text spells.

    Raises:
        ValueError: anything else.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError("not a whole number")
    return int(text)


def decimal(text: str) -> float:
    """The number that a text spells, rounded to float64; infinite where it is beyond that.

    Raises:
        ValueError: anything else, `nan` and `inf` included.
    """
    if len(text) > MAX_LENGTH or not _DECIMAL.fullmatch(text):
        raise ValueError("not a number")
    return float(text)
