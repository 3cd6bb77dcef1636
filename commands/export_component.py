"""Records written: `file` (one each), `problem`, `summary` (nodes, initializers, bytes, peak_rss,
seconds)."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from ..console import console
from ..options import DryRun, Force, Output, Revision, Source


def export_component(
    source: Source,
    components: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMPONENT]...", help="Which components. Default: all.", show_default=False
        ),
    ] = None,
    output: Output = "",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE", help="auto, f32, f16 or bf16.")
    ] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="COMPONENT=DTYPE", help="Another dtype for one component. Repeatable."
        ),
    ] = None,
    ep: Annotated[
        str,
        typer.Option(
            "--ep", metavar="PROVIDER", help="Meant for: default, cpu, cuda or onnx-standard."
        ),
    ] = "default",
    force_f16: Annotated[
        bool,
        typer.Option("--force-f16", help="Allow f16 for generation, which ends as NaN. To try."),
    ] = False,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="HOW", help="How weights get into the package: auto or copy."
        ),
    ] = "auto",
    shard_size: Annotated[
        str | None,
        typer.Option(
            "--shard-size",
            "--max-shard-size",
            metavar="SIZE",
            help="Largest data file, for example 5GB. Default: by family.",
        ),
    ] = None,
    external_data: Annotated[
        str,
        typer.Option(
            "--external-data", metavar="FORMAT", help="Of the data files: there is safetensors."
        ),
    ] = "safetensors",
    text_only: Annotated[
        bool,
        typer.Option("--text-only", help="Of a model of text and pictures the text model alone."),
    ] = False,
    dequantize: Annotated[
        bool, typer.Option("--dequantize", help="FP8 weights as dense ones, codes times scales.")
    ] = False,
    scale_reading: Annotated[
        str,
        typer.Option(
            "--scale-reading", metavar="HOW", help="Scales of FP8 weights that stay: exact or bf16."
        ),
    ] = "exact",
    revision: Revision = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Export a checkpoint's components to ONNX graphs in a package folder, without PyTorch."""
    from ..lib.checkpoint.source import open_checkpoint
    from ..lib.errors import Unsupported, UsageProblem
    from ..lib.package import export

    if not output and not dry_run:
        raise UsageProblem("no output folder", expected="-o PKG")
    if data not in ("auto", "copy"):
        raise Unsupported(f"--data {data}", expected="auto or copy")
    if external_data != "safetensors":
        raise UsageProblem("--external-data", found=external_data, expected="safetensors")
    limit = None if shard_size is None else parse_size(shard_size)
    started = time.monotonic()
    with console.stream(main="file", source=source, format="package") as out:
        checkpoint = open_checkpoint(source, revision=revision, local=True)
        plan = export.plan(
            checkpoint,
            components or (),
            dtype=dtype,
            dtypes=export.parse_dtypes(set_ or ()),
            provider=ep,
            force_f16=force_f16,
            shard_nbytes=limit,
            dry_run=dry_run,
            text_only=text_only,
            dequantize=dequantize,
            reading=scale_reading,
        )
        for problem in checkpoint.problems:
            out.write("problem", **problem.record())
        for note in plan.notes:
            console.note(note)
        if not dry_run:
            with console.bar(plan.nbytes, "export", "B") as bar:
                export.write(plan, Path(output), force=force, progress=bar.update)
        for component in plan.components:
            for file in component.files:
                out.write(
                    "file", path=f"{component.name}/{file.name}", nbytes=file.nbytes, role="data"
                )
        out.write(
            "summary",
            **export.summary(plan, written=not dry_run),
            peak_rss=peak_rss(),
            seconds=round(time.monotonic() - started, 3),
        )
    if not dry_run:
        console.note(
            f"wrote {output}: {len(plan.components)} components, {plan.nbytes:,} bytes of weights"
        )


def parse_size(text: str) -> int:
    """Bytes from `5GB`, `200MB`, `1GiB` or a plain number."""
    from ..lib.errors import UsageProblem

    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    match = re.fullmatch(r"([0-9]{1,12})\s*([KMG]i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise UsageProblem("--shard-size", found=text, expected="for example 5GB")
    return int(match[1]) * units[(match[2] or "").upper()]


def peak_rss() -> int:
    """Largest resident size of this program so far, bytes; 0 where the system does not tell."""
    try:  # this one starts anew with a program; getrusage keeps that of the program before it
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(s.split()[1]) * 1024 for s in status if s.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
