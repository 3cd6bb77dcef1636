"""Turns every way a command can end into a message and an exit code (docs/exit-codes.md)."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from .console import Unfailing, console
from .failure import ENVIRONMENT, INTERRUPTED, USAGE, failure
from .lib.errors import without_secrets


def run(arguments: list[str]) -> int:
    """Run ntool with these arguments and return the exit code. Nothing is raised."""
    console.reset()
    _fill_descriptors()
    if not _streams_open():
        return ENVIRONMENT
    try:
        try:
            with _warnings_as_details():
                code = _invoke(arguments)
        except BaseException as e:
            code = report(e)
        try:
            sys.stdout.flush()
        except OSError as e:
            # what could not be written was told once, if it made the command fail
            code = code or report(e)
            _discard_stdout()
    except KeyboardInterrupt:
        code = INTERRUPTED
    return code


@contextmanager
def _warnings_as_details() -> Iterator[None]:
    """Warnings of libraries go the way of other details: one line, with -v only.

    A warning that means something to the user is a note or an error of ours. Which warnings there
    are stays as it is, so that tests can turn them into errors.
    """

    def tell(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        console.detail(f"{category.__name__}: {message}")

    shown, warnings.showwarning = warnings.showwarning, tell
    try:
        yield
    finally:
        warnings.showwarning = shown


def _invoke(arguments: list[str]) -> int:
    """Run the command, not through typer's `main()`, which turns a closed pipe into code 1."""
    from .app import application

    app = application()
    with app.make_context("ntool", list(arguments)) as context:
        # from here on there may be something to clean up
        signal.signal(signal.SIGTERM, _terminate)
        hangup = getattr(signal, "SIGHUP", None)  # Windows has none
        if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(hangup, _terminate)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app.invoke(context)
    return 0


def report(error: BaseException) -> int:
    """Say on standard error what went wrong, in one line, and return the exit code for it."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(str(error), file=sys.stderr)
        return USAGE
    found = failure(error)
    if isinstance(error, BrokenPipeError):  # `| head`: say nothing, and let no later flush complain
        _discard_stdout()
    context: Any = getattr(error, "ctx", None)
    if found.code == USAGE and context is not None:
        console.command = context.command_path.partition(" ")[2]
    if found.message:
        console.say(found.message)
    if found.hint:
        print(f"hint: {without_secrets(found.hint)}", file=sys.stderr)
    if found.bug or (console.verbose and found.message):
        import traceback  # and what it needs: 2 ms

        lines = traceback.format_exception(error)
        print(without_secrets("".join(lines)), end="", file=sys.stderr)
    return found.code


def _streams_open() -> bool:
    """Whether standard output can be written; sets both streams up.

    Records are UTF-8 with line feeds whatever the locale says. A terminal keeps its own encoding,
    but a name that it cannot show must not end the command.
    """
    if not isinstance(sys.stderr, Unfailing):
        sys.stderr = Unfailing(sys.stderr)
    if sys.stdout is None:
        console.say("standard output is closed")
        return False
    if hasattr(sys.stdout, "reconfigure"):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    return True


def _fill_descriptors() -> None:
    """Open what the caller closed of the descriptors 0, 1 and 2.

    Else the next file that is opened takes the number, and what a library writes to standard error
    lands in an output.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.dup(fd)
    os.close(fd)


def _discard_stdout() -> None:
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):
        pass


def _terminate(signum: int, frame: object) -> NoReturn:
    """SIGTERM and SIGHUP unwind the stack, so that temporary files are removed, and exit with 128 +
    their number."""
    raise SystemExit(128 + signum)
