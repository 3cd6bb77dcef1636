"""Records written: `check` (one a finding and component), `file` (SHA256SUMS, the report),
`summary`."""

from __future__ import annotations

import os
import time
from pathlib import Path
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
    from ..lib.errors import SourceNotFound, UsageProblem
    from ..lib.package import sums, verify
    from ..lib.package.checks.subject import Options, Subject
    from ..lib.package.golden_file import open_goldens
    from ..lib.package.limits import limits_for
    from ..lib.package.report import open_report
    from ..lib.package.sandbox import Sandbox

    tally = verify.Tally()
    rows = []
    started = time.monotonic()
    with console.stream(main="check", source=package, format="package") as out:
        if write_manifest and manifest:
            raise UsageProblem("--write-manifest with --manifest", expected="one of them")
        if force and compact is None:
            raise UsageProblem("--force", expected="--compact OUT with it")
        if compact == "":
            raise UsageProblem("--compact", found="nothing", expected="a folder name")
        left_out = [*(skip or ()), *(["data.orphans"] if compact else [])]  # what it is to remove
        ids = verify.select(check or (), left_out, run=not no_run)
        named = {i for i in ids if i in (check or ())}
        if "weights.values" in named and against is None:
            raise UsageProblem("--check weights.values", expected="--against SOURCE with it")
        if "golden.values" in named and not golden:
            raise UsageProblem("--check golden.values", expected="--golden FILE with it")
        if golden and "golden.values" not in ids:
            raise UsageProblem(
                "--golden", found="a selection without golden.values", expected="it too"
            )
        if write_manifest:
            named.discard("data.hash")  # there is no list before it is written
        standard_only |= "graph.standard" in named
        options = Options(standard_only, against, manifest, write_manifest)
        subject = Subject(package, options)
        if any(i.startswith(verify.RUNNING) for i in ids):
            from ..lib.runtime.session import resolve_device

            options.device = resolve_device(device, console.note)
        if manifest and not os.path.exists(manifest):
            raise SourceNotFound(f"--manifest {manifest}: no such file")
        options.goldens = open_goldens(golden or (), [p.name for p in subject.parts])
        limits = limits_for(package, len(subject.parts), timeout, memory)
        with Sandbox(subject, limits) as sandbox:
            if sandbox.how == "none":
                console.note("checks run without limits: not possible on this system")
            sandbox.open_source()
            read = [*(g.path for g in options.goldens), *(p for p in (against, manifest) if p)]
            paged = open_report(report, package, picture or (), read)
            for check_id, finding in verify.verify(subject, ids, named, sandbox.run):
                tally.add(check_id, finding)
                rows.append(verify.record(check_id, finding))
                if finding.warning:
                    console.note(f"warning: {check_id}: {finding.message}")
                out.write("check", **rows[-1])
            if paged is not None:
                sandbox.read_dtypes()
        if write_manifest and tally.ok:
            count = sums.write(subject.root)
            out.write("file", path=sums.NAME, role="manifest", entries=count)
        if paged is not None:
            words = {"against": [against or ""], "only": check, "without": skip, "golden": golden}
            asked = {k: ", ".join(v or ()) for k, v in words.items()}
            asked["device"] = options.device[0]
            out.write("file", **paged.write(subject, rows, tally.summary(), asked))
        if compact and tally.ok:
            from ..lib.package import compact as anew

            before, after = anew.write(subject, Path(compact), force=force)
            out.write("file", **anew.record(before, after, compact))
        out.write("summary", **tally.summary(), seconds=round(time.monotonic() - started, 3))
    fault = tally.fault()
    if fault is not None:
        kept = f"; {sums.NAME} not written" if write_manifest else ""
        kept += f"; {compact} not written" if compact else ""
        console.say(f"{fault[0]}{kept}; {fault[1][:1000]}")
        raise typer.Exit(1)
