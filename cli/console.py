"""What a command says and where: records on standard output, everything else on standard error.

One `console` for the process, set from the common options before a command starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

from .failure import READER_CLOSED, failure
from .lib import progress as steps
from .lib.errors import printable, without_secrets
from .lib.record_formats import Delimited, JsonLines, Sink, Table, Words
from .lib.records import Record, Stream
from .progress import Lines
from .terminal_bar import AboveBars, TerminalBar, room_for_lines

FORMATS = ("jsonl", "table", "csv", "tsv")
MORE_FORMATS = {"verify-package": ("junit",)}
"""Formats that single commands have besides."""


class Unfailing:
    """Standard error whose failure ends nothing: what cannot be said must not change what is done.

    A full disk, a reader that has gone, or none at all (None): the rest is dropped.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop, a text; its length in either case."""
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        """Write out what is buffered, or drop it."""
        self._try("flush")

    def _try(self, method: str, *arguments: str) -> None:
        if self._stream is None:
            return
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError):
            stream, self._stream = self._stream, None
            # what is left in its buffer goes nowhere, or the interpreter ends with 120
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)

    def isatty(self) -> bool:
        """Whether someone is looking at a terminal."""
        return self._stream is not None and bool(self._stream.isatty())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass
class Console:
    """The common options of one run."""

    command: str = ""
    format: str | None = None
    quiet: bool = False
    verbose: bool = False
    progress: str = "auto"

    def reset(self) -> None:
        """Back to the defaults: one process may run several commands."""
        for field in fields(self):
            setattr(self, field.name, field.default)
        steps.listen(self.bar)

    @property
    def records(self) -> str:
        """The record format: as asked, else `table` on a terminal and `jsonl` elsewhere."""
        return self.format or ("table" if sys.stdout.isatty() else "jsonl")

    def note(self, message: str) -> None:
        """One line on standard error, unless -q."""
        if not self.quiet:
            self.say(message)

    def say(self, message: str) -> None:
        """One line on standard error: `ntool COMMAND: message`."""
        name = f"ntool {self.command}" if self.command else "ntool"
        with room_for_lines():
            print(f"{name}: {printable(without_secrets(message))}", file=sys.stderr)

    def detail(self, message: str) -> None:
        """One line on standard error with -v."""
        if self.verbose and not self.quiet:
            self.say(message)

    def hint(self, text: str | None) -> None:
        """A line that says what to do, after an error."""
        if text:
            with room_for_lines():
                print(f"hint: {printable(without_secrets(text))}", file=sys.stderr)

    def problem(self, record: Record) -> None:
        """A `problem` record told in words, for formats that have no room for it."""
        where = ": ".join(str(record[k]) for k in ("file", "name") if record.get(k))
        text = record.get("message", "")
        severity = record.get("severity", "error")
        tell = self.say if severity == "error" else self.note
        tell(f"{severity}: {where + ': ' if where else ''}{text}")

    @contextmanager
    def stream(
        self,
        *,
        main: str,
        source: str | None = None,
        to: Any = None,
        alone: bool = False,
        in_table: Callable[[Record], Record] | None = None,
        **begin: Any,
    ) -> Iterator[Stream]:
        """A record stream on standard output (or `to`).

        Ends with `end` if the block does; with an `error` record if the block raises. A block that
        calls `end(...)` itself, to add fields, is not ended twice.

        Args:
            main: the kind that csv and tsv show.
            alone: print the text of the main kind's records and nothing else.
            in_table: the record that a table has for a record.
        """
        out = to or sys.stdout
        if to is None and out.isatty():
            out = AboveBars(out)
        sink: Sink
        if alone:
            sink = Words(out, main)
        elif self.records == "jsonl":
            sink = JsonLines(out)
        elif self.records == "table":
            sink = Table(out, shown=in_table)
        elif self.records == "junit":
            from .lib.package.junit import JUnit

            sink = JUnit(out)
        else:
            sink = Delimited(out, main, "," if self.records == "csv" else "\t", self.problem)
        shown = None if source is None else without_secrets(source)
        stream = Stream(sink, source=shown, **begin)
        ended = False
        end = stream.end

        def once(**fields: Any) -> None:
            nonlocal ended
            ended = True
            end(**fields)

        stream.end = once  # type: ignore[method-assign]
        try:
            yield stream
            if not ended:
                stream.end()
            sink.close()
            out.flush()
        except Exception as e:
            found = failure(e)
            if found.code == READER_CLOSED:
                raise
            # the error itself is what the user must see, not a second one of writing about it
            with suppress(OSError):
                if not ended and found.message:
                    text = without_secrets(found.message)
                    stream.error(type(e).__name__, found.code, text)
                elif not ended:  # typer.Exit: only a code, the records are whole
                    stream.end()
                sink.close()
                out.flush()
            raise

    @contextmanager
    def bar(self, total: int | None, what: str, unit: str) -> Iterator[Any]:
        """Progress of a step on standard error: the listener of `lib.progress`.

        Names of files and of parts of packages may be in its words.

        A bar on a terminal (`auto`), or `always`; lines of JSON (`json`) or of words (`plain`) for
        scripts and logs; nothing otherwise. -q silences what was not asked for.
        """
        what = printable(what)
        if self.progress in ("json", "plain"):
            bar: Any = Lines(total, what, unit, self.progress)
        elif self.progress == "always" or (
            self.progress == "auto"
            and not self.quiet
            and sys.stderr.isatty()
            and os.environ.get("TERM") != "dumb"
        ):
            bar = TerminalBar(total, what, unit, at_once=not sys.stderr.isatty())
        else:
            bar = steps.NoBar()
        try:
            yield bar
        finally:
            bar.close()


console = Console()
