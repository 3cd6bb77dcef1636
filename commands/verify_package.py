"""Records written: `check` (one a finding and component), `file` (SHA256SUMS, the report),
`summary`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..console import console
from ..options import Device, Force
from ..verify_options import Golden, Memory, Picture, Report, Timeout


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
    golden: Golden = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Load and run nothing (skips run.* and golden.*).")
    ] = False,
    write_manifest: Annotated[
        bool, typer.Option("--write-manifest", help="Write SHA256SUMS if all checks hold.")
    ] = False,
    manifest: Annotated[
        str | None,
        typer.Option("--manifest", metavar="FILE", help="Compare with this list of SHA-256 sums."),
    ] = None,
    report: Report = None,
    picture: Picture = None,
    compact: Annotated[
        str | None,
        typer.Option("--compact", metavar="OUT", help="Write it anew without orphan bytes."),
    ] = None,
    force: Force = False,
    device: Device = "auto",
    timeout: Timeout = None,
    memory: Memory = None,
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
    from ..lib.package.release import Order, Release

    started = time.monotonic()
    with console.stream(main="check", source=package, format="package") as out:
        order = Order(
            only=tuple(check or ()),
            without=tuple(skip or ()),
            run=not no_run,
            standard_only=standard_only,
            against=against,
            golden=tuple(golden or ()),
            manifest=manifest,
            write_manifest=write_manifest,
            report=report,
            pictures=tuple(picture or ()),
            compact=compact,
            force=force,
            device=device,
            timeout=timeout,
            memory=memory,
        )
        release = Release(package, order, console.note)
        for kind, fields in release.records():
            out.write(kind, **fields)
        seconds = round(time.monotonic() - started, 3)
        out.write("summary", **release.tally.summary(), seconds=seconds)
    fault = release.fault()
    if fault is not None:
        console.say(fault)
        console.hint(release.hint())
        raise typer.Exit(1)
