"""Q56: what has not been shown is said to be so on the family's page, and claimed nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ntool import completion
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.families import gguf

from ...conftest import DATA

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TITLE = "## Not claimed"
UNPROVED = (
    *("full-checkpoint parity", "how fast", "native FP8", "GGUF payloads", "video", "MTP"),
    *("GenAI", "paged cache"),
)
CLAIM = re.compile(
    r"\b(videos?|genai|paged|native fp8|parity)\b|\bMTP\b[^.]*\b(runs?|executed?|exported)\b"
    r"|\b(runs?|executes?|exports?) [^.]*\bMTP\b",
    re.IGNORECASE,
)
NEGATION = re.compile(
    r"\b(not|no|never|none|nothing|without|cannot|fails?|refused?|refuses|left out|stays? out)\b",
    re.IGNORECASE,
)


def claims(text: str) -> list[str]:
    """Sentences that speak of something unproved and deny nothing. Cells of tables are sentences,
    names of fields (`native_fp8`) are not words."""
    text = re.sub(r"`[^`]*`", "", text)
    sentences = re.split(r"(?<=[.:;])\s|\n\s*\n|\n(?=[-|#])|\|", text)
    return [" ".join(s.split()) for s in sentences if CLAIM.search(s) and not NEGATION.search(s)]


def test_the_page_says_what_is_not_claimed() -> None:
    page = (ROOT / "docs" / "qwen4-exp.md").read_text()
    assert page.count(TITLE) == 1
    section = page.split(TITLE)[1].split("\n## ")[0]
    for words in UNPROVED:
        assert words in " ".join(section.split()), words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_page_claims_it(page: Path) -> None:
    text = page.read_text()
    before, _, rest = text.partition(TITLE)
    assert claims(before) == []
    if rest:
        assert claims("\n\n## ".join(rest.split("\n## ")[1:])) == []


def test_no_help_claims_it() -> None:
    tree: Any = completion.tree()
    told = [repr(command) for command in tree.commands]
    assert len(told) > 5 and any("checkpoint" in text for text in told)
    assert [s for text in told for s in claims(text)] == []


@pytest.mark.parametrize(
    "text",
    ["Pictures and video work.", "The MTP layer runs as a draft.", "Takes native FP8.",
     "It has a paged cache.", "Exports the MTP layer."],
)  # fmt: skip
def test_claims_are_noticed(text: str) -> None:
    assert claims(f"No limit.\n\n{text}\nNothing else.") == [text]
    assert claims(f"| not x | {text[:-1]} | not y |") == [text[:-1]]
    assert claims(f"{text[:-1]}, which is not provided.") == []


def test_records_claim_no_execution_of_gguf() -> None:
    source = DATA / "qwen4-exp" / "gguf" / "tiny-qwen4exp-00001-of-00003.gguf"
    tiny = open_checkpoint(str(source))
    for tensors in (tiny.tensors.values(), []):
        (record,), _ = gguf.described(tiny.gguf, tensors)
        assert record["payload"]["convertible"] is False and record["payload"]["reasons"]
