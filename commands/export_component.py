"""export_component."""

from __future__ import annotations


def export_component() -> None:
    """Not built yet."""
