"""What a reader of headers returns; a file that cannot be opened is a problem in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import SourceNotFound
from .folder import NotReadable
from .regular_file import NotRegular
from .tensor import Problem, Tensor

MAX_PROBLEMS = 1000
"""Findings that are listed of one file; a file made to be wrong could have millions."""


@dataclass
class Header:
    """What the header of one file says, whatever its format.

    Attributes:
        file: name for records, relative to the checkpoint.
        tensors: the sound ones, in offset order.
        unsound: names that the header gives and that are not in `tensors`.
        cut: those of `unsound` whose entries are whole, but the file ends before their payload
            does.
        metadata: `__metadata__` of safetensors (strings), key/value pairs of other formats.
        problems: everything wrong with the file.
        nbytes: size of the file.
        bytes_read: bytes read of it.
        stamp: its size and time of change in ns, of a local file.
    """

    file: str
    tensors: list[Tensor] = field(default_factory=list)
    unsound: list[str] = field(default_factory=list)
    cut: list[Tensor] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nbytes: int = 0
    bytes_read: int = 0
    stamp: tuple[int, int] | None = None

    def broken(self, code: str, message: str, name: str | None = None) -> None:
        """Note that the file breaks its format; after MAX_PROBLEMS only that there are more."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(code, message, file=self.file, name=name, malformed=True))
        elif len(self.problems) == MAX_PROBLEMS:
            message = f"more problems than the {MAX_PROBLEMS} that are listed"
            self.problems.append(Problem("more-problems", message, file=self.file, malformed=True))


@contextmanager
def noting_failures(header: Header) -> Iterator[None]:
    """Turn the failure to open or read a file into a problem of its header."""
    file = header.file
    try:
        yield
    except NotReadable as e:
        header.broken(e.code, e.reason)
    except NotRegular as e:
        header.broken("not-regular-file", e.message.removeprefix(f"{file}: "))
    except SourceNotFound as e:
        header.broken("missing-shard", e.message.removeprefix(f"{file}: "))
    except OSError as e:
        header.broken("unreadable", f"cannot be read: {e.strerror or e}")
