"""The difference between a source and what is generated from it."""

from __future__ import annotations

import difflib

CONTEXT = 3


def unified(source: str, generated: str, source_module: str, target_file: str) -> str:
    """A unified diff; no line ends with blanks.

    Args:
        source_module: dotted name; the diff names its path below the import root.
    """
    lines = difflib.unified_diff(
        source.split("\n"),
        generated.split("\n"),
        f"a/{source_module.replace('.', '/')}.py",
        f"b/{target_file}",
        n=CONTEXT,
        lineterm="",
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def stripped(text: str) -> str:
    """A diff as it is compared: blanks at line ends do not count."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n")
