"""census."""

from __future__ import annotations


def census() -> None:
    """Not built yet."""
