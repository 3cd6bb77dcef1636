"""Records written: `check` (one a finding and component), `file` (SHA256SUMS), `summary`."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from ..console import console
from ..options import Device


def _print_schema(value: bool) -> None:
    if value:
        from ..lib.package.schema import text

        print(text(), end="")
        raise typer.Exit


def verify_package(
    package: Annotated[
        str,
        typer.Argument(
            metavar="PKG",
            help="Package folder; or a folder of graphs, or one .onnx.",
            show_default=False,
        ),
    ],
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="ID", help="Only these checks; globs. May be repeated."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="ID", help="Not these checks; globs. May be repeated."),
    ] = None,
    standard_only: Annotated[
        bool, typer.Option("--standard-only", help="Refuse operators of custom domains.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="SOURCE", help="Compare every weight with this checkpoint."
        ),
    ] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Load and run nothing (skips run.*).")
    ] = False,
    write_manifest: Annotated[
        bool, typer.Option("--write-manifest", help="Write SHA256SUMS if all checks hold.")
    ] = False,
    manifest: Annotated[
        str | None,
        typer.Option("--manifest", metavar="FILE", help="Compare with this list of SHA-256 sums."),
    ] = None,
    device: Device = "auto",
    print_schema: Annotated[
        bool,
        typer.Option(
            "--print-schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the schema of package.json.",
        ),
    ] = False,
) -> None:
    """Check a package: files, graphs, weights, flow, and whether it runs here."""
    from ..lib.errors import SourceNotFound, UsageProblem
    from ..lib.package import sums, verify
    from ..lib.package.checks.subject import Options, Subject
    from ..lib.package.checks.weights import open_source

    tally = verify.Tally()
    started = time.monotonic()
    with console.stream(main="check", source=package, format="package") as out:
        if write_manifest and manifest:
            raise UsageProblem("--write-manifest with --manifest", expected="one of them")
        ids = verify.select(check or (), skip or (), run=not no_run)
        named = {i for i in ids if i in (check or ())}
        if "weights.values" in named and against is None:
            raise UsageProblem("--check weights.values", expected="--against SOURCE with it")
        if write_manifest:
            named.discard("data.hash")  # there is no list before it is written
        standard_only |= "graph.standard" in named
        options = Options(standard_only, against, manifest, write_manifest)
        subject = Subject(package, options)
        if any(i.startswith("run.") for i in ids):
            from ..lib.runtime.session import resolve_device

            options.device = resolve_device(device, console.note)
        if manifest and not os.path.exists(manifest):
            raise SourceNotFound(f"--manifest {manifest}: no such file")
        open_source(subject)
        for check_id, finding in verify.verify(subject, ids, named):
            tally.add(check_id, finding)
            if finding.warning:
                console.note(f"warning: {check_id}: {finding.message}")
            out.write("check", **verify.record(check_id, finding))
        if write_manifest and tally.ok:
            count = sums.write(subject.root)
            out.write("file", path=sums.NAME, role="manifest", entries=count)
        out.write("summary", **tally.summary(), seconds=round(time.monotonic() - started, 3))
    fault = tally.fault()
    if fault is not None:
        kept = f"; {sums.NAME} not written" if write_manifest else ""
        console.say(f"{fault[0]}{kept}; {fault[1][:1000]}")
        raise typer.Exit(1)
