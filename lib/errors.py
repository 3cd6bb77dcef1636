"""The ways a command can fail, one class for each person whose problem it is.

Exit codes are a contract (docs/exit-codes.md): scripts branch on them.
"""

from __future__ import annotations

import re
import unicodedata

MAX_ECHO = 200
"""Characters of a found or expected value that a message repeats."""
MAX_WHAT = 2000
"""Characters of what a message is about: a path may have many."""


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters; of a longer text the beginning, and `...`."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


_ADDRESS = re.compile(
    r"""([A-Za-z][A-Za-z0-9+.-]*://)            # scheme
        (?:[^\s/?\#'"]*@)?                      # user and password
        ([^\s?\#'"]*)
        (?:[?\#]\S*?(?=[:;,.)'"\]]*(?:\s|$)))?  # query, up to the sentence around it
    """,
    re.VERBOSE,
)


def without_secrets(text: str) -> str:
    """Text whose addresses have lost user, password and query: what signs a request is a secret."""
    return _ADDRESS.sub(r"\1\2", text) if "://" in text else text


def printable(text: object) -> str:
    """Text from a file, made safe for a terminal and for one line.

    Control characters (C0, C1, DEL), line and paragraph separators, bidirectional controls and lone
    surrogates are written as `\\xNN` or `\\uNNNN`, so that a tensor name cannot colour or reorder a
    terminal or forge a line of output.
    """
    try:
        s = str(text)
    except Exception:  # an exception of a stranger's code may not say what it is
        s = type(text).__name__
    if s.isascii() and s.isprintable():
        return s
    out = []
    for c in s:
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            n = ord(c)
            out.append(f"\\x{n:02x}" if n < 256 else f"\\u{n:04x}" if n < 65536 else f"\\U{n:08x}")
        else:
            out.append(c)
    return "".join(out)


def _echo(value: object, limit: int) -> str:
    """A value made printable and cut; cut first as well, so that a huge one costs nothing."""
    try:
        text = str(value)
    except ValueError:  # an integer beyond the interpreter's limit of digits
        text = "an integer of thousands of digits"
    return shorten(printable(without_secrets(shorten(text, limit))), limit)


class NtoolError(Exception):
    """Base of all expected failures.

    Args:
        what: the thing and what is wrong with it: "model.safetensors: tensor 'a': size".
        found, expected: when both or one are known, appended as ": found X, expected Y", each cut
            to MAX_ECHO characters: a value of a file or of the command line may be of any length.
        hint: one line that says what to do, or None.
    """

    exit_code = 70

    def __init__(
        self,
        what: str,
        *,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        parts = []
        if found is not None:
            parts.append(f"found {_echo(found, MAX_ECHO)}")
        if expected is not None:
            parts.append(f"expected {_echo(expected, MAX_ECHO)}")
        self.message = _echo(what, MAX_WHAT) + (": " + ", ".join(parts) if parts else "")
        self.hint = _echo(hint, MAX_WHAT) if hint else None
        super().__init__(self.message)


class CheckFailed(NtoolError):
    """A check ran to its end and found a difference."""

    exit_code = 1


class UsageProblem(NtoolError):
    """The command line asks for something that contradicts itself."""

    exit_code = 2


class InputError(NtoolError):
    """A file or stream is malformed or truncated."""

    exit_code = 3


class SourceNotFound(NtoolError):
    """No such file, repository, tensor or component."""

    exit_code = 4


class Unsupported(NtoolError):
    """Well formed, but ntool does not do it."""

    exit_code = 5


class EnvironmentProblem(NtoolError):
    """Provider, package, memory, disk or network."""

    exit_code = 6
