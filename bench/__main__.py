"""`python -m bench [ROW...] [--list] [--runs N] [--write FILE]`, from the root of a checkout.

Prints a table, a line as soon as it is known. The exit code is 0 whatever the numbers are (those of
a shared machine are to be read, not to fail a build), 2 for wrong use, and 1 if a row could not be
measured; then no page is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from . import (
    conversions,
    gguf_headers,
    goldens,
    headers,
    hub,
    loops,
    packages,
    patched_modules,
    qwen4_exp,
    report,
    startup,
)
from .measure import Failed, Skipped
from .table import Bench, Line, Row, aligned

ROWS: tuple[Row, ...] = (
    *startup.ROWS,
    *headers.ROWS,
    *gguf_headers.ROWS,
    *hub.ROWS,
    *packages.ROWS,
    *conversions.ROWS,
    *patched_modules.ROWS,
    *loops.ROWS,
    *qwen4_exp.ROWS,
    *goldens.ROWS,
)


def chosen(patterns: list[str]) -> list[Row]:
    """The rows whose name matches a pattern, in their own order; all without patterns.

    Raises:
        ValueError: a pattern that matches none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for row in ROWS):
            names = ", ".join(row.name for row in ROWS)
            raise ValueError(f"no row '{pattern}'; there are: {names}")
    return [r for r in ROWS if not patterns or any(fnmatchcase(r.name, p) for p in patterns)]


def measured(rows: list[Row], bench: Bench) -> Iterator[tuple[str, Line]]:
    """Table and line of all rows; one that cannot be measured says why, no more."""
    for row in rows:
        print(f"bench: {row.name}", file=sys.stderr)
        try:
            for line in row.lines(bench):
                yield row.table, line
        except Skipped as e:
            yield row.table, Line(row.name, str(e), verdict="skipped")
        except Failed as e:
            yield row.table, Line(row.name, str(e), verdict="failed")


def main() -> int:
    """Measure what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split("\n")[2])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names or globs; default: all")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into a page")
    options = parser.parse_args()
    try:
        rows = chosen(options.rows)
    except ValueError as e:
        parser.error(str(e))
    if options.runs < 1:
        parser.error("--runs: expected at least 1")
    if options.list:
        width = max(len(row.name) for row in rows)
        for row in rows:
            print(f"{row.name.ljust(width)}  {row.what}")
        return 0
    bench = Bench(options.runs)
    tables: dict[str, list[Line]] = {}
    try:
        for table, line in measured(rows, bench):
            tables.setdefault(table, []).append(line)
            print(f"bench:   {line.row}: {line.measured} [{line.verdict}]", file=sys.stderr)
    finally:
        bench.close()
    for text in aligned(chain(*tables.values())):
        print(text)
    if any(line.verdict == "failed" for line in chain(*tables.values())):
        return 1
    if options.write is not None:
        words = ["python -m bench", *options.rows]
        words += [f"--runs {options.runs}"] if options.runs != 5 else []
        try:
            report.write(options.write, report.page(tables, " ".join(words), options.runs))
        except (OSError, ValueError) as e:
            parser.error(str(e))
    return 0


if __name__ == "__main__":
    sys.exit(main())
