from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.errors import InputError
from ntool.lib.families.qwen4_exp.ngram_table import head_sizes, shards, table_rows
from ntool.lib.families.values import Values

PRIMES = json.loads(
    (Path(__file__).parents[2] / "data" / "qwen4-exp" / "ngram" / "primes.json").read_text()
)["cases"]
PUBLISHED = {
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
}


def values(**changes: Any) -> Values:
    return Values({**PUBLISHED, **changes}, "config.json")


@pytest.mark.parametrize("case", PRIMES, ids=[str(c["base"]) for c in PRIMES])
def test_sizes_of_the_goldens(case: dict[str, Any]) -> None:
    layers = case["layers"]
    found = head_sizes(case["base"], case["heads"] * len(layers))
    for p, layer in enumerate(layers):
        assert found[p * case["heads"] : (p + 1) * case["heads"]] == layer["sizes"]


def test_published_rows_and_shards() -> None:
    assert table_rows(values(), 0) == 320_001_536
    assert shards(320_001_536, 128) == 128


@pytest.mark.parametrize("rows, parts, count", [(10, 4, 4), (9, 4, 3), (3, 8, 3), (12, 5, 4)])
def test_the_last_shards_may_be_missing(rows: int, parts: int, count: int) -> None:
    """Shards of ceil(rows / parts) rows: 9 rows in 4 parts are 3 + 3 + 3."""
    assert shards(rows, parts) == count


@pytest.mark.parametrize(
    "change, name",
    [
        ({"ngram_size": 1}, "ngram_size"),
        ({"ngram_vocab_size_base": 2**40}, "ngram_vocab_size_base"),
        ({"heads_per_ngram": None}, "heads_per_ngram"),
        ({"heads_per_ngram": 10_000}, "heads_per_ngram"),
    ],
)
def test_values_that_no_table_has(change: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=name):
        table_rows(values(**change), 0)


def test_the_largest_table_is_found_in_seconds() -> None:
    started = time.monotonic()
    table_rows(values(ngram_vocab_size_base=2**32, heads_per_ngram=256), 0)
    assert time.monotonic() - started < 10
