"""Options of verify-package that say what to compare with and where to write what was found."""

from __future__ import annotations

from typing import Annotated

import typer

Golden = Annotated[
    list[str] | None,
    typer.Option(
        "--golden",
        metavar="[COMPONENT=]FILE",
        help="Compare outputs with a file: arrays by names of ports, a prefix file, or a PNG with "
        "its recipe. May be repeated.",
    ),
]
Report = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Write what was found as one HTML page."),
]
Picture = Annotated[
    list[str] | None,
    typer.Option("--picture", metavar="FILE", help="Show it on the page. May be repeated."),
]
