"""What both converting commands say and do around a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .console import console

if TYPE_CHECKING:
    from .lib.checkpoint.tensor import Checkpoint, Problem
    from .lib.conversion.plan import Plan
    from .lib.conversion.run import Options

Planned = Callable[["Checkpoint"], "tuple[Plan, list[Problem]]"]
"""A checkpoint -> what will be written, and everything odd about it."""
Prepared = Callable[[], "tuple[Options, Planned]"]
"""Judges the command's options; called when a reader of records can be told what is wrong."""


def convert(
    source: str,
    output: str,
    prepare: Prepared,
    *,
    revision: str | None,
    max_header: int,
    dry_run: bool,
    verify: bool,
    patterns: Mapping[str, Iterable[str]] | None = None,
    modules: bool = False,
) -> None:
    """Open a checkpoint, plan, carry the plan out, and tell of it: `problem`, `file`, `summary`.

    Args:
        patterns: of names of tensors, by option; a note says which match nothing.
        modules: they may also be of names without their last part.
    Raises:
        Exit: 1, verifying found a difference.
        and what opening, planning and writing raise; findings of a refusal are told before.
    """
    from .lib import progress
    from .lib.checkpoint.output_file import refuse_piped
    from .lib.checkpoint.source import open_checkpoint
    from .lib.checkpoint.tensor import first_of
    from .lib.conversion import command
    from .lib.suggestions import unmatched

    with console.stream(main="file", source=source, hold=True) as stream:
        options, plan = prepare()
        refuse_piped(output)
        checkpoint = open_checkpoint(source, revision=revision, max_header=max_header)
        stream.begin(format=checkpoint.format, revision=checkpoint.revision)
        tensors = checkpoint.tensors.keys()
        within = {name.rpartition(".")[0] for name in tensors} if modules else set()
        for note in unmatched(patterns or {}, lambda: tensors | within):
            console.note(note)
        try:
            with progress.step(None, "planning", ""):
                planned, problems = plan(checkpoint)
        except Exception as e:
            found = getattr(e, "problems", ())
            stream.write_all("problem", (p.record() for p in found))
            raise
        stream.write_all("problem", (p.record() for p in problems))
        warning = first_of(problems, "warning", source)
        if warning is not None:
            console.note(f"warning: {warning}")
        outcome = command.carry_out(planned, Path(output), options, dry_run=dry_run, verify=verify)
        stream.write_all("file", outcome.files)
        stream.write_all("problem", (p.record() for p in outcome.problems))
        stream.write("summary", **outcome.summary)
    if outcome.problems:
        console.say(first_of(outcome.problems, "error", output) or "")
        raise typer.Exit(1)


def merge(folder: str, force: bool, kinds: tuple[str, ...]) -> None:
    """Finish what was made in parts, and tell of it: `file`, `summary`.

    Args:
        kinds: of conversions that the command makes.
    Raises:
        as `lib.conversion.run.merge`.
    """
    from .lib.conversion import command

    with console.stream(main="file", source=folder) as stream:
        files, summary = command.merged(Path(folder), force, kinds)
        stream.write_all("file", files)
        stream.write("summary", **summary)
