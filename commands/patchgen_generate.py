"""patchgen generate: writes patched modules.

Writes: `problem` for each finding, `file` for each file, `summary`;
with --stdout the module alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import console
from ..options import DryRun
from ..patchgen_options import (
    Allow,
    AllowDuplicate,
    AllowFindings,
    Configs,
    Json,
    SetSource,
    Static,
    Variable,
    choices,
    folder,
)


def patchgen_generate(
    configs: Configs = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=folder,
            help="Write here, not beside the config.",
        ),
    ] = None,
    stdout: Annotated[
        bool,
        typer.Option("--stdout", help="Write the module of one config to standard output."),
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Write the diff too; with --stdout only the diff.")
    ] = False,
    fingerprint: Annotated[
        bool,
        typer.Option(
            "--fingerprint",
            help="Keep in the header what the patches rest on, for check to say what changed.",
        ),
    ] = False,
    set_source: SetSource = None,
    variable: Variable = "config",
    static: Static = False,
    allow: Allow = None,
    allow_duplicate: AllowDuplicate = False,
    allow_findings: AllowFindings = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write the patched modules of configs, each whole or not at all.

    CONFIG is a dotted name or a file; none means all configs of the project. Findings of level
    error keep a module from being written (1); a config or source that cannot be read gives 3.
    """
    from ..lib.patchgen import generation
    from ..lib.patchgen.apply import require_libcst
    from ..lib.patchgen.project import Project
    from ..patchgen_console import as_filter, tell

    if stdout and (output is not None or len(configs or ()) != 1):
        raise typer.BadParameter("takes one CONFIG, and no --output", param_hint="--stdout")
    require_libcst()
    shared = (configs, variable, static, set_source, allow, allow_duplicate, json)
    chosen = choices(*shared, output, fingerprint)
    project = Project(chosen)
    if stdout:
        code = as_filter(project, diff=diff, whatever=allow_findings, dry_run=dry_run)
        if code:
            raise typer.Exit(code)
        return
    in_table = generation.would_write if dry_run else None
    with console.stream(main="file", in_table=in_table) as stream:
        run = generation.Run(diff=diff, whatever=allow_findings, dry_run=dry_run)
        for outcome in project.outcomes():
            outcome.note_changes()
            stream.write_all("problem", outcome.records())
            stream.write_all("file", run.write(outcome, project))
        stream.write("summary", **run.summary())
    tell(project, run)
    if run.exit_code:
        raise typer.Exit(run.exit_code)
