"""How far a step is, in lines for scripts and logs, on standard error. Bars: terminal_bar.py."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

from .terminal_bar import size

WAYS = ("auto", "always", "never", "plain", "json")
INTERVAL = {"json": 0.5, "plain": 10.0}
"""Seconds between two lines; the last one always comes, of `plain` where it took a second."""


class Lines:
    """Lines now and then: JSON objects, or plain words for a log.

    Args:
        total: of what is counted, None where it is not known.
        what: the step, one word.
        unit: `B` for bytes; "" where nothing is counted, and time is all there is to tell.
        way: `json` or `plain`.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        total: int | None,
        what: str,
        unit: str,
        way: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._what, self._unit, self._way = total, what, unit, way
        self._clock, self._lock = clock, threading.Lock()
        self._started = self._told = clock()
        self._done = 0

    def update(self, n: int = 1) -> None:
        """`n` more are done; from any thread."""
        with self._lock:
            self._done += n
            now = self._clock()
            if now - self._told >= INTERVAL[self._way]:
                self._told = now
                self._tell(now)

    def label(self, text: str) -> None:
        """What is being worked on now; lines do not say it."""

    def close(self) -> None:
        """The last line."""
        with self._lock:
            now = self._clock()
            if self._way == "json" or now - self._started >= 1:
                self._tell(now)

    def _tell(self, now: float) -> None:
        seconds = now - self._started
        rate = self._done / seconds if seconds > 0 and self._unit else None
        left = None
        if self._total is not None and rate:
            left = max(self._total - self._done, 0) / rate
        if self._way == "json":
            record = {
                "kind": "progress",
                "step": self._what,
                "unit": self._unit,
                "done": self._done,
                "total": self._total,
                "seconds": round(seconds, 3),
                "rate": None if rate is None else round(rate, 3),
                "seconds_left": None if left is None else round(left, 1),
            }
            print(json.dumps(record, separators=(",", ":")), file=sys.stderr)
            return
        if not self._unit:
            print(f"{self._what}: {seconds:.0f} s", file=sys.stderr)
            return
        of = "" if self._total is None else f" of {size(self._total, self._unit)}"
        pace = "" if rate is None else f", {size(rate, self._unit)}/s"
        ahead = "" if left is None else f", {left:.0f} s left"
        print(f"{self._what}: {size(self._done, self._unit)}{of}{pace}{ahead}", file=sys.stderr)
