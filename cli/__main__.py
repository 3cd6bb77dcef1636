"""`ntool` and `python -m ntool`."""

from __future__ import annotations

import _signal  # `signal` itself takes 2 ms
import os
import sys
from _signal import SIG_IGN, SIGINT, SIGTERM, getsignal, signal

STOPPING = (SIGINT, SIGTERM, getattr(_signal, "SIGHUP", SIGTERM))
"""Signals that end a command; Windows has no SIGHUP."""


def _quit(signum: int, frame: object) -> None:
    """End at once and in silence, with 128 + the signal's number: nothing is begun."""
    os._exit(128 + signum)


def _silent() -> None:
    for number in STOPPING:
        if getsignal(number) != SIG_IGN:  # ignored: started in the background of a script
            signal(number, _quit)


# First of all: Ctrl-C in the middle of an import would be a traceback. Once there is something to
# clean up, guard.py puts other handlers in their place.
_silent()


def main() -> None:
    """Run the command line and exit with a code of docs/exit-codes.md."""
    from .guard import run

    code = run(sys.argv[1:])
    _silent()  # and again while the interpreter ends
    sys.exit(code)


if __name__ == "__main__":
    main()
