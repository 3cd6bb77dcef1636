"""What ntool costs before it does anything."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .measure import NTOOL, PYTHON, in_turn, run
from .table import Bench, Line, Row, at_most, spent

LIMIT = 0.080
"""CPU seconds over bare Python."""


def start(arguments: list[str], bench: Bench) -> Iterator[Line]:
    """A command that only starts, beside an interpreter that only starts."""
    ours, bare = in_turn(
        bench.runs,
        partial(run, [*NTOOL, *arguments], cwd=bench.folder),
        partial(run, [PYTHON, "-c", "pass"], cwd=bench.folder),
    )
    over = ours.cpu - bare.cpu
    yield Line(
        spent(ours, f"ntool {' '.join(arguments)}"),
        spent(bare, "python -c pass"),
        f"+{over * 1000:.0f} ms",
        f"<= +{LIMIT * 1000:.0f} ms",
        at_most(over, LIMIT),
    )


COMMANDS = {
    "start-help": ["--help"],
    "start-version": ["--version"],
    "start-completion": ["completion", "bash"],
}
ROWS = tuple(
    Row(name, f"start-up: ntool {' '.join(arguments)}", partial(start, arguments))
    for name, arguments in COMMANDS.items()
)
