"""convert-fp8: block-scaled FP8 to dense weights or an ONNX package of them, and back.

Reads: a checkpoint. Writes: a folder with shards, index, config and report, or graphs and
package.json; `problem`, `file`, `summary`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import conversion_console
from .. import conversion_options as opt
from ..options import DryRun, Exclude, Force, Include, MaxHeader, Revision


def convert_fp8(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Checkpoint.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to make.", show_default=False),
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="bf16|f16|f32|qdq|fp8", help="What the weights become."),
    ] = "bf16",
    include: Include = None,
    exclude: Exclude = None,
    block: Annotated[
        str | None,
        typer.Option(
            "--block", metavar="R,C", help="fp8: rows and columns of a block; default 128,128."
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar="block|per-tensor",
            help="fp8: what shares a scale; default block.",
        ),
    ] = None,
    lowering: Annotated[
        str | None,
        typer.Option(
            "--lowering",
            metavar="blocked|tiles",
            help="qdq: how blocks become DequantizeLinear; default blocked.",
        ),
    ] = None,
    scale_reading: Annotated[
        str | None,
        typer.Option(
            "--scale-reading",
            metavar="exact|bf16",
            help="qdq: scales widened to float32 (default), or BF16 as they are.",
        ),
    ] = None,
    allow_unscaled: Annotated[
        list[str] | None,
        typer.Option("--allow-unscaled", metavar="GLOB", help="FP8 tensors that need no scale."),
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
    """Convert FP8 weights with their scales to dense ones or to an ONNX package that keeps their
    bytes, or dense weights to FP8.

    The output appears when it is whole. A killed run leaves a hidden folder beside it that --resume
    goes on with; a wrong checkpoint is refused before the first byte, every reason by name.
    """
    from ..lib.conversion import run
    from ..lib.fp8 import conversion

    if merge is not None:
        opt.merge_alone(source, output, part, resume, dry_run, verify)
        conversion_console.merge(merge, force, conversion.KINDS)
        return
    if source is None or output is None:
        raise typer.BadParameter("SOURCE and --output DIR are needed")
    wish = conversion.Wish(
        to=to,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        unscaled=tuple(allow_unscaled or ()),
        block=block,
        scale=scale,
        shard_nbytes=shard_size,
        lowering=lowering,
        reading=scale_reading,
    )

    def prepare() -> tuple[run.Options, conversion_console.Planned]:
        options = run.Options(jobs, run.part_of(part), resume, force)
        return options, lambda checkpoint: conversion.plan(checkpoint, wish, options.statistics)

    conversion_console.convert(
        source,
        output,
        prepare,
        revision=revision,
        max_header=max_header,
        dry_run=dry_run,
        verify=verify,
        patterns={
            "--include": wish.include,
            "--exclude": wish.exclude,
            "--allow-unscaled": wish.unscaled,
        },
        modules=to == "fp8",
    )
