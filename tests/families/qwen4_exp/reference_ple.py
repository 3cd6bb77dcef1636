"""The PLE of Qwen4-Exp in NumPy, float32: hashes of n-grams, their table, and the injection.

Written from the Qwen4-Exp specification, section 7. Hashes are plain Python integers, token by
token; the rest follows `reference_layers`.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate

import numpy as np

from .reference_layers import (
    Array,
    Weights,
    causal_convolution,
    grouped_norm,
    linear,
    newest,
    sigmoid,
    silu,
)
from .reference_sizes import Ngrams, Sizes

# --- geometry of the table (section 7.1) ----------------------------------------------------------


def is_prime(x: int) -> bool:
    """By trial division: 20 million needs 2,236 odd divisors."""
    if x < 4:
        return x > 1
    return x % 2 == 1 and all(x % d for d in range(3, int(x**0.5) + 2, 2))


@cache
def primes(base: int, count: int) -> tuple[int, ...]:
    """The first primes that are not below base."""
    found: list[int] = []
    x = base
    while len(found) < count:
        if is_prime(x):
            found.append(x)
        x += 1
    return tuple(found)


def head_sizes(c: Ngrams, p: int) -> tuple[int, ...]:
    """Section 7.1: the run of primes of PLE layer number p; no run is used twice."""
    return primes(c.base, (p + 1) * c.heads)[p * c.heads :]


def head_offsets(c: Ngrams, p: int) -> tuple[int, ...]:
    """Section 7.1: the first table row of every head."""
    return tuple(accumulate(head_sizes(c, p), initial=0))[:-1]


def table_rows(c: Ngrams, p: int) -> int:
    """Section 7.1: the sum of the sizes, rounded up to a multiple."""
    return -(-sum(head_sizes(c, p)) // c.divisible) * c.divisible


# --- hashes (sections 7.2 and 7.3) ----------------------------------------------------------------

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(x: int) -> int:
    """Section 7.2, unsigned 64-bit."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def multipliers(c: Ngrams, p: int) -> tuple[int, ...]:
    """Section 7.2: n odd numbers of PLE layer number p."""
    half = max(1, ((2**63 - 1) // max(c.V, 1)) // 2)
    seeds = ((c.seed + 10007 * p + GOLDEN * (i + 1)) & MASK for i in range(c.n))
    return tuple(2 * (splitmix(s) % half) + 1 for s in seeds)


def first_context(c: Ngrams) -> list[int]:
    """Section 7.3: what is before the first token of a row."""
    return [c.eos] * (c.n - 1)


def token_back(c: Ngrams, history: list[int], t: int, d: int) -> int:
    """Section 7.3: the id d places before t; eos before the history, or if any of t-d..t-1 is eos.

    That t itself is eos does not matter.
    """
    if t - d < 0 or c.eos in history[t - d : t]:
        return c.eos
    return history[t - d]


def mix(tokens: list[int], factors: tuple[int, ...]) -> int:
    """Section 7.3: xor of the products."""
    result = 0
    for token, factor in zip(tokens, factors, strict=False):
        result ^= token * factor
    return result


def rows_of_token(c: Ngrams, p: int, history: list[int], t: int) -> list[int]:
    """Section 7.3: the table rows of one token, heads of order 2 first."""
    sizes, offsets, factors = head_sizes(c, p), head_offsets(c, p), multipliers(c, p)
    tokens = [token_back(c, history, t, d) for d in range(c.n)]
    rows = []
    for h in range(c.heads):
        order = 2 + h // c.hp
        rows.append(mix(tokens[:order], factors) % sizes[h] + offsets[h])
    return rows


def row_ids(c: Ngrams, p: int, context: Array, ids: Array) -> tuple[Array, Array]:
    """Section 7.3: ids [B, S] after a context [B, n-1] -> rows [B, S, heads], next context."""
    rows, contexts = [], []
    for before, new in zip(context.tolist(), ids.tolist(), strict=True):
        history = before + new
        rows.append([rows_of_token(c, p, history, c.n - 1 + t) for t in range(len(new))])
        contexts.append(history[len(history) - (c.n - 1) :])
    return np.array(rows, np.int64), np.array(contexts, np.int64)


# --- injection (section 7.4) ----------------------------------------------------------------------


def signed_root(s: Array) -> Array:
    """sign(s) sqrt(max(|s|, 1e-6))."""
    return np.sign(s) * np.sqrt(np.maximum(np.abs(s), np.float32(1e-6)))


def gated_value(c: Sizes, w: Weights, x: Array, emb: Array) -> Array:
    """Section 7.4: sigmoid(s) times the value, for every stream: [B, S, N*H].

    Args:
        x: streams [B, S, N*H]; emb: gathered rows [B, S, M].
    """
    by_stream = (*x.shape[:2], c.N, c.H)
    key = grouped_norm(linear(w, "key_proj", emb), w["norm_key.weight"], c.N, c.eps)
    query = grouped_norm(x, w["norm_query.weight"], c.N, c.eps)
    s = (key * query).reshape(by_stream).sum(-1) / np.float32(np.sqrt(c.H))  # [B, S, N]
    value = linear(w, "value_proj", emb)  # [B, S, H]
    return (sigmoid(signed_root(s))[..., None] * value[..., None, :]).reshape(x.shape)


def conv_input(c: Sizes, w: Weights, gv: Array) -> Array:
    """Section 7.4: gn = norm_conv(gv), stream by stream."""
    return grouped_norm(gv, w["norm_conv.weight"], c.N, c.eps)


def masked(x: Array, conv_mask: Array | None) -> Array:
    """Zeros at padding, where the mask is in force."""
    return x if conv_mask is None else x * conv_mask[..., None]


def dilated_convolution(c: Sizes, past: Array, gn: Array, kernel: Array) -> Array:
    """Section 7.4: c = silu(convolution with dilation n), channels first."""
    assert c.ngrams is not None
    return silu(causal_convolution(past, gn, kernel, dilation=c.ngrams.n))


def injected(gv: Array, conv: Array) -> Array:
    """Section 7.4: PLE(x) = gv + c."""
    return gv + conv


def ple_embedding(w: Weights, rows: Array) -> Array:
    """Gathered rows [B, S, heads] of the table, head after head: [B, S, M]."""
    table = w["ple_embedding.ngram_embedding.weight"]
    return table[rows].reshape(*rows.shape[:2], -1)


def ple(
    c: Sizes, w: Weights, x: Array, emb: Array, conv_state: Array, conv_mask: Array | None = None
) -> tuple[Array, Array]:
    """Section 7.4: what is added to the streams [B, S, N*H], and the next ple_conv_state.

    Args:
        emb: [B, S, M]; conv_state: [B, N*H, (kp-1)*n]; conv_mask: [B, S], where it is in force.
    """
    gv = gated_value(c, w, x, emb)
    gn = masked(conv_input(c, w, gv), conv_mask).transpose(0, 2, 1)  # [B, N*H, S]
    gv = masked(gv, conv_mask)
    conv = dilated_convolution(c, conv_state, gn, w["conv1d.weight"]).transpose(0, 2, 1)
    return injected(gv, conv), newest(conv_state, gn, conv_state.shape[2])
