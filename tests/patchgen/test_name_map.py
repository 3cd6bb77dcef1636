"""Name maps: one pass, longest key first, nothing doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from ntool.lib.patchgen.name_map import ChangedLiteral, Doubled, mapped

from .projects import findings, make_project


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        ("A", {"A": "AB"}, "AB"),
        ("AB + A", {"A": "AB"}, "AB + AB"),
        ("A.A_x", {"A": "AB"}, "AB.AB_x"),
        ("Qwen3VLModel(Qwen3VLMoeModel)", {"Qwen3VL": "Qwen3VLMoe"},
         "Qwen3VLMoeModel(Qwen3VLMoeModel)"),
        ("a + b", {"a": "b", "b": "a"}, "b + a"),
        ("ab + a", {"a": "x", "ab": "y"}, "y + x"),
        ("xA + A", {"A": "xA"}, "xA + xA"),
        ("xAx + A", {"A": "xAx"}, "xAx + xAx"),
        ("A", {"A": "A"}, "A"),
        ("x", {"A": "B"}, "x"),
        ("A", {}, "A"),
        ("a.c", {"a.c": "d", "a": "e"}, "d"),
    ],
)  # fmt: skip
def test_map(text: str, pairs: dict[str, str], expected: str) -> None:
    assert mapped(text, tuple(pairs.items())).text == expected


def test_what_is_said() -> None:
    text = '# A and AB\ndef f():\n    """A AB."""\n    return f"{A}A#A", AB, "x"  # AB\n'
    result = mapped(text, (("A", "AB"),))
    assert result.text == (
        '# AB and AB\ndef f():\n    """AB AB."""\n    return f"{AB}AB#AB", AB, "x"  # AB\n'
    )
    assert result.doubled == (
        Doubled("comment", "AB", "ABB"),
        Doubled("string", "AB", "ABB"),
        Doubled("code", "AB", "ABB"),
    )
    assert result.literals == (ChangedLiteral("A AB.", "AB AB."), ChangedLiteral("A#A", "AB#AB"))


def test_findings_and_the_new_name(tmp_path: Path) -> None:
    """The definition is renamed after the map, which may have changed its name."""
    config = """
def make_A(x=None):
    return make_A, "A"
config.replace_function("f", replacement=make_A, name_map={"A": "B"})
"""
    root = make_project(tmp_path / "p", "def f(x=None): return 1\n", config)
    (found,) = findings(root)
    assert (found["code"], found["old"], found["new"]) == ("map-changed-literal", "A", "B")
    assert found["severity"] == "info"
    from .projects import generated

    assert 'def f(x=None):\n    return f, "B"\n' in generated(root)
