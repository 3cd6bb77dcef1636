"""Record streams: JSON Lines with `begin`, records, `end` (docs/records.md).

Standard library only: light commands import this.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from .errors import InputError, printable

SCHEMA = "ntool/1"
MAX_LINE = 64 << 20
"""Characters of one record, line feed included. A tokenizer's whole vocabulary stays far below."""

Record = dict[str, Any]


def finite(value: Any) -> Any:
    """The value with NaN and infinities as None, at any depth: JSON has no such numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


# check_circular off: ntool itself built these trees, and the check costs a third of the time
_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def dumps(record: Record) -> str:
    """One record as one line of JSON, without its line feed.

    Control characters and lone surrogates are escaped, so a tensor name can neither end the line
    nor reach a terminal raw.
    """
    try:
        line = _encode(record)
    except ValueError:
        line = _encode(finite(record))
    if line.isascii() and line.isprintable():
        return line
    out = []
    for c in line:
        safe = printable(c)
        if safe == c:
            out.append(c)
        else:  # json itself escaped C0; DEL, C1, bidi, separators and surrogates remain
            n = ord(c)
            if n > 0xFFFF:
                n -= 0x10000
                out.append(f"\\u{0xD800 + (n >> 10):04x}\\u{0xDC00 + (n & 0x3FF):04x}")
            else:
                out.append(f"\\u{n:04x}")
    return "".join(out)


class Stream:
    """Writes one stream of records: `begin` at once, `end` with the count on `end()`.

    `sink` is anything with `record(record)`: a JSON Lines writer, a table, a list. `hold` keeps
    `begin` back until `begin(...)` or the first record: what it tells may not be known yet.
    """

    def __init__(self, sink: Any, *, source: str | None, hold: bool = False, **begin: Any) -> None:
        self._sink = sink
        self._started = time.monotonic()
        self.count = 0
        from ..version import VERSION

        self._begin: Record | None = {
            "kind": "begin",
            "schema": SCHEMA,
            "producer": "ntool",
            "version": VERSION,
            "source": source,
            "revision": None,
            "format": None,
            **begin,
        }
        if not hold:
            self._begun()

    def begin(self, **fields: Any) -> None:
        """Write `begin` now, with fields that were not known when the stream was made."""
        assert self._begin is not None
        self._begin.update(fields)
        self._begun()

    def _begun(self) -> None:
        if self._begin is not None:
            record, self._begin = self._begin, None
            self._sink.record(record)

    def write(self, kind: str, **fields: Any) -> None:
        """Write one record; `kind` comes first."""
        self._begun()
        self.count += 1
        self._sink.record({"kind": kind, **fields})

    def write_lines(self, kind: str, rows: Iterable[Record], lines: Iterable[list[str]]) -> None:
        """Write many records that the caller can spell as JSON faster than `dumps` can.

        Args:
            rows: fields of the records, for sinks that need them.
            lines: the same records in batches, each as the line that `dumps` makes of it. Only one
                of the two is consumed.
        """
        self._begun()
        raw = getattr(self._sink, "lines", None)
        if raw is None:
            self.write_all(kind, rows)
        else:
            self.count += raw(lines)

    def write_all(self, kind: str, rows: Iterable[Record]) -> None:
        """Write many records of one kind."""
        for row in rows:
            self.write(kind, **row)

    def end(self, **fields: Any) -> None:
        """Close the stream: `end` with the number of records since `begin`, and the seconds."""
        self._begun()
        seconds = round(time.monotonic() - self._started, 6)
        self._sink.record({"kind": "end", "count": self.count, "seconds": seconds, **fields})

    def error(self, name: str, code: int, message: str) -> None:
        """Close the stream with the reason why it has no `end`, for the reader of a pipe.

        Args:
            name: class of the error.
            code: exit code of the process that writes this.
        """
        self._begun()
        self._sink.record(
            {"kind": "error", "code": code, "class": name, "message": printable(message)}
        )


def _unique(pairs: list[tuple[str, Any]]) -> Record:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key!r}")
            seen.add(key)
    return out


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant).decode


def parse_line(line: str, where: str) -> Record:
    """One record from one line.

    Raises:
        InputError: not one JSON object, no string `kind`, a duplicate key, NaN, or too deep.
    """
    if len(line) > MAX_LINE:
        raise InputError(f"{where}: record too long", found=len(line), expected=f"<= {MAX_LINE}")
    try:
        record = _decode(line)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where}: not a JSON record ({e})") from e
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise InputError(f"{where}: a record is a JSON object with a string 'kind'")
    return record


def read(lines: TextIO | Iterable[str], name: str = "standard input") -> Iterator[Record]:
    """Records of one or more concatenated streams, checked, `begin` and `end` included.

    Unknown kinds and fields pass through. Empty lines are skipped.

    Raises:
        InputError: a line is not a record; records outside `begin`...`end`; the count in `end`
            differs; an unknown schema; the input ends before `end`; or an `error` record says why
            the writer stopped.
    """
    inside, empty = False, True
    count = number = 0
    for number, line in enumerate(_bounded(lines, name), 1):
        if not line.strip():
            continue
        empty = False
        where = f"{name}: line {number}"
        record = parse_line(line, where)
        kind = record["kind"]
        if kind == "error":
            raise InputError(f"{where}: the writer stopped: {record.get('message')}")
        if kind == "begin":
            if inside:
                raise InputError(f"{where}: 'begin' before the 'end' of the stream before it")
            if record.get("schema") != SCHEMA:
                found = dumps({"": record.get("schema")})[4:-1]
                raise InputError(f"{where}: schema", found=found, expected=f'"{SCHEMA}"')
            inside, count = True, 0
        elif not inside:
            raise InputError(f"{where}: '{kind}' outside a stream", expected="'begin' first")
        elif kind == "end":
            promised = record.get("count")
            if type(promised) is not int or promised != count:
                expected = f"the count of 'end', {dumps({'': promised})[4:-1]}"
                raise InputError(f"{where}: records since 'begin'", found=count, expected=expected)
            inside = False
        else:
            count += 1
        yield record
    if inside:
        raise InputError(f"{name}: the stream stops after line {number} without its 'end'")
    if empty:
        raise InputError(f"{name}: empty", expected="a record stream")


def _bounded(lines: TextIO | Iterable[str], name: str) -> Iterator[str]:
    """Lines, bounded while reading: a file without line feeds cannot fill memory."""
    try:
        if hasattr(lines, "readline"):
            while line := lines.readline(MAX_LINE + 1):
                yield line
        else:
            yield from lines
    except UnicodeDecodeError as e:
        raise InputError(f"{name}: not UTF-8 ({e.reason} at byte {e.start})") from e
