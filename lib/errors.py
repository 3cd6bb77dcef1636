"""The ways a command can fail, one class for each person whose problem it is.

Exit codes are a contract (docs/exit-codes.md): scripts branch on them.
"""

from __future__ import annotations

import unicodedata


def printable(text: object) -> str:
    """Text from a file, made safe for a terminal and for one line.

    Control characters (C0, C1, DEL), line and paragraph separators, bidirectional controls and lone
    surrogates are written as `\\xNN` or `\\uNNNN`, so that a tensor name cannot colour or reorder a
    terminal or forge a line of output.
    """
    s = str(text)
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


class NtoolError(Exception):
    """Base of all expected failures.

    Args:
        what: the thing and what is wrong with it: "model.safetensors: tensor 'a': size".
        found, expected: when both or one are known, appended as ": found X, expected Y".
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
            parts.append(f"found {printable(found)}")
        if expected is not None:
            parts.append(f"expected {printable(expected)}")
        self.message = printable(what) + (": " + ", ".join(parts) if parts else "")
        self.hint = printable(hint) if hint else None
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
