"""Names of files to be written, as options take them."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def new_file(text: str) -> Path:
    """A parser for `typer.Option(parser=...)`. `Path` forgets a slash at the end, and then a folder
    that is not there would become a file."""
    if not text or text.endswith(("/", os.sep)):
        raise typer.BadParameter(f"found {text!r}, expected the name of a file")
    return Path(text)
