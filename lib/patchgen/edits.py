"""Changes of a text by the positions of its syntax tree: all else stays as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

from .source import split_lines


class Edit(NamedTuple):
    """Text between two positions (line from 1, column in UTF-8 bytes, as `ast` has them)."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


def over(node: ast.expr | ast.stmt, text: str) -> Edit:
    """An edit that replaces a node."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return Edit(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text)


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits done; they must not overlap."""
    todo = sorted(set(edits), reverse=True)
    if not todo:
        return text
    lines = [line.encode() for line in split_lines(text)]
    for e in todo:
        before = lines[e.line - 1][: e.column]
        after = lines[e.end_line - 1][e.end_column :]
        lines[e.line - 1 : e.end_line] = [before + e.text.encode() + after]
        # later edits lie before this one, so that their lines still have their numbers
    return b"".join(lines).decode()
