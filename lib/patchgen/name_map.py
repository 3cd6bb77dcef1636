"""Name maps: text for text in a replacement, in one pass, never where the new name already is."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ..errors import InputError
from .source import literals, parse, split_lines


@dataclass(frozen=True)
class Doubled:
    """A place where plain replacement would have doubled a suffix: `found` became `would_be`."""

    place: str  # comment, string, code
    found: str
    would_be: str


@dataclass(frozen=True)
class ChangedLiteral:
    """A string that the map changed, docstrings and pieces of f-strings included."""

    old: str
    new: str


@dataclass(frozen=True)
class Mapped:
    """Text after a map, and what there is to say about it."""

    text: str
    doubled: tuple[Doubled, ...] = ()
    literals: tuple[ChangedLiteral, ...] = ()


def mapped(text: str, pairs: tuple[tuple[str, str], ...]) -> Mapped:
    """The text of a definition with names replaced, the longest key first.

    Args:
        text: Python source of one definition with the comments above it.
        pairs: key -> value. A key is left alone where it stands in what already reads as its value.
    """
    if not pairs:
        return Mapped(text)
    values = dict(pairs)
    keys = sorted(values, key=lambda k: (-len(k), k))
    pattern = re.compile("|".join(map(re.escape, keys)))
    strings, comments = _places(text)
    doubled: dict[Doubled, None] = {}
    out: list[str] = []
    at = 0
    while (match := pattern.search(text, at)) is not None:
        key, start = match[0], match.start()
        value = values[key]
        done = _already(text, key, value, start, at)
        if done is None:
            out += [text[at:start], value]
            at = match.end()
            continue
        first, last = done
        place = _place(start, strings, comments)
        would_be = text[first:start] + value + text[match.end() : last]
        doubled[Doubled(place, text[first:last], would_be)] = None
        out.append(text[at:last])
        at = last
    new = "".join([*out, text[at:]])
    return Mapped(new, tuple(doubled), _changed(text, new))


def _already(text: str, key: str, value: str, start: int, at: int) -> tuple[int, int] | None:
    """Where the text around a key reads as its value: the place of the value, else None."""
    offset = value.find(key)
    while offset >= 0:
        first = start - offset
        if first >= at and text.startswith(value, first) and value != key:
            return first, first + len(value)
        offset = value.find(key, offset + 1)
    return None


def _offsets(text: str) -> list[int]:
    found = [0]
    for line in split_lines(text):
        found.append(found[-1] + len(line))
    return found


def _places(text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Ranges of strings and of comments, in characters."""
    lines, offsets = split_lines(text), _offsets(text)

    def offset(line: int, column: int) -> int:
        return offsets[line - 1] + len(lines[line - 1].encode()[:column].decode())

    strings: list[tuple[int, int]] = []
    for node in literals(parse(text, "a name map")):
        if node.end_lineno is not None:
            first = offset(node.lineno, node.col_offset)
            strings.append((first, offset(node.end_lineno, node.end_col_offset or 0)))
    comments = []
    for number, line in enumerate(lines):
        for match in re.finditer("#", line):
            start = offsets[number] + match.start()
            if not any(a <= start < b for a, b in strings):
                comments.append((start, offsets[number + 1]))
                break
    return strings, comments


def _place(start: int, strings: list[tuple[int, int]], comments: list[tuple[int, int]]) -> str:
    for ranges, name in ((comments, "comment"), (strings, "string")):
        if any(a <= start < b for a, b in ranges):
            return name
    return "code"


def _changed(old: str, new: str) -> tuple[ChangedLiteral, ...]:
    def texts(text: str) -> list[str]:
        return [
            n.value
            for n in ast.walk(parse(text, "a name map"))
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]

    try:
        pairs = list(zip(texts(old), texts(new), strict=True))
    except (InputError, ValueError):  # the map made something else of the code
        return ()
    return tuple(dict.fromkeys(ChangedLiteral(a, b) for a, b in pairs if a != b))
