"""census: tensors counted, grouped, compared and judged.

Reads: a checkpoint's headers and FP8 scales, or `inspect-headers` streams on standard input.
Writes: `group`, `problem`, `file` (for --plot and --repair-index), `summary`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..console import console
from ..options import AnySource, Force, MaxHeader, Revision


def census(
    source: AnySource,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="KEY",
            help="family, component, dtype, layer, prefix[:DEPTH], file, shape, role. Repeatable.",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            metavar="FILE",
            help="JSON list of {name, pattern}: groups by regular expression, first wins.",
        ),
    ] = None,
    as_dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--as-dtype", metavar="DT", help="Estimate the bytes as this dtype. Repeatable."
        ),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="FILE",
            help="Saved summary, or some of its fields: exit 1 if it differs.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="SOURCE",
            help="Compare with another checkpoint: exit 1 if it differs.",
        ),
    ] = None,
    allow_missing: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-missing", metavar="GLOB", help="Tensors that may be absent. Repeatable."
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="PNG", help="Draw the bytes of the first grouping."),
    ] = None,
    repair_index: Annotated[
        str | None,
        typer.Option(
            "--repair-index",
            metavar="FILE",
            help="Write an index of all tensors that the files hold, orphans included.",
        ),
    ] = None,
    force: Force = False,
    max_header: MaxHeader = 100_000_000,
    revision: Revision = None,
) -> None:
    """Count the tensors of a checkpoint by group and dtype, and say what is wrong with it.

    SOURCE is a checkpoint, or - for the output of inspect-headers; several streams are summed.
    Missing, doubled or differing tensors give exit code 1, malformed files 3.
    """
    from ..lib import census as counting
    from ..lib import comparison, inspection, judgement
    from ..lib.census_files import NewFiles
    from ..lib.checkpoint.source import local_wins
    from ..lib.checkpoint.strict_json import no_collector
    from ..lib.checkpoint.tensor import exit_code, first_of
    from ..lib.errors import without_secrets

    inputs = (against, expect, groups)
    if (source, *inputs).count("-") > 1:
        raise typer.BadParameter(
            "only one of SOURCE, --against, --expect and --groups can be standard input"
        )
    new_files = NewFiles(source, plot, repair_index, force, revision, inputs)
    with no_collector(), console.stream(main="group", source=source, hold=source != "-") as stream:
        for note in filter(None, map(local_wins, filter(None, (source, against)))):
            console.note(note)
        expected = comparison.read_expected(expect) if expect is not None else None
        other = inspection.read(against, max_header) if against is not None else None
        counted = inspection.read(source, max_header, revision)
        if source != "-":
            stream.begin(revision=counted.revision)
        new_files.check(counted, other)
        facts = judgement.judge(counted)
        rows = [
            counting.groups(counted.tensors, label, key)
            for label, key in judgement.keys(counted, facts["family"], by, groups)
        ]
        summary = counting.summary(counted, counting.totals(rows[0]), facts, as_dtype or ())
        comparison.allow_missing(counted, allow_missing or ())
        for of_key in rows:
            stream.write_all("group", of_key)
        if other is not None and against is not None:
            counted.problems += [p for p in other.problems if p.malformed]
            name = without_secrets(against)
            counted.problems += comparison.differences(counted.tensors, other.tensors, name)
        if expected is not None:
            counted.problems += comparison.unexpected(summary, expected)
        stream.write_all("problem", (p.record() for p in counted.problems))
        for record in new_files.write(rows[0], max_header, counted.absent):
            stream.write("file", **record)
        stream.write("summary", **summary)
        problems = counted.problems
        del counted, other  # or the collector walks all of it in vain as soon as it is back
    warning = first_of(problems, "warning", source)
    if warning is not None:
        console.note(f"warning: {warning}")
    error = first_of(problems, "error", source)
    if error is not None:
        console.say(error)
        raise typer.Exit(exit_code(problems))
