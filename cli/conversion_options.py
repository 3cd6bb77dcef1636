"""Options of the commands that make a checkpoint from a checkpoint."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from .number_types import whole

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def size(text: str | int) -> int:
    """`5GB`, `512MiB` or a plain number, in bytes.

    Raises:
        BadParameter: anything else, or nothing.
    """
    if isinstance(text, int):  # the default, already in bytes
        return text
    match = re.fullmatch(r"([0-9]{1,12})(?:\.([0-9]{1,3}))?\s*([KMGTkmgt]?[iI]?[bB]?)", text)
    unit = match[3].upper() if match else ""
    if match is None or unit not in _UNITS:
        raise typer.BadParameter(f"{text!r} is not a size; 5GB, 512MiB and 1000000 are")
    scaled = int(match[1] + (match[2] or "")) * _UNITS[unit] // 10 ** len(match[2] or "")
    if scaled < 1:
        raise typer.BadParameter(f"{text!r}: less than one byte")
    return scaled


ShardSize = Annotated[
    int,
    typer.Option(
        "--shard-size",
        parser=size,
        metavar="SIZE",
        show_default="5GB",
        help="Largest shard, as 5GB or 512MiB; a larger tensor has its own.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", "-j", parser=whole(1, 256), metavar="N", help="Shards that are made at a time."
    ),
]
Part = Annotated[
    str,
    typer.Option(
        "--part", metavar="I/N", help="Make every N-th shard from the I-th on; --merge finishes."
    ),
]
Merge = Annotated[
    str | None,
    typer.Option(
        "--merge",
        metavar="DIR",
        help="Finish what was made in parts: index, report and name. No SOURCE then.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with what an interrupted run has finished.")
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Read the output again and compare every block with the source."),
]


def merge_alone(
    source: str | None, output: str | None, part: str, resume: bool, dry_run: bool, verify: bool
) -> None:
    """Refuse what `--merge` would ignore: it has no source to plan from or to compare with.

    Raises:
        BadParameter: names what to do instead.
    """
    if source is not None or output is not None:
        raise typer.BadParameter("--merge DIR takes neither SOURCE nor --output")
    if verify:
        raise typer.BadParameter(
            "--merge DIR has nothing to compare with: afterwards, with SOURCE, --resume --verify"
        )
    if resume or dry_run or part != "1/1":
        raise typer.BadParameter("--merge DIR takes --force and no other option of a conversion")
