"""That each golden catches the mistakes it is there for: each is made, and the golden must differ.

A golden that no test compares, or whose inputs cannot show a mistake, shows here. What the graphs
are compared with is the same set of goldens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from .decoder_cases import (
    CAUGHT,
    CLOSE,
    DATA,
    decoder_of,
    deviations,
    golden,
    row_differences,
    run_call,
    step_goldens,
)
from .mistake_table import ROW_IDS, TABLE, Change
from .reference_layers import Array

RUNS = {
    "main": ("text", ""),
    "leftpad": ("text", "leftpad_"),
    "short": ("text", "short_"),
    "image-text": ("image-text", ""),
}
PAIRS = [(mistake, named) for mistake, row in TABLE.items() for named in row.caught_by]
GOLDENS = sorted({named for _, named in PAIRS})


def make(m: pytest.MonkeyPatch, *changes: Change) -> None:
    for change in changes:
        m.setattr(change.module, change.name, change.function)


def calls(run: str, stage: str) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Outputs and golden of each call: the prefill, or every decode step after it.

    Inputs are the golden ones, the caches are the run's own.
    """
    checkpoint, prefix = RUNS[run]
    decoder = decoder_of(checkpoint)
    g = golden(f"{checkpoint}/golden/{prefix}prefill")
    outputs, state = run_call(decoder, g, None)
    if stage == "prefill":
        yield outputs, g
        return
    for step in step_goldens(golden(f"{checkpoint}/golden/{prefix}decode")):
        outputs, state = run_call(decoder, step, state)
        yield outputs, step


def measured(named: str) -> float:
    """The largest deviation of a golden `RUN:STAGE.ROLE`, over layers and calls."""
    run, _, rest = named.partition(":")
    stage, _, role = rest.partition(".")
    found = [
        value
        for outputs, g in calls(run, stage)
        for name, value in deviations(outputs, g).items()
        if name.rpartition(".")[2] == role
    ]
    return max(found)


@pytest.mark.parametrize("named", GOLDENS)
def test_without_a_mistake(named: str) -> None:
    assert measured(named) < CLOSE


@pytest.mark.parametrize(("mistake", "named"), PAIRS)
def test_mistake(mistake: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(monkeypatch, *TABLE[mistake].changes)
    # Some mistakes let a state grow without bound: not finite is caught too.
    with np.errstate(over="ignore", invalid="ignore"):
        assert measured(named) > CAUGHT


@pytest.mark.parametrize("mistake", ROW_IDS)
def test_mistake_in_row_ids(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, differences = ROW_IDS[mistake]
    make(monkeypatch, change)
    assert row_differences() == differences


def test_every_call_of_the_row_ids_is_counted() -> None:
    cases = json.loads((DATA / "ngram" / "rows.json").read_text())["cases"]
    sequences = [sequence for case in cases for sequence in case["sequences"]]
    assert (sum(len(s["calls"]) for s in sequences), len(sequences)) == (48, 25)
