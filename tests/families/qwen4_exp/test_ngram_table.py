from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.errors import InputError
from ntool.lib.families.qwen4_exp.config import read_config
from ntool.lib.families.qwen4_exp.ngram_table import (
    hash_buffers,
    head_sizes,
    is_prime,
    multipliers,
    rows_of,
    shard_rows,
    shards,
    table_rows,
)
from ntool.lib.families.values import Values

DATA = Path(__file__).parents[2] / "data"
NGRAM = DATA / "qwen4-exp" / "ngram"
PRIMES = json.loads((NGRAM / "primes.json").read_text())["cases"]
MULTIPLIERS = json.loads((NGRAM / "multipliers.json").read_text())["cases"]
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


@pytest.mark.parametrize("case", MULTIPLIERS, ids=str)
def test_multipliers_of_the_goldens(case: dict[str, Any]) -> None:
    found = multipliers(case["vocab_size"], case["ngram_size"], case["ple_index"], case["seed"])
    assert found == case["multipliers"]
    if case["vocab_size"]:  # the hash stays in int64
        assert max(found) * (case["vocab_size"] - 1) < 2**63


def test_buffers_of_the_published_layer() -> None:
    config = json.loads((DATA / "census" / "fp8-full.config.json").read_text())
    text = read_config(config).text
    [layer] = next(c for c in PRIMES if c["base"] == 20_000_000)["layers"]
    assert hash_buffers(text, 0) == {
        "layer_multipliers": [23703573157769, 20109073645365, 8052911324071],
        "ngram_heads_vocab_sizes": layer["sizes"],
        "ngram_heads_offsets": layer["offsets"],
    }
    assert rows_of(text, 0) == layer["padded_128"]


def test_buffers_of_a_second_layer() -> None:
    """Its primes follow those of the first one."""
    text = read_config(json.loads((DATA / "qwen4-exp" / "text" / "config.json").read_text())).text
    layers = next(c for c in PRIMES if (c["base"], c["heads"]) == (53, 4))["layers"]
    for place, layer in enumerate(layers[:2]):
        buffers = hash_buffers(text, place)
        assert buffers["ngram_heads_vocab_sizes"] == layer["sizes"]
        assert buffers["ngram_heads_offsets"] == layer["offsets"]
        assert rows_of(text, place) == layer["padded_32"]
        wanted = next(c for c in MULTIPLIERS if (c["vocab_size"], c["ple_index"], c["seed"])
                      == (120, place, 1234))  # fmt: skip
        assert buffers["layer_multipliers"] == wanted["multipliers"]


def test_primes() -> None:
    """Against a sieve; and composites that single bases take for primes."""
    sieve = bytearray([1]) * 20_000
    sieve[:2] = b"\0\0"
    for d in range(2, 142):
        sieve[d * d :: d] = bytes(len(sieve[d * d :: d]))
    assert [n for n in range(20_000) if is_prime(n)] == [n for n, p in enumerate(sieve) if p]
    strong = (2047, 1_373_653, 25_326_001, 3_215_031_751)  # for 2; 2, 3; 2, 3, 5; 2, 3, 5, 7
    assert not any(map(is_prime, strong))
    assert is_prime(2**32 + 15) and is_prime(2**31 - 1) and not is_prime(2**32 + 1)


@pytest.mark.parametrize("rows, parts, count", [(10, 4, 4), (9, 4, 3), (3, 8, 3), (12, 5, 4)])
def test_the_last_shards_may_be_missing(rows: int, parts: int, count: int) -> None:
    """Shards of ceil(rows / parts) rows: 9 rows in 4 parts are 3 + 3 + 3."""
    assert shards(rows, parts) == count
    each = shard_rows(rows, parts)
    assert (len(each), sum(each)) == (count, rows) and min(each) > 0 and each[-1] <= each[0]


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
    assert time.monotonic() - started < 5
