"""How far a step is: a bar for people, lines for scripts and logs; always on standard error."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

WAYS = ("auto", "always", "never", "plain", "json")
INTERVAL = {"json": 0.5, "plain": 10.0}
"""Seconds between two lines; the last one always comes."""


class NoBar:
    """Tells nothing."""

    def update(self, n: int = 1) -> None:
        """`n` more are done."""

    def close(self) -> None:
        """It is over."""


class Lines:
    """Lines now and then: JSON objects, or plain words for a log.

    Args:
        total: of what is counted, None where it is not known.
        what: the step, one word.
        unit: `B` for bytes.
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

    def close(self) -> None:
        """The last line."""
        with self._lock:
            self._tell(self._clock())

    def _tell(self, now: float) -> None:
        seconds = now - self._started
        rate = self._done / seconds if seconds > 0 else None
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
        of = "" if self._total is None else f" of {self._size(self._total)}"
        pace = "" if rate is None else f", {self._size(rate)}/s"
        ahead = "" if left is None else f", {left:.0f} s left"
        print(f"{self._what}: {self._size(self._done)}{of}{pace}{ahead}", file=sys.stderr)

    def _size(self, count: float) -> str:
        if self._unit != "B":
            return f"{count:.1f} {self._unit}" if isinstance(count, float) else f"{count}"
        for power, name in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
            if count >= 10**power:
                return f"{count / 10**power:.2f} {name}"
        return f"{count:.0f} bytes"


def terminal_bar(total: int | None, what: str, unit: str) -> Any:
    """A bar of tqdm, which is imported only here."""
    from tqdm import tqdm

    return tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=unit == "B",
        unit_divisor=1000,
        file=sys.stderr,
        leave=False,
        ascii=not sys.stderr.isatty(),
    )
