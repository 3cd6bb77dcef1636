"""Lines of the table, the rows that make them, and what all rows share: data and packages."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

from .measure import NTOOL, PYTHON, ROOT, Cost, output_of


@dataclass(frozen=True)
class Line:
    """One line: what was measured, beside what, how they compare, and what was promised.

    Attributes:
        verdict: `ok`, `over`, `-` where nothing was promised, `skipped` or `failed`.
    """

    row: str
    measured: str
    reference: str = ""
    ratio: str = ""
    budget: str = ""
    verdict: str = "-"


COLUMNS = tuple(f.name for f in fields(Line))


@dataclass(frozen=True)
class Row:
    """A named measurement; it may have several lines.

    Attributes:
        table: heading of the table that they are shown in on a page.
    """

    name: str
    what: str
    lines: Callable[[Bench], Iterable[Line]]
    table: str = "Costs"


class Bench:
    """One run of the benchmarks: how often each thing is measured, and the data made so far."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self._temporary = tempfile.TemporaryDirectory(prefix="ntool-bench-")
        self.folder = Path(self._temporary.name)
        # as an installer leaves it, and as the packages beside it are: where the environment says
        # that no bytecode is written, every run would compile every module that it loads
        sources = [str(ROOT / part) for part in ("cli", "commands", "lib")]
        output_of([PYTHON, "-m", "compileall", "-q", *sources])

    def close(self) -> None:
        """Remove the data."""
        self._temporary.cleanup()

    @cache  # noqa: B019 (one Bench a process)
    def checkpoint(self, kind: str) -> Path:
        """A checkpoint of `bench.checkpoints.KINDS`, made when first asked for."""
        folder = self.folder / kind
        output_of([PYTHON, "-m", "bench.checkpoints", kind, str(folder)], cwd=ROOT)
        return folder

    @cache  # noqa: B019
    def package(self, source: str) -> Path:
        """The package of a checkpoint of ours, or of `demo:NAME`."""
        folder = self.folder / f"{source.replace(':', '-')}.pkg"
        given = source if ":" in source else str(self.checkpoint(source))
        output_of([*NTOOL, "export-component", given, "-o", str(folder)], cwd=self.folder)
        return folder


def spent(cost: Cost, what: str = "") -> str:
    """`0.65 s, 111 MB` and what it was."""
    digits = 3 if cost.cpu < 0.1 else 2
    text = f"{cost.cpu:.{digits}f} s, {cost.megabytes:.0f} MB"
    return f"{text} ({what})" if what else text


def verdict(*held: bool) -> str:
    """`ok` if everything holds, else `over`."""
    return "ok" if all(held) else "over"


def aligned(lines: Iterable[Line]) -> Iterator[str]:
    """Lines of text with aligned columns, the header first."""
    rows = [COLUMNS, *map(astuple, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


def markdown(lines: Iterable[Line]) -> Iterator[str]:
    """The same as a Markdown table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * len(COLUMNS)}"
    for line in lines:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in astuple(line))} |"
