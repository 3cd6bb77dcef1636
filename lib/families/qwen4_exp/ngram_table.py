"""Geometry of the n-gram embedding table, and the numbers of its hash. Standard library only."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from ..values import Values

if TYPE_CHECKING:
    from .config import Text

MAX_BASE = 1 << 32
"""Largest `ngram_vocab_size_base` that is believed; published: 20,000,000."""
MAX_HEADS = 512
"""Most heads of all layers together; published: 16."""
MAX_SEED = (1 << 63) - 1
"""Largest seed: what int64 holds."""
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_WITNESSES, _WITNESSED = (2, 3, 5, 7, 11), 2_152_302_898_747
"""Bases of the primality test, and the least composite that they take for a prime."""


def is_prime(n: int) -> bool:
    """Whether n is a prime, by the Miller-Rabin test; n is at most about MAX_BASE.

    The bases decide every n below _WITNESSED (Jaeschke, "On strong pseudoprimes to several bases",
    1993).
    """
    assert n < _WITNESSED
    if n < 2 or n in _WITNESSES:
        return n > 1
    if any(n % p == 0 for p in _WITNESSES):
        return False
    odd, halvings = n - 1, 0
    while odd % 2 == 0:
        odd, halvings = odd // 2, halvings + 1
    for base in _WITNESSES:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(halvings - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


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
    return _rows(head_sizes(base, count * (layer + 1))[count * layer :], unit)


def _rows(sizes: list[int], unit: int) -> int:
    return -(-sum(sizes) // unit) * unit


def sizes_of(text: Text, place: int) -> list[int]:
    """Vocabulary sizes of the heads of the place-th n-gram layer, counted from zero."""
    return head_sizes(text.base, text.heads * (place + 1))[text.heads * place :]


def rows_of(text: Text, place: int) -> int:
    """Rows of the table of the place-th n-gram layer."""
    return _rows(sizes_of(text, place), text.divisible)


def _splitmix(x: int) -> int:
    """One step of the splitmix64 generator, modulo 2^64."""
    x = (x + _GOLDEN) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def multipliers(V: int, n: int, place: int, seed: int) -> list[int]:
    """Odd multipliers of the n tokens of an n-gram: 2 (splitmix(seed_i) mod half) + 1.

    With half = floor(floor((2^63 - 1) / V) / 2): a token times its multiplier stays below 2^63.

    Args:
        V: words of the vocabulary.
        place: of the layer among the n-gram layers, from zero.
    Source: format notes, "Multipliers".
    """
    half = max(1, ((1 << 63) - 1) // max(V, 1) // 2)
    seeds = (seed + 10007 * place + _GOLDEN * (i + 1) for i in range(n))
    return [2 * (_splitmix(x & _WORD) % half) + 1 for x in seeds]


def hash_buffers(text: Text, place: int) -> dict[str, list[int]]:
    """The three stored buffers of the place-th n-gram layer, derived from the config.

    Returns:
        layer_multipliers [n]; ngram_heads_vocab_sizes, ngram_heads_offsets [(n - 1) * hp], the
        running sums of the sizes.
    """
    sizes = sizes_of(text, place)
    return {
        "layer_multipliers": multipliers(text.V, text.n, place, text.seed),
        "ngram_heads_vocab_sizes": sizes,
        "ngram_heads_offsets": [0, *accumulate(sizes[:-1])],
    }


def shards(rows: int, parts: int) -> int:
    """Number of shards of a table: each has ceil(rows / parts) rows, the last ones may be missing.

    Args:
        parts: `split_ngram_parts` of the config.
    """
    return -(-rows // -(-rows // parts))


def shard_rows(rows: int, parts: int) -> list[int]:
    """Rows of each shard of a table, in their order; the last one may be shorter."""
    height, count = -(-rows // parts), shards(rows, parts)
    return [height] * (count - 1) + [rows - height * (count - 1)]
