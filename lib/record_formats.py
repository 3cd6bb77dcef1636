"""Record sinks: JSON Lines for programs, tables for people, csv and tsv for spreadsheets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TextIO

from .errors import printable
from .records import Record, dumps

COLUMNS: dict[str, tuple[str, ...]] = {
    "tensor": ("name", "dtype", "shape", "params", "nbytes", "file", "offset"),
    "metadata": ("file", "key", "value"),
    "file": ("path", "nbytes", "role", "sha256"),
    "config": ("path", "values"),
    "patched": ("config", "source", "output", "patches", "description"),
    "problem": ("severity", "code", "file", "name", "message"),
    "group": ("by", "key", "tensors", "params", "nbytes", "dtypes"),
    "check": ("id", "ok", "component", "expected", "actual", "message"),
    "step": ("index", "t", "t_next", "rms_x0", "rms_v", "seconds"),
    "token": ("index", "id", "text", "row"),
    "fact": ("area", "name", "value", "ok", "hint"),
    "memory": ("picture", "phase", "component", "weights", "activations"),
}
"""Columns of a kind in table, csv and tsv, in order. Other kinds show all their fields."""
NO_TERMINAL = 100
"""Columns of a table of checks that goes to no terminal."""
LEAST_MESSAGE = 20
"""Columns that the messages of checks get on the narrowest terminal."""
MAX_ENTRIES = 12
"""Lines for one list or object of a summary."""


class Sink(Protocol):
    """Where records go, in one format."""

    def record(self, record: Record) -> None:
        """Take the next record."""

    def close(self) -> None:
        """Write what was held back; after the last record."""


class JsonLines:
    """One JSON object a line, written as it comes."""

    def __init__(self, out: TextIO) -> None:
        self._write = out.write

    def record(self, record: Record) -> None:
        """Write its line."""
        self._write(dumps(record) + "\n")

    def lines(self, batches: Iterable[list[str]]) -> int:
        """Write records that are lines of JSON already; the number of them. One write a line would
        cost as much as making the line."""
        count = 0
        for batch in batches:
            count += len(batch)
            self._write("\n".join([*batch, ""]))
        return count

    def close(self) -> None:
        """Nothing is held back."""


class Words:
    """The `text` of the records of one kind, a line each, and nothing else: for --raw."""

    def __init__(self, out: TextIO, main: str) -> None:
        self._out, self._main = out, main

    def record(self, record: Record) -> None:
        """Write its text, if it is of the kind."""
        if record["kind"] == self._main:
            self._out.write(f"{record['text']}\n")

    def close(self) -> None:
        """Nothing is held back."""


class Delimited:
    """csv or tsv of one kind of record (the command's main one), with a header row. Quotes are of
    csv; tsv has escapes.

    Records of other kinds have other columns and would break the table; `problem` records are
    handed to `aside`, which tells them on standard error.
    """

    def __init__(self, out: TextIO, main: str, delimiter: str, aside: Any) -> None:
        self._write: Callable[[Iterable[str]], Any]
        if delimiter == "\t":
            self._write, self._plain = (lambda row: out.write("\t".join(row) + "\n")), _escaped
        else:
            import csv  # JSON Lines start quicker without it

            self._write, self._plain = csv.writer(out, lineterminator="\n").writerow, _plain
        self._main, self._aside = main, aside
        self._columns: tuple[str, ...] | None = COLUMNS.get(main)
        self._header = False

    def record(self, record: Record) -> None:
        """Write its row, after the header before the first; a problem goes aside."""
        if record["kind"] != self._main:
            if record["kind"] == "problem":  # errors are told by whoever ends the process
                self._aside(record)
            return
        if self._columns is None:
            self._columns = tuple(k for k in record if k != "kind")
        if not self._header:
            self._write(self._columns)
            self._header = True
        self._write([self._plain(record.get(c)) for c in self._columns])

    def close(self) -> None:
        """A table without rows has its header still."""
        if not self._header and self._columns:
            self._write(self._columns)


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _escaped(value: Any) -> str:
    """A cell of tsv, as jq's `@tsv` writes it: nothing is quoted; tab, line feed, carriage return
    and backslash are `\\t`, `\\n`, `\\r` and `\\\\`."""
    if isinstance(value, dict | list) and not _numbers(value):
        value = dumps({"v": value})[5:-1]
    return printable(value.translate(_ESCAPES)) if isinstance(value, str) else _plain(value)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int) for v in value)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if value is True or value is False:
        return str(value).lower()
    if _numbers(value):
        return ",".join(map(str, value))
    if isinstance(value, dict | list):
        return printable(dumps({"v": value})[5:-1])
    return printable(value)


class Table:
    """Aligned columns, a block for each run of records of one kind, without `begin` and `end`.

    Args:
        width: columns for tables of checks; those of the terminal, if not given.
        shown: the record that is shown for a record; the same one, if not given.
    """

    def __init__(
        self,
        out: TextIO,
        width: int | None = None,
        shown: Callable[[Record], Record] | None = None,
    ) -> None:
        self._out, self._width, self._shown = out, width, shown
        self._kind: str | None = None
        self._rows: list[Record] = []
        self._blocks = 0

    def record(self, record: Record) -> None:
        """Hold it until the run of its kind ends."""
        if self._shown is not None:
            record = self._shown(record)
        kind = record["kind"]
        if kind in ("begin", "end", "error"):
            return
        if kind != self._kind:
            self._flush()
            self._kind = kind
        self._rows.append(record)

    def close(self) -> None:
        """Write the last block."""
        self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        if self._blocks:
            self._out.write("\n")
        self._blocks += 1
        kind = self._kind or ""
        if kind in ("summary", "begin") or kind not in COLUMNS:
            for row in rows:
                self._pairs(row)
            return
        if kind == "check":
            self._checks(rows)
            return
        columns = [c for c in COLUMNS[kind] if any(r.get(c) not in (None, "") for r in rows)]
        columns += [
            c
            for c in ("component", "role", "state")
            if c not in columns and any(c in r for r in rows)
        ]
        cells = [[_cell(r.get(c), c) for c in columns] for r in rows]
        numeric = [all(_is_number(r.get(c)) for r in rows) for c in columns]
        widths = [max(len(h), *(len(r[i]) for r in cells)) for i, h in enumerate(columns)]
        for line in [columns, *cells]:
            parts = [
                v.rjust(w) if right else v.ljust(w)
                for v, w, right in zip(line, widths, numeric, strict=True)
            ]
            self._out.write("  ".join(parts).rstrip() + "\n")

    def _checks(self, rows: list[Record]) -> None:
        """Verdict, id, component, message, no wider than the terminal. The message of a check that
        fails is never cut: it gets lines of its own, and so has what was expected and found."""
        columns = [c for c in ("ok", "id", "component") if any(r.get(c) for r in rows) or c == "ok"]
        cells = [[_cell(r.get(c), c) for c in columns] for r in rows]
        widths = [max(len(h), *(len(r[i]) for r in cells)) for i, h in enumerate(columns)]
        width = self._columns()
        room = max(width - sum(widths) - 2 * len(widths), LEAST_MESSAGE)
        indent = " " * (widths[0] + 2)

        def line(values: list[str], message: str) -> None:
            parts = [v.ljust(w) for v, w in zip(values, widths, strict=True)]
            self._out.write("  ".join([*parts, message]).rstrip() + "\n")

        line(columns, "message")
        for row, values in zip(rows, cells, strict=True):
            text, failed = _plain(row.get("message")), row.get("ok") is False
            if not failed or len(text) <= room:
                line(values, _cut(text, room))
            else:
                import textwrap  # most tables need no long line

                line(values, "")
                fill = max(width - len(indent), LEAST_MESSAGE)
                for part in textwrap.wrap(text, fill, break_on_hyphens=False):
                    self._out.write(f"{indent}{part}\n")
            for key, name in (("expected", "expected"), ("actual", "found")) if failed else ():
                if row.get(key) is not None:
                    text = f"{indent}{name.ljust(8)}  {_plain(row[key])}"
                    self._out.write(_cut(text, max(width, LEAST_MESSAGE)) + "\n")

    def _columns(self) -> int:
        if self._width is not None:
            return self._width
        if not self._out.isatty():
            return NO_TERMINAL
        import shutil  # JSON Lines start quicker without it

        return shutil.get_terminal_size((NO_TERMINAL, 24)).columns

    def _pairs(self, row: Record) -> None:
        items = [(k, v) for k, v in row.items() if k != "kind" and v not in (None, [], {})]
        width = max((len(k) for k, _ in items), default=0)
        self._out.write(f"{row['kind']}\n")
        for key, value in items:
            for line in _lines(value, key):
                self._out.write(f"  {key.ljust(width)}  {line}".rstrip() + "\n")
                key = ""


def _lines(value: Any, key: str) -> list[str]:
    """A field of a summary: an entry a line, of an object or a list of texts."""
    if isinstance(value, dict) and key != "dtypes":
        width = max(len(printable(k)) for k in list(value)[:MAX_ENTRIES])
        lines = [f"{printable(k).ljust(width)}  {_entry(v, k)}" for k, v in value.items()]
    elif isinstance(value, list) and all(isinstance(v, str) for v in value):
        lines = [_cell(v, key) for v in value]
    else:
        return [_cell(value, key)]
    rest = len(lines) - MAX_ENTRIES
    return lines if rest <= 0 else [*lines[:MAX_ENTRIES], f"and {rest} more"]


def _entry(value: Any, key: str) -> str:
    if isinstance(value, dict):
        return _cut(", ".join(f"{printable(k)} {_cell(v, k)}" for k, v in value.items()), 100)
    return _cell(value, key)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _is_number(value: Any) -> bool:
    """Whether a column of such values is set to the right; a verdict is no number."""
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def _cell(value: Any, column: str) -> str:
    if isinstance(value, bool):
        return (
            "ok" if value and column == "ok" else "FAIL" if column == "ok" else str(value).lower()
        )
    if value is None:
        return "-" if column == "ok" else ""
    if isinstance(value, int) and column not in ("index", "id"):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if column == "dtypes" and isinstance(value, dict):
        return " ".join(f"{k}:{v.get('tensors')}" for k, v in value.items() if isinstance(v, dict))
    return _cut(_plain(value), 100)
