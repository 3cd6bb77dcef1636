"""patchgen check: compares committed modules with what their configs give.

Writes: `problem` for each finding and difference, `file` for each file that --fix wrote, `summary`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..console import console
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
)


def patchgen_check(
    configs: Configs = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write what differs.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Diffs have to be there, not only to be right.")
    ] = False,
    ignore_version: Annotated[
        bool,
        typer.Option("--ignore-version", help="Versions in the header do not count."),
    ] = False,
    set_source: SetSource = None,
    variable: Variable = "config",
    static: Static = False,
    allow: Allow = None,
    allow_duplicate: AllowDuplicate = False,
    allow_findings: AllowFindings = False,
    json: Json = False,
) -> None:
    """Compare committed modules with what their configs give now: 1 if one differs.

    CONFIG is a dotted name or a file; none means all configs of the project, and then generated
    files without a config count too. A config or source that cannot be read gives 3.
    """
    from ..lib.patchgen import generation
    from ..lib.patchgen.apply import require_libcst
    from ..lib.patchgen.project import Project
    from ..patchgen_console import tell

    require_libcst()
    project = Project(choices(configs, variable, static, set_source, allow, allow_duplicate, json))
    with console.stream(main="problem") as stream:
        run = generation.Check(
            fix=fix, diff=diff, ignore_version=ignore_version, whatever=allow_findings
        )
        for outcome in project.outcomes():
            written = list(run.compare(outcome, project))
            stream.write_all("problem", outcome.records())
            stream.write_all("file", written)
        for orphan in run.orphans(project):
            stream.write("problem", **orphan)
        stream.write("summary", **run.summary())
    tell(project, run)
    if run.exit_code:
        raise typer.Exit(run.exit_code)
