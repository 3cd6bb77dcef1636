"""completion: prints a shell's completion script. Writes no records: its output is the script."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def completion(
    shell: Annotated[
        str,
        typer.Argument(metavar="bash|zsh|fish", help="Which shell.", show_default=False),
    ],
) -> None:
    """Print the completion script of a shell, to be sourced or saved where the shell looks."""
    from ..completion import FILES, script

    if shell not in FILES:
        raise typer.BadParameter(f"{shell!r} is not one of {', '.join(FILES)}", param_hint="SHELL")
    sys.stdout.write(script(shell))
