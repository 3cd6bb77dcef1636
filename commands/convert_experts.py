"""convert-experts: mixture-of-experts banks in another layout, by moving bytes.

Reads: a checkpoint. Writes: a folder with shards, index, config and report; `problem`, `file`,
`summary`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import conversion_console
from .. import conversion_options as opt
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
    from ..lib.conversion import run
    from ..lib.experts import convert

    if merge is not None:
        opt.merge_alone(source, output, part, resume, dry_run, verify)
        conversion_console.merge(merge, force, convert.KINDS)
        return
    if source is None or output is None or to is None:
        raise typer.BadParameter("SOURCE, --output DIR and --to LAYOUT are needed")
    if names is not None and to != "split":
        raise typer.BadParameter("--names is for --to split")
    wish = convert.Wish(to, gate_up_order, names or "gate-up-down", shard_size)

    def prepare() -> tuple[run.Options, conversion_console.Planned]:
        wish.check()
        options = run.Options(jobs, run.part_of(part), resume, force)
        return options, lambda checkpoint: (convert.plan(checkpoint, wish), checkpoint.problems)

    conversion_console.convert(
        source,
        output,
        prepare,
        revision=revision,
        max_header=max_header,
        dry_run=dry_run,
        verify=verify,
    )
