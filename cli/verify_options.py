"""Options of verify-package that limit what its checks may take."""

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
