"""Lists of names without some of them: what stays keeps its comments."""

from __future__ import annotations

import ast
from itertools import combinations

import pytest

from ntool.lib.patchgen.tree_edits import without_exports, without_imports

LINES = [("a",), ("b", "c"), ("d",), ("e",)]


def listed(item: str, opening: str, closing: str, comma: bool) -> str:
    """A list over several lines, with a comment above each line and one behind it."""
    out = [f"{opening}  # open\n"]
    for line in LINES:
        names = ", ".join(item.format(n) for n in line)
        end = "," if comma or line != LINES[-1] else ""
        out += [f"    # above {''.join(line)}\n", f"    {names}{end}  # behind {''.join(line)}\n"]
    return "".join([*out, f"    # last\n{closing}\n"])


SUBSETS = [set(c) for n in range(1, 5) for c in combinations("abcde", n)]


@pytest.mark.parametrize("comma", [True, False])
@pytest.mark.parametrize(
    ("item", "opening", "closing"),
    [("{}", "from m import (", ")"), ('"{}"', "__all__ = [", "]"), ('"{}"', "__all__ = (", ")")],
)
def test_comments_of_what_stays(item: str, opening: str, closing: str, comma: bool) -> None:
    text = listed(item, opening, closing, comma)
    for gone in SUBSETS:
        if opening.startswith("from"):
            left = without_imports(text, lambda m, n, b, g=gone: n in g, "here", nested=True)  # type: ignore[misc]
            (node,) = ast.parse(left).body
            assert isinstance(node, ast.ImportFrom)
            names = [a.name for a in node.names]
        else:
            left = without_exports(text, gone, "here")
            (assigned,) = ast.parse(left).body
            assert isinstance(assigned, ast.Assign)
            names = ast.literal_eval(assigned.value)
        assert list(names) == [n for n in "abcde" if n not in gone]
        for line in LINES:
            word = "".join(line)
            assert (f"# behind {word}\n" in left) is not (set(line) <= gone), (gone, left)
            assert (f"# above {word}\n" in left) is not (set(line) <= gone), (gone, left)
        assert "# open\n" in left and "# last\n" in left
        assert not [x for x in left.split("\n") if x != x.rstrip()]


def test_names_on_the_line_of_the_bracket() -> None:
    text = "from m import (a,  # about a\n     b,  # about b\n     c)  # about all\n"

    def without(*names: str) -> str:
        return without_imports(text, lambda m, n, b: n in names, "here", nested=True)

    assert without("a") == text.replace("a,  # about a", "")
    assert without("b") == text.replace("     b,  # about b\n", "")
    assert without("a", "b") == "from m import (\n     c)  # about all\n"
    assert "# about a\n" in without("c") and "# about b\n" in without("c")
