"""convert-experts: mixture-of-experts banks in another layout, by moving bytes.

Reads: a checkpoint. Writes: a folder with shards, index, config and report; `problem`, `file`,
`summary`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import conversion_options as opt
from ..console import console
from ..options import DryRun, Force, MaxHeader, Revision


def convert_experts(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Checkpoint.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to make.", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="split|fused|fused-transposed|stacked",
            help="Layout of the experts.",
            show_default=False,
        ),
    ] = None,
    gate_up_order: Annotated[
        str | None,
        typer.Option(
            "--gate-up-order",
            metavar="concatenated|interleaved",
            help="Order of gate and up in the fused tensors of SOURCE. Default: as names tell.",
        ),
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(
            "--names",
            metavar="gate-up-down|w1-w3-w2",
            help="split: names of the matrices; default gate-up-down.",
        ),
    ] = None,
    shard_size: opt.ShardSize = 5_000_000_000,
    jobs: opt.Jobs = 1,
    part: opt.Part = "1/1",
    merge: opt.Merge = None,
    resume: opt.Resume = False,
    dry_run: DryRun = False,
    verify: opt.Verify = False,
    force: Force = False,
    revision: Revision = None,
    max_header: MaxHeader = 100_000_000,
) -> None:
    """Store the experts of a checkpoint in another layout; every byte is kept, none is computed.

    The layout of SOURCE is found from its headers. What cannot be converted without loss or guess
    is refused, every reason by name, before the first byte; the output appears when it is whole.
    """
    from pathlib import Path

    from ..lib.checkpoint.source import open_checkpoint
    from ..lib.checkpoint.tensor import first_of
    from ..lib.conversion import command, run
    from ..lib.experts import convert

    if merge is not None:
        opt.merge_alone(source, output, part, resume, dry_run, verify)
        with console.stream(main="file", source=merge) as stream:
            files, summary = command.merged(Path(merge), force, convert.KINDS)
            stream.write_all("file", files)
            stream.write("summary", **summary)
        return
    if source is None or output is None or to is None:
        raise typer.BadParameter("SOURCE, --output DIR and --to LAYOUT are needed")
    if names is not None and to != "split":
        raise typer.BadParameter("--names is for --to split")
    wish = convert.Wish(to, gate_up_order, names or "gate-up-down", shard_size)
    wish.check()
    options = run.Options(jobs, run.part_of(part), resume, force)
    with console.stream(main="file", source=source, hold=True) as stream:
        checkpoint = open_checkpoint(source, revision=revision, max_header=max_header)
        stream.begin(format=checkpoint.format, revision=checkpoint.revision)
        try:
            plan = convert.plan(checkpoint, wish)
        except convert.Refused as e:
            stream.write_all("problem", (p.record() for p in e.problems))
            raise
        stream.write_all("problem", (p.record() for p in checkpoint.problems))
        warning = first_of(checkpoint.problems, "warning", source)
        if warning is not None:
            console.note(f"warning: {warning}")
        with console.bar(plan.nbytes, "converting", unit="B") as bar:
            options.progress = bar.update
            outcome = command.carry_out(plan, Path(output), options, dry_run=dry_run, verify=verify)
        stream.write_all("file", outcome.files)
        stream.write_all("problem", (p.record() for p in outcome.problems))
        stream.write("summary", **outcome.summary)
    if outcome.problems:
        first = outcome.problems[0]
        console.say(f"{output}: {first.file}: {first.name}: {first.message}")
        raise typer.Exit(1)
