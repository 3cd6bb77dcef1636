"""Option types that several commands share, and the options that all commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from .console import FORMATS, MORE_FORMATS, console
from .number_types import whole
from .progress import WAYS

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Checkpoint: a file, a folder or demo:shapes.",
        show_default=False,
    ),
]
AnySource = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Checkpoint: a file, a folder, demo:shapes, OWNER/NAME[@REV] on the Hub, an address.",
        show_default=False,
    ),
]
Package = Annotated[str, typer.Argument(metavar="PKG", help="Package folder.", show_default=False)]
Runnable = Annotated[
    str,
    typer.Argument(
        metavar="PKG",
        help="Package folder; or a checkpoint, exported once into the cache (NTOOL_CACHE).",
        show_default=False,
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="PATH", help="Where to write.", show_default=False)
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and plan; write nothing.")]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Only names that match. May be repeated."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Not the names that match. May be repeated."),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:INDEX.")
]
Seed = Annotated[
    int,
    typer.Option("--seed", parser=whole(0, 2**64 - 1), metavar="N", help="Seed of the noise."),
]
MaxHeader = Annotated[
    int,
    typer.Option(
        "--max-header",
        parser=whole(2, 2**63 - 1),
        metavar="BYTES",
        help="Largest header to read.",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="REV", help="Branch, tag or commit on the Hub; as SOURCE@REV."
    ),
]


def _format(known: tuple[str, ...]) -> Any:
    """The --format option of a command that knows these formats."""

    def check(value: str | None) -> str | None:
        if value is None or value in known:
            return value
        users = [name for name, more in MORE_FORMATS.items() if value in more]
        alone = f", only of {' and '.join(users)}" if users else ""
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}{alone}")

    return Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(known),
            callback=check,
            help="Form of the records. Default: table on a terminal, else jsonl.",
        ),
    ]


def _progress(value: str) -> str:
    if value not in WAYS:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(WAYS)}")
    return value


COMMON: dict[str, tuple[Any, Any]] = {
    "format": (_format(FORMATS), None),
    "progress": (
        Annotated[
            str,
            typer.Option(
                "--progress",
                metavar="|".join(WAYS),
                callback=_progress,
                help="Progress on stderr.",
            ),
        ],
        "auto",
    ),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="No notes on stderr.")], False),
    "verbose": (
        Annotated[bool, typer.Option("--verbose", "-v", help="Details and tracebacks on stderr.")],
        False,
    ),
}


def with_common(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the common options in its signature; they set `console`, not arguments."""
    signature = inspect.signature(function, eval_str=True)
    own_format = (_format((*FORMATS, *MORE_FORMATS.get(name, ()))), None)
    added = [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=a)
        for k, (a, d) in {**COMMON, "format": own_format}.items()
    ]

    @wraps(function)
    def command(**arguments: Any) -> Any:
        console.command = name
        for key in COMMON:
            setattr(console, key, arguments.pop(key))
        return function(**arguments)

    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    command.__signature__ = signature.replace(parameters=own + added)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in own + added}
    return command
