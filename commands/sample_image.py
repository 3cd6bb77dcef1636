"""sample_image."""

from __future__ import annotations


def sample_image() -> None:
    """Not built yet."""
