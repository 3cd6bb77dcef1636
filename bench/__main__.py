"""`python -m bench [ROW...] [--list] [--runs N] [--write FILE] [--check]`, from a checkout's root.

Prints a table, a line as soon as it is known. `--write` puts it into a page; with some ROWs only
these are replaced there. The exit code is 2 for wrong use and 1 if a row could not be measured;
then the page keeps what it said of that row. With `--check` it is also 1 where a budget is missed
by more than 20 %: without, numbers of a busy machine fail nothing.
`python -m bench --install-peers [NAME...]` makes the environments of other tools (bench/peers.py).
"""

from __future__ import annotations

import argparse
import sys
import time
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
    page,
    patched_modules,
    peers,
    qwen4_exp,
    startup,
    verification,
)
from .measure import Failed, Skipped, noted
from .table import Bench, Line, Row, aligned, cells

ROWS: tuple[Row, ...] = (
    *startup.ROWS,
    *headers.ROWS,
    *gguf_headers.ROWS,
    *hub.ROWS,
    *packages.ROWS,
    *verification.ROWS,
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


def measured(row: Row, bench: Bench) -> Iterator[Line]:
    """The lines of a row; one that cannot be measured says why, no more."""
    try:
        bench.peer = peers.python(row.peer) if row.peer else ""
        yield from row.lines(bench)
    except Skipped as e:
        yield Line(str(e), state="skipped")
    except Failed as e:
        yield Line(str(e), state="failed")
    finally:
        bench.clear()


def results(rows: list[Row], runs: int) -> Iterator[tuple[list[Line], str, page.Result]]:
    """Lines, name and result of each row."""
    bench, where = Bench(runs), page.environment()
    try:
        for row in rows:
            print(f"bench: {row.name}", file=sys.stderr)
            began = time.monotonic()
            noted.clear()
            bench.runs = min(runs, row.most or runs)
            lines = []
            for line in measured(row, bench):
                lines.append(line)
                known = cells(row.name, line)
                print(f"bench:   {known[0]}: {line.measured} [{line.verdict}]", file=sys.stderr)
            print(f"bench:   took {time.monotonic() - began:.0f} s", file=sys.stderr)
            how = f"{bench.runs} run{'s' if bench.runs > 1 else ''}"
            if row.peer and peers.versions(row.peer):
                how += f"; {peers.versions(row.peer)}"
            table = [cells(row.name, line) for line in lines]
            yield lines, row.name, page.Result(row.table, table, how, [*noted], where)
    finally:
        bench.close()


def main() -> int:
    """Measure what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split("\n")[2])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names or globs; default: all")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the rows into a page")
    parser.add_argument("--check", action="store_true", help="exit 1 if a budget is missed")
    parser.add_argument(
        "--install-peers", nargs="*", metavar="NAME", help="make environments of other tools"
    )
    options = parser.parse_args()
    if options.install_peers is not None:
        try:
            peers.install(options.install_peers or peers.ENVIRONMENTS)
        except Skipped as e:
            print(f"bench: {e}", file=sys.stderr)
            return 1
        return 0
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
    good: dict[str, page.Result] = {}
    shown, missed, failed = [], [], []
    for lines, name, result in results(rows, options.runs):
        shown.append(result.lines)
        verdicts = {line.verdict for line in lines}
        if "failed" in verdicts:
            failed.append(name)
        else:
            good[name] = result
        if "missed" in verdicts:
            missed.append(name)
    for text in aligned(chain(*shown)):
        print(text)
    if options.write is not None:
        try:
            page.write(options.write, good, [row.name for row in ROWS])
        except (OSError, ValueError) as e:
            parser.error(str(e))
    if missed:
        print(f"bench: more than 20 % over a budget: {', '.join(missed)}", file=sys.stderr)
    if failed:
        print(f"bench: not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or (missed and options.check) else 0


if __name__ == "__main__":
    sys.exit(main())
