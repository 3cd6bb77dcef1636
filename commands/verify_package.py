"""verify_package."""

from __future__ import annotations


def verify_package() -> None:
    """Not built yet."""
