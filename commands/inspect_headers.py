"""inspect_headers."""

from __future__ import annotations


def inspect_headers() -> None:
    """Not built yet."""
