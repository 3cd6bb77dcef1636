"""Option types of the commands of `ntool patchgen`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import console

if TYPE_CHECKING:
    from .lib.patchgen.project import Choices

Configs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG]...", help="Config: dotted name or file. None: all.", show_default=False
    ),
]
Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="Config: dotted name or file.", show_default=False)
]
SetSource = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="source=DIR",
        help="Take the source module from this folder: as --new of contract.",
    ),
]
Variable = Annotated[
    str,
    typer.Option("--config-name", "-c", metavar="NAME", help="Variable that is the PatchConfig."),
]
Static = Annotated[
    bool, typer.Option("--static", help="Read configs as syntax; run nothing of them.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="CODE[:NAME]",
        help="Findings that are no errors here. May be repeated.",
    ),
]
AllowDuplicate = Annotated[
    bool, typer.Option("--allow-duplicate", help="As --allow duplicate-target: the last one wins.")
]
AllowFindings = Annotated[
    bool,
    typer.Option("--allow-findings", help="Write in spite of errors; the exit code stays 1."),
]
Json = Annotated[bool, typer.Option("--json", help="As --format jsonl.")]


def folder(text: str) -> Path:
    """A parser of folders: no text is none, and not the current one."""
    if not text:
        raise typer.BadParameter("'' is no folder")
    return Path(text)


def choices(
    configs: list[str] | None,
    variable: str,
    static: bool,
    set_source: list[str] | None,
    allow: list[str] | None,
    allow_duplicate: bool,
    json: bool,
    output: Path | None = None,
    fingerprint: bool = False,
) -> Choices:
    """The options that the commands share, as the library takes them."""
    from .lib.patchgen.findings import not_allowable
    from .lib.patchgen.project import Choices

    if json:
        console.format = "jsonl"
    allowed = [*(allow or ()), *(("duplicate-target",) if allow_duplicate else ())]
    for word in allowed:
        if (problem := not_allowable(word)) is not None:
            raise typer.BadParameter(problem, param_hint="--allow")
    source = None
    for word in set_source or ():
        key, _, value = word.partition("=")
        if key != "source" or not value:
            raise typer.BadParameter(f"{word!r} is not source=DIR", param_hint="--set")
        source = Path(value)
        if not source.exists():
            raise typer.BadParameter(f"{value!r} is not there", param_hint="--set")
    return Choices(
        configs=tuple(configs or ()),
        variable=variable,
        static=static,
        source=source,
        output=output,
        fingerprint=fingerprint,
        allow=tuple(allowed),
    )
