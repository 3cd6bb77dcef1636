"""Options of verify-package: what to compare with, where to write, what checks may take."""

from __future__ import annotations

from typing import Annotated

import typer

from .conversion_options import size
from .number_types import number

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        parser=number(0.1, 1e7),
        metavar="SECONDS",
        show_default=False,
        help="Longest time of one check. Default: 30 s, and more for large packages.",
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        "--memory",
        parser=size,
        metavar="SIZE",
        show_default=False,
        help="Most memory of the checks. Default: 4GiB and three times the package.",
    ),
]
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
