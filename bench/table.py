"""Lines of the tables, the rows that make them, and what all rows share: data and packages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .measure import NAMES, NTOOL, PYTHON, ROOT, Cost, note, output_of

TOLERANCE = 1.2
"""So many times a budget is still `over`; more is `missed`."""


def at_most(measured: float, limit: float) -> float:
    """How much of a budget is used: 1 is just within it."""
    return measured / limit


def at_least(measured: float, promised: float) -> float:
    """The same where more is better."""
    return promised / measured


def held(*conditions: bool) -> float:
    """The same of what holds or does not."""
    return 0.0 if all(conditions) else float("inf")


@dataclass(frozen=True)
class Line:
    """One line: what was measured, beside what, how they compare, and what was promised.

    Attributes:
        excess: measured over promised, the worst of all that the budget names; None where nothing
            is promised.
        part: which line of its row it is, if there are several.
        state: `skipped` or `failed` for a row that has no numbers; its reason is `measured`.
    """

    measured: str
    reference: str = ""
    ratio: str = ""
    budget: str = ""
    excess: float | None = None
    part: str = ""
    state: str = ""

    @property
    def verdict(self) -> str:
        """`ok`, `over` (by at most 20 %), `missed`, `-` where nothing is promised, or the state."""
        if self.state or self.excess is None:
            return self.state or "-"
        return "ok" if self.excess <= 1 else "over" if self.excess <= TOLERANCE else "missed"


COLUMNS = ("row", "measured", "reference", "ratio", "budget", "of budget", "verdict")


def cells(row: str, line: Line) -> tuple[str, ...]:
    """What stands in the columns. The first one is the row's name, and the part behind a comma."""
    name = f"{row}, {line.part}" if line.part else row
    used = "" if line.excess is None else f"{line.excess:.0%}"
    return name, line.measured, line.reference, line.ratio, line.budget, used, line.verdict


@dataclass(frozen=True)
class Row:
    """A named measurement; it may have several lines.

    Attributes:
        table: heading of the table that they are shown in on a page.
        peer: environment of `bench.peers.ENVIRONMENTS` that it needs.
        most: a heavy row is measured at most so many times.
    """

    name: str
    what: str
    lines: Callable[[Bench], Iterable[Line]]
    table: str = "Costs"
    peer: str = ""
    most: int | None = None


class Bench:
    """One run of the benchmarks: how often each thing is measured, and the data made so far.

    Attributes:
        runs: how often the row at hand is measured.
        peer: the Python of its peer environment, if it names one.
        folder: data that rows share.
        scratch: what a row makes for itself; empty when the next one begins.
    """

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.peer = ""
        self._temporary = tempfile.TemporaryDirectory(prefix="ntool-bench-")
        self.folder = Path(self._temporary.name)
        self.scratch = self.folder / "scratch"
        self._made: set[Path] = set()
        NAMES[str(self.folder)] = "DATA"
        self.clear()
        # as an installer leaves it, and as the packages beside it are: where the environment says
        # that no bytecode is written, every run would compile every module that it loads
        sources = [str(ROOT / part) for part in ("cli", "commands", "lib")]
        output_of([PYTHON, "-m", "compileall", "-q", *sources])

    def clear(self) -> None:
        """Empty the scratch folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    def close(self) -> None:
        """Remove the data."""
        self._temporary.cleanup()

    def _once(self, folder: Path, command: list[str]) -> Path:
        """Run a command that makes a folder, unless it was run; note it for this row as well."""
        note(command)
        if folder not in self._made:
            output_of(command, cwd=ROOT)
            self._made.add(folder)
        return folder

    def drop(self, folder: Path) -> None:
        """Remove a large checkpoint or package that no other row uses."""
        shutil.rmtree(folder)
        self._made.remove(folder)

    def checkpoint(self, kind: str) -> Path:
        """A checkpoint of `bench.checkpoints.KINDS`, made when first asked for."""
        folder = self.folder / kind
        return self._once(folder, [PYTHON, "-m", "bench.checkpoints", kind, str(folder)])

    def package(self, source: str) -> Path:
        """The package of a checkpoint of ours, or of `demo:NAME`."""
        folder = self.folder / f"{source.replace(':', '-')}.pkg"
        given = source if ":" in source else str(self.checkpoint(source))
        return self._once(folder, [*NTOOL, "export-component", given, "-o", str(folder)])


def spent(cost: Cost, what: str = "") -> str:
    """`0.65 s, 111 MB` and what it was."""
    digits = 3 if cost.cpu < 0.1 else 2
    text = f"{cost.cpu:.{digits}f} s, {cost.megabytes:.0f} MB"
    return f"{text} ({what})" if what else text


def elapsed(cost: Cost, what: str = "") -> str:
    """The same with the seconds from start to end before it."""
    return f"{cost.wall:.2f} s from start to end, {spent(cost, what)}"


def aligned(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lines of text with aligned columns, the header first."""
    table = [COLUMNS, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
