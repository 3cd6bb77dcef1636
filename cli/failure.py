"""What an exception means to the user: an exit code and one line (docs/exit-codes.md)."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from .lib.errors import MAX_ECHO, MAX_WHAT, NtoolError, shorten

USAGE = 2
NOT_FOUND = 4
ENVIRONMENT = 6
BUG = 70
INTERRUPTED = 130
READER_CLOSED = 141

_ENVIRONMENT_ERRORS = frozenset(
    getattr(errno, name)
    for name in (
        "EACCES", "EBUSY", "EDQUOT", "EFBIG", "EIO", "ELOOP", "EMFILE", "ENAMETOOLONG", "ENFILE",
        "ENODEV", "ENOMEM", "ENOSPC", "ENOTEMPTY", "ENXIO", "EPERM", "EROFS", "ESTALE",
        "ETIMEDOUT", "ETXTBSY", "EXDEV",
    )
    if hasattr(errno, name)
)  # fmt: skip
_ENVIRONMENT_CLASSES = (
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    FileExistsError,
    ConnectionError,
    TimeoutError,
)


@dataclass(frozen=True)
class Failure:
    """Why a command ends.

    Attributes:
        code: exit code.
        message: one line, or "" where there is nothing to say.
        hint: a second line, or None.
        bug: it should not have happened; the traceback is for us.
    """

    code: int
    message: str = ""
    hint: str | None = None
    bug: bool = False


def failure(error: BaseException) -> Failure:
    """The failure that an exception stands for."""
    if isinstance(error, NtoolError):
        return Failure(error.exit_code, error.message, error.hint)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
        return Failure(code, error.code if isinstance(error.code, str) else "")
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED)
    if isinstance(error, BrokenPipeError):
        return Failure(READER_CLOSED)
    if type(error).__module__.startswith(("click", "typer")):
        return _of_click(error)
    if isinstance(error, MemoryError):
        return Failure(ENVIRONMENT, "not enough memory")
    if isinstance(error, ModuleNotFoundError) and not (error.name or "ntool").startswith("ntool"):
        name = (error.name or "").split(".")[0]
        return Failure(ENVIRONMENT, f"Python package '{name}' is not installed")
    if isinstance(error, OSError):
        what = f"{shorten(str(error.filename), MAX_WHAT)}: " if error.filename else ""
        text = f"{what}{error.strerror or error}"
        if isinstance(error, FileNotFoundError):
            return Failure(NOT_FOUND, text)
        if isinstance(error, _ENVIRONMENT_CLASSES) or error.errno in _ENVIRONMENT_ERRORS:
            return Failure(ENVIRONMENT, text)
    return Failure(BUG, f"bug in ntool: {type(error).__name__}: {error}", bug=True)


def _of_click(error: BaseException) -> Failure:
    """click's exceptions: wrong use is 2, Abort is Ctrl-C at a prompt, Exit carries its code."""
    name = type(error).__name__
    if name == "Exit":
        return Failure(int(getattr(error, "exit_code", 0)))
    if name == "Abort":
        return Failure(INTERRUPTED)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    # click repeats the word that it did not understand, however long
    text = shorten(text, 2 * MAX_ECHO)
    return Failure(USAGE, text, f"{context.command_path} --help" if context else None)
