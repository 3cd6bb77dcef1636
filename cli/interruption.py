"""Signals that end a command: as exceptions, so that what is begun is cleaned up.

In the middle of an import the exception would end in code that cannot take it: NumPy tells of a
broken installation, and extensions in C++ end the process. There it waits a moment. Where it comes
in a destructor, Python would print and drop it; it is sent again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

LONGEST = 2.0
"""Seconds that an import may hold a signal up: it may be a file of the user that never ends."""
AGAIN = 0.05
"""Seconds until it is tried again."""
DEEPEST = 20

_since: dict[int, float] = {}
"""When signals that wait came first."""


def install() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise; those that are ignored stay so."""
    _since.clear()
    signal.signal(signal.SIGTERM, _patient(_end))
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(hangup, _patient(_end))
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _patient(signal.default_int_handler))


def behind(error: BaseException) -> BaseException | None:
    """The interruption that an error was made of, by code that takes every exception for a fault
    of its own; None of other errors."""
    found: BaseException | None = error
    for _ in range(DEEPEST):
        if found is None:
            return None
        if isinstance(found, KeyboardInterrupt) or _is_end(found):
            return found
        found = found.__cause__ or found.__context__
    return None


@contextmanager
def in_destructors(tell: Callable[[str], object]) -> Iterator[None]:
    """What is raised where nobody can catch it: interruptions again, others told as details."""

    def hook(what: Any) -> None:
        error = what.exc_value
        if isinstance(error, KeyboardInterrupt):
            _again(signal.SIGINT)
        elif error is not None and _is_end(error):
            _again(error.code - 128)
        else:
            tell(f"{what.exc_type.__name__}: {error}")

    before, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _end(signum: int, frame: object) -> NoReturn:
    """Unwind the stack, so that temporary files are removed, and exit with 128 + the number."""
    raise SystemExit(128 + signum)


def _is_end(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and type(error.code) is int and error.code > 128


def _patient(handle: Callable[[int, Any], object]) -> Callable[[int, Any], None]:
    def patient(signum: int, frame: Any) -> None:
        now = time.monotonic()
        if _importing(frame) and now - _since.setdefault(signum, now) < LONGEST:
            _again(signum)
            return
        _since.pop(signum, None)
        handle(signum, frame)

    return patient


def _again(signum: int) -> None:
    """Send a signal once more, a moment later."""
    again = threading.Timer(AGAIN, os.kill, (os.getpid(), signum))
    again.daemon = True
    again.start()


def _importing(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
