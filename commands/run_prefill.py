"""run_prefill."""

from __future__ import annotations


def run_prefill() -> None:
    """Not built yet."""
