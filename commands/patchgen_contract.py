"""patchgen contract: what changed under the patches of a config between two versions of its source.

Writes: `problem` for each patch that rests on something that changed, `summary`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import console
from ..patchgen_options import Allow, Config, Json, Static, Variable, choices, folder

_WHERE = "a folder of the import path, the package's own, or one with the file alone"


def patchgen_contract(
    config: Config,
    old: Annotated[
        Path,
        typer.Option(
            "--old", metavar="DIR", parser=folder, help=f"The version patched so far: {_WHERE}."
        ),
    ],
    new: Annotated[
        Path,
        typer.Option(
            "--new", metavar="DIR", parser=folder, help="The version to come, in the same form."
        ),
    ],
    variable: Variable = "config",
    static: Static = False,
    allow: Allow = None,
    json: Json = False,
) -> None:
    """Say which patches rest on something that changed between two versions of their source.

    Signatures, decorators, bases, fields and code of every target are compared; what only moved,
    comments and docstrings do not count. A change gives 1, what cannot be read 3.
    """
    from ..lib.patchgen.generation import Counts
    from ..lib.patchgen.project import Project
    from ..patchgen_console import tell

    project = Project(choices([config], variable, static, None, allow, False, json))
    with console.stream(main="problem") as stream:
        counts = Counts()
        for outcome in project.contracts(old, new):
            counts.count(outcome)
            stream.write_all("problem", outcome.records())
        stream.write("summary", **counts.summary())
    tell(project, counts)
    if counts.exit_code:
        raise typer.Exit(counts.exit_code)
