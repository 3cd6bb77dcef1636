"""What the commands of `ntool patchgen` say on standard error, and their output as a filter."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .console import console
from .lib.records import dumps

if TYPE_CHECKING:
    from .lib.patchgen.generation import Counts
    from .lib.patchgen.project import Project


def as_filter(project: Project, *, diff: bool, whatever: bool, dry_run: bool) -> int:
    """Write one module (or its diff) to standard output; gives the exit code.

    Findings go to standard error: as JSON lines where that is the format asked for, else as text.

    Args:
        whatever: write in spite of findings of level error.
    """
    from .lib.patchgen.findings import has_errors

    code = 0
    for outcome in project.outcomes():
        outcome.note_changes()
        code = max(code, outcome.exit_code)
        for record in outcome.records():
            if console.format == "jsonl":
                print(dumps({"kind": "problem", **record}), file=sys.stderr)
            else:
                console.problem(record)
        if outcome.problems or (has_errors(outcome.findings) and not whatever) or dry_run:
            continue
        sys.stdout.write(outcome.diff if diff else outcome.text)
    return code


def tell(project: Project, counts: Counts) -> None:
    """Say what no record says: that there is nothing to do; and the first error."""
    for each in project.skipped:
        console.detail(f"skipped: {each}")
    if not counts.configs and project.settings is not None:
        console.note(f"no configs below {project.shown(project.settings.search_root)}")
    if counts.errors:
        more = f" (and {len(counts.errors) - 1} more)" if len(counts.errors) > 1 else ""
        console.say(f"{counts.errors[0]}{more}")
        if counts.errors[0].startswith("config-missing:") and project.settings is not None:
            console.hint("ntool patchgen list names all")
