"""Turns every way a command can end into a message and an exit code (docs/exit-codes.md)."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import interruption
from .console import Unfailing, console
from .failure import ENVIRONMENT, INTERRUPTED, USAGE, failure
from .lib.errors import without_secrets
from .terminal_bar import screen


def run(arguments: list[str]) -> int:
    """Run ntool with these arguments and return the exit code. Nothing is raised."""
    console.reset()
    _fill_descriptors()
    if not _streams_open():
        return ENVIRONMENT
    try:
        try:
            with _warnings_as_details(), interruption.in_destructors(console.detail):
                code = _invoke(arguments)
        except BaseException as e:
            screen.end()
            code = report(e)
        try:
            sys.stdout.flush()
        except OSError as e:
            # what could not be written was told once, if it made the command fail
            code = code or report(e)
            _discard_stdout()
    except KeyboardInterrupt:  # a second one, in the middle of tidying up
        screen.end()
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
        interruption.install()  # from here on there may be something to clean up
        app.invoke(context)
    return 0


def report(error: BaseException) -> int:
    """Say on standard error what went wrong, in one line, and return the exit code for it."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(str(error), file=sys.stderr)
        return USAGE
    found = failure(interruption.behind(error) or error)
    if isinstance(error, BrokenPipeError):  # `| head`: say nothing, and let no later flush complain
        _discard_stdout()
    context: Any = getattr(error, "ctx", None)
    if found.code == USAGE and context is not None:
        console.command = context.command_path.partition(" ")[2]
    if found.message:
        console.say(found.message)
    console.hint(found.hint)
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
