"""Each reader is fed with mutations for a moment; `make fuzz` does it for a minute, by coverage."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fuzzing.mutation import run
from .fuzzing.targets import TARGETS, seeds

SECONDS = 5 / len(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_a_verdict(name: str, tmp_path: Path) -> None:
    corpus = seeds(name, str(tmp_path))
    for raw in corpus:
        TARGETS[name](raw)
    count, _ = run(TARGETS[name], corpus, SECONDS, seed=20)
    assert count > 20


def test_a_reader_that_fails_is_noticed() -> None:
    def fragile(raw: bytes) -> None:
        if raw.startswith(b"\0"):
            raise ValueError("fragile")

    with pytest.raises(ValueError, match="fragile") as caught:
        run(fragile, [b"\1abc"], 20, seed=1)
    assert "input: b'\\x00" in caught.value.__notes__[0]
