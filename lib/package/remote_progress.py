"""Progress of the checks, from their process to the one that tells of it.

What arrives is data of a process that an odd file may have broken: it is looked at before it is
shown, and buys no time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .. import progress
from ..runtime.child import Channel

KINDS = ("step", "done", "label", "over")
"""Messages of this page."""
EVERY = 0.1
"""Seconds between two messages about one step."""
MOST = 8
"""Steps that may be open at a time."""
UNITS = ("", "B", "file")
MAX_WORD = 60


class _Told:
    """A step of this process, told to the other one."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._lock = channel, threading.Lock()
        self._told = time.monotonic()
        self.waiting = 0

    def update(self, n: int = 1) -> None:
        """`n` more are done; from any thread."""
        with self._lock:
            self.waiting += n
            now = time.monotonic()
            if now - self._told < EVERY:
                return
            count, self.waiting, self._told = self.waiting, 0, now
        self._channel.send(["done", count])

    def label(self, text: str) -> None:
        """What is being worked on now."""
        self._channel.send(["label", text])


def listener(channel: Channel) -> progress.Listener:
    """What tells the other process of the steps of this one."""

    @contextmanager
    def told(total: int | None, what: str, unit: str) -> Iterator[progress.Bar]:
        channel.send(["step", total, what, unit])
        bar = _Told(channel)
        try:
            yield bar
        finally:
            channel.send(["over", bar.waiting])

    return told


class Shown:
    """The steps of the other process, shown here. A context manager: all of them end with it."""

    def __init__(self) -> None:
        self._open: list[tuple[AbstractContextManager[progress.Bar], progress.Bar]] = []

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._end()

    def take(self, kind: str, rest: list[Any]) -> None:
        """A message of KINDS.

        Raises:
            ValueError, IndexError: it is none that this page sends.
        """
        if kind == "step":
            total, what, unit = rest
            if len(self._open) >= MOST or unit not in UNITS or not isinstance(what, str):
                raise ValueError
            step = progress.step(None if total is None else _count(total), what[:MAX_WORD], unit)
            self._open.append((step, step.__enter__()))
        elif kind == "label":
            self._open[-1][1].label(str(rest[0])[:MAX_WORD])
        else:
            self._open[-1][1].update(_count(rest[0]))
            if kind == "over":
                self._end()

    def _end(self) -> None:
        step, _ = self._open.pop()
        step.__exit__(None, None, None)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return value
