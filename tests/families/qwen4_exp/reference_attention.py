"""QSA attention of Qwen4-Exp in NumPy, float32: rotation, selection of tokens, attention.

Written from the Qwen4-Exp specification, section 6, query by query as it is told there. Conventions
as in `reference_layers`; a `history` is the positions of cached and new tokens, [4, B, P+S].
"""

from __future__ import annotations

import numpy as np

from .reference_layers import Array, Weights, linear, sigmoid, softmax, zero_centred_norm
from .reference_sizes import Sizes

TEXT, TEMPORAL, HEIGHT, WIDTH = range(4)

# --- rotation (section 6.1) -----------------------------------------------------------------------


def frequencies(c: Sizes) -> Array:
    """theta^(-2j/rd), j < rd/2, float32."""
    j = np.arange(c.rd // 2, dtype=np.float32)
    return (1 / np.float32(c.theta) ** (2 * j / c.rd)).astype(np.float32)


def angle_channels(c: Sizes) -> Array:
    """The position channel each frequency turns with, interleaved: [rd/2]."""
    _, height, width = c.sections
    channels = np.full(c.rd // 2, TEMPORAL)
    channels[1 : 3 * height : 3] = HEIGHT
    channels[2 : 3 * width : 3] = WIDTH
    return channels


def rotary(c: Sizes, positions: Array) -> tuple[Array, Array]:
    """Positions [4, ...] -> cos, sin [..., rd]: the rd/2 angles, twice."""
    by_frequency = np.moveaxis(positions[angle_channels(c)], 0, -1)  # [..., rd/2]
    angles = by_frequency.astype(np.float32) * frequencies(c)
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles), np.sin(angles)


def half_turned(x: Array) -> Array:
    """(-x2, x1) for halves x1, x2."""
    x1, x2 = np.split(x, 2, axis=-1)
    return np.concatenate([-x2, x1], axis=-1)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """The first rd features turned half-split, the others as they are; cos fits x[..., :rd]."""
    turned, rest = np.split(x, [cos.shape[-1]], axis=-1)
    return np.concatenate([turned * cos + half_turned(turned) * sin, rest], axis=-1)


# --- selection of tokens (section 6.2) ------------------------------------------------------------


def index_projection(c: Sizes, w: Weights, h: Array) -> tuple[Array, Array]:
    """Steps 1 and 3: raw queries [B, S, nx, Dx] and the raw key [B, S, Dx], which is cached."""
    p = linear(w, "indexer.index_qk_proj", h)
    queries, key = np.split(p, [c.nx * c.Dx], axis=-1)
    return queries.reshape(*h.shape[:2], c.nx, c.Dx), key


def index_queries(c: Sizes, w: Weights, queries: Array, cos: Array, sin: Array) -> Array:
    """Step 2: normed and turned at the query's own position. cos, sin: [B, S, rd]."""
    normed = zero_centred_norm(queries, w["indexer.q_layernorm.weight"], c.eps)
    return rotate(normed, cos[:, :, None], sin[:, :, None])


def index_key_norm(c: Sizes, w: Weights, keys: Array) -> Array:
    """The norm of step 5."""
    return zero_centred_norm(keys, w["indexer.k_layernorm.weight"], c.eps)


def pool(keys: Array) -> Array:
    """Mean of the raw keys of a block: [nb, R, Dx] -> [nb, Dx]."""
    return keys.mean(1)


def block_position(positions: Array) -> Array:
    """Where a block is turned: at its first token, [4, nb, R] -> [4, nb]."""
    return positions[:, :, 0]


def block_keys(c: Sizes, w: Weights, keys: Array, positions: Array) -> Array:
    """Step 5: raw keys [nb, R, Dx] at positions [4, nb, R] -> one key a block [nb, Dx]."""
    cos, sin = rotary(c, block_position(positions))
    return rotate(index_key_norm(c, w, pool(keys)), cos, sin)


def block_scores(c: Sizes, q: Array, keys: Array) -> Array:
    """Step 6: sum over heads of relu(q . key) / sqrt(Dx); q [nx, Dx], keys [nb, Dx] -> [nb]."""
    return np.maximum(q @ keys.T, 0).sum(0) / np.float32(np.sqrt(c.Dx))


def best_blocks(c: Sizes, scores: Array) -> Array:
    """Step 7: the budget/R best; of equal ones the lower block."""
    return np.argsort(-scores, kind="stable")[: c.budget // c.R]


def selected_tokens(
    c: Sizes, w: Weights, q: Array, keys: Array, positions: Array, v: Array
) -> Array:
    """Steps 4 to 7 for one query.

    Args:
        q: [nx, Dx]; keys: raw, [P+S, Dx]; positions: [4, P+S]; v: visible places, ascending.
    Returns:
        the selected ones of v, in no order.
    """
    nb = len(v) // c.R
    blocks = v[: nb * c.R].reshape(nb, c.R)
    scores = block_scores(c, q, block_keys(c, w, keys[blocks], positions[:, blocks]))
    return np.concatenate([blocks[best_blocks(c, scores)].reshape(-1), v[nb * c.R :]])


def selection(
    c: Sizes, w: Weights, queries: Array, keys: Array, history: Array, visible: Array
) -> Array:
    """Section 6.2 for every query: which visible tokens it attends to, bool [B, S, P+S].

    Args:
        queries: normed and turned, [B, S, nx, Dx]; keys: raw, cached and new, [B, P+S, Dx].
    """
    selected = np.zeros_like(visible)
    for b, i in np.ndindex(*visible.shape[:2]):
        seen = np.flatnonzero(visible[b, i])
        chosen = selected_tokens(c, w, queries[b, i], keys[b], history[:, b], seen)
        selected[b, i, chosen] = True
    return selected


# --- attention (section 6.3) ----------------------------------------------------------------------


def query_and_gate(c: Sizes, p: Array) -> tuple[Array, Array]:
    """q_proj output [B, S, nh*2*D], read head by head: query [B, S, nh, D], gate [B, S, nh*D]."""
    B, S, _ = p.shape
    q, gate = np.split(p.reshape(B, S, c.nh, 2 * c.D), 2, axis=-1)
    return q, gate.reshape(B, S, c.nh * c.D)


def key_value_head_of(c: Sizes) -> Array:
    """Which key and value head serves a query head: consecutive ones share one."""
    return np.arange(c.nh) // (c.nh // c.nkv)


def attention_weights(q: Array, k: Array, allowed: Array) -> Array:
    """softmax(q k^T D^-0.5) over allowed keys; a row that may see nothing stays finite (Q14).

    Args:
        q: [B, heads, S, D]; k: [B, heads, P+S, D]; allowed: [B, S, P+S].
    """
    scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    return softmax(np.where(allowed[:, None], scores, np.finfo(np.float32).min))


def output_gate(y: Array, gate: Array) -> Array:
    """Section 6.3: attention output times sigmoid(gate)."""
    return y * sigmoid(gate)


def qsa_attention(
    c: Sizes,
    w: Weights,
    h: Array,
    past: tuple[Array, Array, Array],
    history: Array,
    visible: Array,
) -> tuple[Array, tuple[Array, Array, Array]]:
    """Section 6.

    Args:
        h: [B, S, H]; past: key, value [B, nkv, P, D] and index_key [B, P, Dx].
        history: [4, B, P+S]; visible: bool [B, S, P+S].
    Returns:
        the output [B, S, H] and the three caches with the new tokens.
    """
    B, S, _ = h.shape
    cos, sin = rotary(c, history[:, :, history.shape[2] - S :])  # [B, S, rd]

    raw_queries, raw_key = index_projection(c, w, h)
    index_key = np.concatenate([past[2], raw_key], axis=1)
    queries = index_queries(c, w, raw_queries, cos, sin)
    selected = selection(c, w, queries, index_key, history, visible)

    q, gate = query_and_gate(c, linear(w, "q_proj", h))
    k = linear(w, "k_proj", h).reshape(B, S, c.nkv, c.D)
    v = linear(w, "v_proj", h).reshape(B, S, c.nkv, c.D)
    cos, sin = cos[:, :, None], sin[:, :, None]
    q = rotate(zero_centred_norm(q, w["q_norm.weight"], c.eps), cos, sin)
    k = rotate(zero_centred_norm(k, w["k_norm.weight"], c.eps), cos, sin)
    key = np.concatenate([past[0], k.swapaxes(1, 2)], axis=2)  # [B, nkv, P+S, D]
    value = np.concatenate([past[1], v.swapaxes(1, 2)], axis=2)

    served = key_value_head_of(c)
    p = attention_weights(q.swapaxes(1, 2), key[:, served], visible & selected)
    y = (p @ value[:, served]).swapaxes(1, 2).reshape(B, S, c.nh * c.D)
    return linear(w, "o_proj", output_gate(y, gate)), (key, value, index_key)
