"""Prompts, token ids and conversations that a user gives in files or on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..checkpoint.regular_file import read_given
from ..checkpoint.strict_json import decode, parse
from ..errors import InputError

MAX_PROMPT = 16 << 20
"""Bytes of a prompt, token or messages file; a model's context holds far less."""


def read_text(path: Path) -> str:
    """The text of a file, or of standard input for `-`, without its last line end.

    Raises:
        SourceNotFound: no such file.
        InputError: not UTF-8, not a file or pipe, or larger than MAX_PROMPT.
    """
    try:
        return read_given(str(path), MAX_PROMPT).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not UTF-8 at byte {e.start}") from e


def parse_tokens(text: str) -> tuple[int, ...]:
    """Token ids from `1,2,3` or `@FILE` (commas or white space between them).

    Raises:
        InputError: anything that is not a plain whole number.
    """
    if text.startswith("@"):
        text = read_text(Path(text[1:]))
    return parse_row(text)


def parse_row(text: str) -> tuple[int, ...]:
    """Token ids of one sequence, commas or white space between them.

    Raises:
        InputError: anything that is not a plain whole number.
    """
    words = re.split(r"\s*,\s*|\s+", text.strip())  # two commas have an empty word between them
    for word in words:
        if not re.fullmatch(r"[0-9]{1,18}", word, re.ASCII):
            raise InputError("--tokens: token id", found=repr(word[:40]), expected="a whole number")
    return tuple(int(w) for w in words)


def parse_rows(text: str) -> list[tuple[int, ...]]:
    """Token ids of several sequences: `1,2;3,4`, or the lines of `@FILE` that are not empty.

    Raises:
        InputError: anything that is not a plain whole number, or a row without ids.
    """
    if not text.startswith("@"):
        return [parse_row(row) for row in text.split(";")]
    lines = read_text(Path(text[1:])).splitlines()
    rows = [row for line in lines for row in line.split(";") if line.strip()]
    return [parse_row(row) for row in rows or [""]]


def read_list(path: Path, what: str) -> list[Any]:
    """A JSON list of one or more things from a file, or from standard input for `-`.

    Raises:
        SourceNotFound, InputError: no such file; not that.
    """
    text, fault = decode(read_given(str(path), MAX_PROMPT))
    value, faults = (None, [fault]) if text is None else parse(text)
    if faults and faults[0] is not None:
        raise InputError(f"{path}: {faults[0].message}")
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{path}", found=json.dumps(value)[:80], expected=f"a JSON list of one or more {what}"
        )
    return value
