"""Bars on a terminal: one line at the cursor, redrawn in place, gone when its step is over.

Of steps within steps the innermost is drawn, behind the words of those around it. No library: what
they load (locks, logging) does not get along with the forks of `verify-package`, and a terminal of
any kind can go back to the beginning of a line.
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
LEAST_BAR, MOST_BAR = 5, 50


def size(count: float, unit: str) -> str:
    """A number of a unit in words: `1.42 GB`, `7`, `1.5 step`."""
    if unit != "B":
        return f"{count:.1f} {unit}" if isinstance(count, float) else f"{count}"
    for power, name in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.2f} {name}"
    return f"{count:.0f} bytes"


def clock(seconds: float) -> str:
    """Seconds as `0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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
    """Words of the outer steps, then the innermost with its numbers; at most `width` columns."""
    *outer, inner = bars
    around = "".join(f"{b.what} {_of(b)}{': ' + b.words if b.words else ''}: " for b in outer)
    head = inner.what + (f": {inner.words}" if inner.words else "")
    seconds = now - inner.started
    if not inner.unit:
        return shorten(f"{around}{head} [{clock(seconds)}]", max(width, 4))
    rate = inner.done / seconds if seconds > 0 else 0.0
    numbers = [_of(inner)]
    if rate:
        numbers.append(f"{size(rate, inner.unit)}/s")
    if rate and inner.total is not None:
        numbers.append(f"{clock(max(inner.total - inner.done, 0) / rate)} left")
    tail = ", ".join(numbers)
    if inner.total is None:
        return shorten(f"{around}{head}: {tail} [{clock(seconds)}]", max(width, 4))
    share = min(inner.done / inner.total, 1.0) if inner.total else 1.0
    percent = f"{share:4.0%}"
    room = width - len(around) - len(head) - len(percent) - len(tail) - 4
    if room < LEAST_BAR and around:  # the numbers matter more than where they belong
        around, room = "", room + len(around)
    if room < LEAST_BAR:
        return shorten(f"{around}{head}{percent} {tail}", max(width, 4))
    room = min(room, MOST_BAR)
    full = round(share * room)
    block = "\u2588" if (getattr(sys.stderr, "encoding", "") or "").lower() == "utf-8" else "#"
    return f"{around}{head}{percent}|{block * full}{' ' * (room - full)}| {tail}"


def _of(bar: TerminalBar) -> str:
    done = size(bar.done, bar.unit)
    return done if bar.total is None else f"{done} of {size(bar.total, bar.unit)}"


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
