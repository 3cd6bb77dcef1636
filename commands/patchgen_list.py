"""patchgen list: the configs of a project.

Writes: `config` for each config, `problem` for each one that cannot be loaded.
"""

from __future__ import annotations

import typer

from ..console import console
from ..patchgen_options import Configs, Json, Static, Variable, choices


def patchgen_list(
    configs: Configs = None,
    variable: Variable = "config",
    static: Static = False,
    json: Json = False,
) -> None:
    """List the configs of the project, or those named, with what they patch and write.

    A config that cannot be loaded is a problem (3), never left out in silence.
    """
    from ..lib.patchgen import generation
    from ..lib.patchgen.project import Project
    from ..patchgen_console import tell

    project = Project(choices(configs, variable, static, None, None, False, json))
    with console.stream(main="config", in_table=generation.listed) as stream:
        run = generation.Listing()
        for outcome in project.plans():
            stream.write_all("problem", outcome.records())
            stream.write_all("config", run.describe(outcome, project))
    tell(project, run)
    if run.exit_code:
        raise typer.Exit(run.exit_code)
