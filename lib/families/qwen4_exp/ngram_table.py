"""Geometry of the n-gram embedding table: head sizes, rows, shards. Standard library only."""

from __future__ import annotations

from math import isqrt

from ..values import Values

MAX_BASE = 1 << 32
"""Largest `ngram_vocab_size_base` that is believed; published: 20,000,000."""
MAX_HEADS = 512
"""Most heads of all layers together; published: 16."""
MAX_SEED = (1 << 63) - 1


def is_prime(n: int) -> bool:
    """Whether n is a prime, by trial division: n is at most about MAX_BASE."""
    if n < 4:
        return n > 1
    return n % 2 != 0 and all(n % d for d in range(3, isqrt(n) + 1, 2))


def head_sizes(base: int, count: int) -> list[int]:
    """The first `count` primes that are >= `base`: vocabulary sizes of the n-gram heads.

    Source: format notes, "Table geometry": head h of the p-th layer has prime p * heads + h + 1.
    """
    sizes: list[int] = []
    n = max(base, 2)
    while len(sizes) < count:
        if is_prime(n):
            sizes.append(n)
        n += 1
    return sizes


def heads(text: Values) -> int:
    """Number of n-gram heads of a layer: (n - 1) * heads_per_ngram.

    Raises:
        InputError: a value is missing or impossible.
    """
    return (text.size("ngram_size", lowest=2) - 1) * text.size("heads_per_ngram")


def table_rows(text: Values, layer: int) -> int:
    """Rows of the table of the layer-th n-gram layer: the sizes' sum, rounded up.

    Raises:
        InputError: a value is missing or impossible.
    """
    count = heads(text)
    base = text.size("ngram_vocab_size_base", most=MAX_BASE)
    unit = text.size("make_ngram_vocab_size_divisible_by", 128)
    if count * (layer + 1) > MAX_HEADS:
        where = "ngram_size, heads_per_ngram, ple_layer_ids"
        raise text.wrong(where, f"{count * (layer + 1)} heads", f"at most {MAX_HEADS}")
    total = sum(head_sizes(base, count * (layer + 1))[count * layer :])
    return -(-total // unit) * unit


def shards(rows: int, parts: int) -> int:
    """Number of shards of a table: each has ceil(rows / parts) rows, the last ones may be missing.

    Args:
        parts: `split_ngram_parts` of the config.
    """
    return -(-rows // -(-rows // parts))
