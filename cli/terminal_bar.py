"""Bars on a terminal: one line at the cursor, redrawn in place, gone when its step is over.

The meter, its numbers and times are tqdm's. Where it stands is ours: of steps within steps the
innermost is drawn, behind the words of those around it, and a terminal of any kind can go back to
the beginning of a line. tqdm is loaded when the first step begins, by the thread that begins it: a
thread that loads it while `verify-package` forks would leave its locks to the child.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .lib.errors import shorten

DELAY = 0.5
"""Seconds before a step is drawn: what is done sooner needs no bar."""
EVERY = 0.1
"""Seconds between two drawings."""
REFRESH = 1.0
"""Seconds between two looks at steps that tell nothing meanwhile."""
COLUMNS = 80
ECHO = 2
"""Columns behind the bar that the terminal may have written to: `^C`."""
LEAST_METER = 44
"""Columns for a meter with its numbers; words before it give way, and then the bar."""
NARROW = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{remaining}]"


class _Screen:
    """The steps that are open, and what of them is drawn."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.bars: list[TerminalBar] = []
        self._drawn = 0  # columns
        self._at = 0.0
        self._over = threading.Event()

    def enter(self, bar: TerminalBar) -> None:
        with self.lock:
            self.bars.append(bar)
            if len(self.bars) == 1:
                self._over = threading.Event()
                threading.Thread(target=self._tick, args=(self._over,), daemon=True).start()

    def leave(self, bar: TerminalBar) -> None:
        with self.lock:
            if bar in self.bars:
                self.bars.remove(bar)
            self.clear()
            if not self.bars:
                self._over.set()

    def end(self) -> None:
        """Take away what an interruption has left: it may come between two lines anywhere."""
        with self.lock:
            self.bars.clear()
            self.clear()
            self._over.set()

    def draw(self, *, now: bool = False) -> None:
        """Draw the innermost step that has lasted, unless that was done a moment ago."""
        with self.lock:
            moment = time.monotonic()
            if not now and moment - self._at < EVERY:
                return
            old = [b for b in self.bars if b.at_once or moment - b.started >= DELAY]
            if not old:
                return
            self._at = moment
            text = _line(old, moment, _columns() - 1 - ECHO)
            before, self._drawn = self._drawn, max(self._drawn, len(text))  # Ctrl-C may come now
            self._write("\r" + text.ljust(before))
            self._drawn = len(text)

    def clear(self) -> None:
        """Take the line away; the cursor is at its beginning then."""
        with self.lock:
            if self._drawn:
                self._write("\r" + " " * (self._drawn + ECHO) + "\r")
                self._drawn = 0

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def _tick(self, over: threading.Event) -> None:
        wait = DELAY
        while not over.wait(wait):
            self.draw(now=True)
            wait = REFRESH


screen = _Screen()


class TerminalBar:
    """One step.

    Args:
        total: of what is counted, None where it is not known.
        what: the step, in a word or two.
        unit: `B` for bytes, "" where nothing is counted.
        at_once: without a delay: for output that is no terminal but was asked for.
    """

    def __init__(self, total: int | None, what: str, unit: str, *, at_once: bool = False) -> None:
        from tqdm.std import tqdm

        self.meter = tqdm  # only its ways to format are used
        self.total, self.what, self.unit, self.at_once = total, what, unit, at_once
        self.started, self.done, self.words = time.monotonic(), 0, ""
        screen.enter(self)
        if at_once:
            screen.draw(now=True)

    def update(self, n: int = 1) -> None:
        """`n` more are done; from any thread."""
        with screen.lock:
            self.done += n
        screen.draw()

    def label(self, text: str) -> None:
        """What is being worked on now."""
        plain = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
        self.words = shorten(plain, 60)
        screen.draw()

    def close(self) -> None:
        """It is over: take it off the terminal."""
        if self.at_once:
            screen.draw(now=True)
        screen.leave(self)


def _line(bars: list[TerminalBar], now: float, width: int) -> str:
    """Words of the outer steps, then the meter of the innermost; at most `width` columns."""
    *outer, inner = bars
    around = "".join(f"{b.what} {_of(b)}{': ' + b.words if b.words else ''}: " for b in outer)
    head = inner.what + (f": {inner.words}" if inner.words else "")
    seconds, meter = now - inner.started, inner.meter
    if not inner.unit:
        return shorten(f"{around}{head} [{meter.format_interval(seconds)}]", max(width, 4))
    before = next((w for w in (around + head, head) if len(w) + LEAST_METER <= width), inner.what)
    narrow = inner.total is not None and len(before) + LEAST_METER > width
    utf8 = (getattr(sys.stderr, "encoding", "") or "").lower() == "utf-8"
    line = meter.format_meter(
        inner.done,
        inner.total,
        seconds,
        ncols=width,
        prefix=before,
        ascii=not utf8,
        unit=inner.unit if inner.unit == "B" else f" {inner.unit}",
        unit_scale=inner.unit == "B",
        unit_divisor=1000,
        bar_format=NARROW if narrow else None,
    )
    return str(line)[: max(width, 4)]


def _of(bar: TerminalBar) -> str:
    def count(n: int) -> str:
        return str(bar.meter.format_sizeof(n, bar.unit, 1000)) if bar.unit == "B" else str(n)

    return count(bar.done) if bar.total is None else f"{count(bar.done)} of {count(bar.total)}"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError, AttributeError):
        return COLUMNS


@contextmanager
def room_for_lines() -> Iterator[None]:
    """While lines are written to the terminal that a bar may be on."""
    with screen.lock:
        if not screen.bars:
            yield
            return
        screen.clear()
        yield


class AboveBars:
    """A terminal for text that no bar must end up in."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write to the terminal, the bar out of the way."""
        if not screen.bars:
            return int(self._stream.write(text))
        with room_for_lines():
            count = int(self._stream.write(text))
            self._stream.flush()
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
