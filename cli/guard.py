"""Turns every way a command can end into a message and an exit code (docs/exit-codes.md)."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from typing import NoReturn

INTERRUPTED = 130
READER_CLOSED = 141
BUG = 70


def run(arguments: list[str]) -> int:
    """Run ntool with these arguments and return the exit code. Nothing is raised."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            code = _invoke(arguments)
        except BrokenPipeError:
            code = _reader_closed()
        except BaseException as e:
            code = report(e)
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            code = _reader_closed()
        except OSError as e:
            code = report(e)
            _discard_stdout()
    except KeyboardInterrupt:
        code = INTERRUPTED
    return code


def _invoke(arguments: list[str]) -> int:
    from .app import application

    try:
        result = application()(args=arguments, prog_name="ntool", standalone_mode=False)
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # click turns a closed pipe into exit 1
            raise e.__context__ from None
        raise
    return result if isinstance(result, int) else 0


def report(error: BaseException) -> int:
    """Say on standard error what went wrong, in one line, and return the exit code for it."""
    from .console import console
    from .lib.errors import NtoolError

    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1 if error.code else 0
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, NtoolError):
        if console.verbose:
            traceback.print_exception(error)
        console.say(error.message)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, MemoryError):
        console.say("not enough memory")
        return 6
    if isinstance(error, OSError):
        known = _os_error(error)
        if known is not None:
            console.say(known[1])
            return known[0]
    if type(error).__module__.startswith(("click", "typer")):
        return _usage(error)
    console.say(f"bug in ntool: {type(error).__name__}: {error}")
    traceback.print_exception(error)
    return BUG


def _usage(error: BaseException) -> int:
    """click's own exceptions: wrong use is 2, Abort is Ctrl-C at a prompt, Exit carries its code."""
    from .console import console

    name = type(error).__name__
    if name == "Exit":
        return int(getattr(error, "exit_code", 0))
    if name == "Abort":
        return INTERRUPTED
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    if context is not None and context.info_name != "ntool":
        console.command = context.info_name or ""
    console.say(message)
    if context is not None:
        print(f"hint: {context.command_path} --help", file=sys.stderr)
    return 2


def _os_error(error: OSError) -> tuple[int, str] | None:
    what = f"{error.filename}: " if error.filename else ""
    text = f"{what}{error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        return 4, text
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError | FileExistsError):
        return 6, text
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENAMETOOLONG):
        return 6, text
    return None


def _reader_closed() -> int:
    """The reader of our output went away (`| head`): say nothing, and let no later flush complain."""
    _discard_stdout()
    return READER_CLOSED


def _discard_stdout() -> None:
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):
        pass


def _terminate(signum: int, frame: object) -> NoReturn:
    """SIGTERM unwinds the stack, so that temporary files are removed, and exits with 128 + 15."""
    raise SystemExit(128 + signum)
