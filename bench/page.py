"""The page of numbers: what it says, reading it again, and refreshing some of its rows.

A page is written by rows. Those that were not measured this time stay as they are, with the
machine and the versions that they were measured with.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

from .budgets import BUDGETS, Budget
from .table import COLUMNS

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
"""What `--write` replaces lies between these lines; the words around them are kept."""
PACKAGES = (
    "ntool", "onnxruntime-gpu", "onnxruntime", "onnx", "numpy", "safetensors", "gguf", "typer",
    "huggingface_hub",
)  # fmt: skip
COMMANDS = "Command lines"
"""Heading of the block with the command lines of all rows."""
UNKNOWN = "Not known with what"
Cells = tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What a page says of one row.

    Attributes:
        table: heading of the table that its lines are in.
        lines: cells of its lines, as `bench.table.COLUMNS` has them.
        how: how often it was measured, and versions of its peers.
        commands: its command lines.
        environment: machine and versions that it was measured with.
    """

    table: str
    lines: Sequence[Cells]
    how: str
    commands: Sequence[str]
    environment: str


def versions() -> str:
    """Versions of Python and of the packages whose speed or numbers are in the table."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def environment() -> str:
    """The kind of machine, in words that name nobody's, and the versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kind = f"{platform.system()} on {platform.machine()}"
    machine = f"{kind}, {os.cpu_count()} cores, {memory:.0f} GiB of memory, CPU provider"
    return f"{machine}; {versions()}"


def row_of(cells: Cells) -> str:
    """The name of the row that a line belongs to."""
    return cells[0].partition(", ")[0]


def markdown(columns: Cells, lines: Iterable[Cells]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for cells in lines:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def judged(budget: Budget, results: Mapping[str, Result]) -> Cells:
    """A budget with the line that uses most of it."""
    used = len(COLUMNS) - 2
    lines = {
        name: [c for c in (results[name].lines if name in results else ()) if c[used]]
        for name in budget.rows
    }
    absent = ", ".join(name for name, judging in lines.items() if not judging)
    if not any(lines.values()):
        return budget.what, budget.promise, "", "", f"not measured: {absent}"
    worst = max(chain(*lines.values()), key=lambda cells: float(cells[used].rstrip("%")))
    verdict = f"{worst[-1]}; not measured: {absent}" if absent else worst[-1]
    return budget.what, budget.promise, worst[0], worst[used], verdict


def page(results: Mapping[str, Result]) -> str:
    """Everything that stands between the markers."""
    environments: dict[str, list[str]] = {}
    tables: dict[str, list[Cells]] = {}
    for name, result in results.items():
        environments.setdefault(result.environment, []).append(f"`{name}`")
        tables.setdefault(result.table, []).extend(result.lines)
    body = [BEGIN, "Measured with:", ""]
    body += [f"- {what}: {', '.join(names)}" for what, names in environments.items()]
    columns = ("what", "budget", "worst line of its rows", "of budget", "verdict")
    lines = markdown(columns, (judged(budget, results) for budget in BUDGETS))
    body += ["", "## Budgets", "", *lines, ""]
    for heading, rows in tables.items():
        body += [f"## {heading}", "", *markdown(COLUMNS, rows), ""]
    body += [f"## {COMMANDS}", "", "```text"]
    for name, result in results.items():
        body += [f"{name}: {result.how}", *(f"    {command}" for command in result.commands)]
    return "\n".join([*body, "```", END])


def results_in(text: str) -> dict[str, Result]:
    """The rows of a page that `page` made; lines of other tables are passed over."""
    found: dict[str, Result] = {}
    environments: dict[str, str] = {}
    hows: dict[str, tuple[str, list[str]]] = {}
    tables: dict[str, tuple[str, list[Cells]]] = {}
    heading = name = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif measured := re.fullmatch(r"- (.*): (`[^`]+`(?:, `[^`]+`)*)", line):
            environments.update(dict.fromkeys(re.findall("`([^`]+)`", measured[2]), measured[1]))
        elif heading == COMMANDS and line.startswith("    "):
            hows[name][1].append(line[4:])
        elif heading == COMMANDS and ": " in line:
            name, _, how = line.partition(": ")
            hows[name] = how, []
        elif line.startswith("| "):
            cells = tuple(
                cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]
            )
            if len(cells) == len(COLUMNS) and cells != COLUMNS and set(cells) != {"---"}:
                tables.setdefault(row_of(cells), (heading, []))[1].append(cells)
    for name, (table, lines) in tables.items():
        how, commands = hows.get(name, (UNKNOWN, []))
        found[name] = Result(table, lines, how, commands, environments.get(name, UNKNOWN))
    return found


def write(path: Path, results: Mapping[str, Result], order: Sequence[str]) -> None:
    """Put results into a page, between its markers; a page that is not there is made.

    Args:
        order: names of all rows that there are. Of the page's other results those with such a name
            stay.
    Raises:
        ValueError: the file exists and has no markers: it is something else.
    """
    head, rest = "# Benchmarks\n\n", "\n"
    merged = dict(results)
    if path.exists():
        old = path.read_text(encoding="utf-8")
        if old.count(BEGIN) != 1 or old.count(END) != 1:
            raise ValueError(f"{path}: expected one line '{BEGIN}' and one line '{END}'")
        head, _, rest = old.partition(BEGIN)
        shown, _, rest = rest.partition(END)
        merged = results_in(shown) | merged
    ordered = {name: merged[name] for name in order if name in merged}
    path.write_text(head + page(ordered) + rest, encoding="utf-8")
