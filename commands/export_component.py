"""Records written: `file` (one each), `problem`, `summary` (nodes, initializers, bytes, peak_rss,
seconds)."""

from __future__ import annotations

import time
from pathlib import Path

from ..console import console
from ..export_options import (
    Components,
    Data,
    Dequantize,
    Dtype,
    ExternalData,
    ForceF16,
    MaxShardSize,
    Provider,
    ScaleReading,
    SetDtype,
    ShardSize,
    TextOnly,
    parse_size,
)
from ..options import DryRun, Force, Output, Revision, Source


def export_component(
    source: Source,
    components: Components = None,
    output: Output = "",
    dtype: Dtype = "auto",
    set_: SetDtype = None,
    ep: Provider = "default",
    force_f16: ForceF16 = False,
    data: Data = "auto",
    external_data: ExternalData = "safetensors",
    shard_size: ShardSize = None,
    max_shard_size: MaxShardSize = None,
    text_only: TextOnly = False,
    dequantize: Dequantize = False,
    scale_reading: ScaleReading = "exact",
    revision: Revision = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Export a checkpoint's components to ONNX graphs in a package folder, without PyTorch."""
    from ..lib.checkpoint.output_file import refuse_piped
    from ..lib.checkpoint.source import open_checkpoint
    from ..lib.checkpoint.tensor import first_of
    from ..lib.errors import UsageProblem
    from ..lib.package import export, layout

    started = time.monotonic()
    with console.stream(main="file", source=source, format="package") as out:
        if not output and not dry_run and data != layout.INPLACE:
            raise UsageProblem("no output folder", expected="-o PKG")
        refuse_piped(output)
        target = Path(output) if output else None
        if external_data != "safetensors":
            raise UsageProblem("--external-data", found=external_data, expected="safetensors")
        limit = parse_size(shard_size, max_shard_size)
        checkpoint = open_checkpoint(source, revision=revision)
        plan = export.plan(
            checkpoint,
            components or (),
            dtype=dtype,
            dtypes=export.parse_dtypes(set_ or ()),
            provider=ep,
            force_f16=force_f16,
            limit=limit,
            dry_run=dry_run,
            text_only=text_only,
            dequantize=dequantize,
            reading=scale_reading,
            data=data,
            out=target,
        )
        for problem in checkpoint.problems:
            out.write("problem", **problem.record())
        for note in plan.notes:
            console.note(note)
        if not dry_run:
            odd = export.write(plan, target, force=force)
            out.write_all("problem", (p.record() for p in odd))
            warning = first_of(odd, "warning", source)
            if warning is not None:
                console.note(f"warning: {warning}")
        for file in plan.data_files():
            out.write("file", **file)
        out.write(
            "summary",
            **export.summary(plan, written=not dry_run),
            peak_rss=peak_rss(),
            seconds=round(time.monotonic() - started, 3),
        )
    if not dry_run:
        weights = f"{plan.nbytes:,} bytes of weights"
        if plan.nbytes_linked:
            weights += f", {plan.nbytes_linked:,} more linked"
        count = len(plan.components)
        parts = "1 component" if count == 1 else f"{count} components"
        console.note(f"wrote {output or source}: {parts}, {weights}")


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
