"""Mistakes in the decoder: each function replaces one of the NumPy reference and is wrong.

`mistake_table` names which function of which module, and the goldens that must then differ. What
a function shares with the right one it takes from there under a name with an underscore, since
the right name is what is replaced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import reference_attention, reference_layers
from .reference_attention import angle_channels as _angle_channels
from .reference_attention import block_keys as _block_keys
from .reference_attention import index_key_norm as _index_key_norm
from .reference_attention import index_projection as _index_projection
from .reference_attention import rotary as _rotary
from .reference_attention import rotate as _rotate
from .reference_attention import selected_tokens as _selected_tokens
from .reference_layers import (
    Array,
    Weights,
    linear,
    mixing_gate,
    rms,
    sigmoid,
    silu,
    softmax,
    softplus,
    stream_mean,
    unit,
)
from .reference_layers import causal_convolution as _causal_convolution
from .reference_layers import grouped_norm as _grouped_norm
from .reference_layers import next_conv_state as _next_conv_state
from .reference_layers import read as _read
from .reference_layers import route as _route
from .reference_layers import split_heads as _split_heads
from .reference_layers import zero_centred_norm as _zero_centred_norm
from .reference_ple import head_sizes as _head_sizes
from .reference_ple import multipliers as _multipliers
from .reference_sizes import Ngrams, Sizes

# --- norms and hyper-connections ------------------------------------------------------------------


def plain_norm(v: Array, weight: Array, eps: float) -> Array:
    return rms(v, eps) * weight


def norm_of_all_streams(x: Array, weight: Array, groups: int, eps: float) -> Array:
    return _zero_centred_norm(x, weight, eps)


def gate_of(c: Sizes, w: Weights, a: Array) -> Array:
    return sigmoid(linear(w, "input_mix_weight_up", a))


def down_not_divided(c: Sizes, w: Weights, n: Array) -> Array:
    return gate_of(c, w, silu(linear(w, "input_mix_weight_down", n)))


def mixer_without_silu(c: Sizes, w: Weights, n: Array) -> Array:
    return gate_of(c, w, linear(w, "input_mix_weight_down", n) / c.N)


def gate_of_raw_streams(c: Sizes, w: Weights, x: Array) -> tuple[Array, Array]:
    n = _grouped_norm(x, w["hc_norm.weight"], c.N, c.eps)
    return n, stream_mean(c, mixing_gate(c, w, n) * x)


def stream_sum(c: Sizes, x: Array) -> Array:
    return x.reshape(*x.shape[:-1], c.N, c.H).sum(-2)


def inject_not_divided(c: Sizes, w: Weights, n: Array) -> Array:
    return 2 * sigmoid(linear(w, "block_inject_weight", n))


def inject_without_two(c: Sizes, w: Weights, n: Array) -> Array:
    return sigmoid(linear(w, "block_inject_weight", n) / c.N)


def mean_for_final_mixer(c: Sizes, w: Weights, x: Array) -> Array:
    return stream_mean(c, x)


# --- delta net ------------------------------------------------------------------------------------


def taps_reversed(past: Array, new: Array, kernel: Array, dilation: int = 1) -> Array:
    return _causal_convolution(past, new, kernel[:, :, ::-1], dilation)


def fewer_columns_kept(c: Sizes, past: Array, qkv: Array) -> Array:
    state = _next_conv_state(c, past, qkv).copy()
    state[:, :, 0] = 0
    return state


def keys_before_queries(c: Sizes, mixed: Array) -> tuple[Array, Array, Array]:
    q, k, v = _split_heads(c, mixed)
    return k, q, v


def no_unit_length(c: Sizes, q: Array, k: Array) -> tuple[Array, Array]:
    return q * np.float32(c.dk**-0.5), k


def no_query_scale(c: Sizes, q: Array, k: Array) -> tuple[Array, Array]:
    return unit(q), unit(k)


def no_dt_bias(a: Array, A_log: Array, dt_bias: Array) -> Array:
    return -np.exp(A_log) * softplus(a)


def A_without_exp(a: Array, A_log: Array, dt_bias: Array) -> Array:
    return -A_log * softplus(a + dt_bias)


def decayed(U: Array, g: Array) -> Array:
    return U * np.exp(g)[..., None, None]


def written(U: Array, k: Array, d: Array) -> Array:
    return U + k[..., :, None] * d[..., None, :]


def memory_before_decay(U: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> Any:
    U = written(decayed(U, g), k, (v - _read(U, k)) * beta[..., None])
    return _read(U, q), U


def no_delta_correction(U: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> Any:
    U = written(decayed(U, g), k, v * beta[..., None])
    return _read(U, q), U


def output_before_update(U: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> Any:
    U = decayed(U, g)
    return _read(U, q), written(U, k, (v - _read(U, k)) * beta[..., None])


def silu_gate(c: Sizes, weight: Array, o: Array, z: Array) -> Array:
    return rms(o, c.eps) * weight * silu(z)


def gate_before_norm(c: Sizes, weight: Array, o: Array, z: Array) -> Array:
    return rms(o * sigmoid(z), c.eps) * weight


def centred_gated_norm(c: Sizes, weight: Array, o: Array, z: Array) -> Array:
    return rms(o, c.eps) * (1 + weight) * sigmoid(z)


# --- selection of tokens --------------------------------------------------------------------------


def select_all(c: Sizes, w: Weights, q: Array, keys: Array, positions: Array, v: Array) -> Array:
    return v


def blocks_of_the_buffer(
    c: Sizes, w: Weights, q: Array, keys: Array, positions: Array, v: Array
) -> Array:
    if len(v) == 0:
        return v
    return _selected_tokens(c, w, q, keys, positions, np.arange(v[-1] + 1))


def incomplete_block_ranked(
    c: Sizes, w: Weights, q: Array, keys: Array, positions: Array, v: Array
) -> Array:
    blocks = [v[start : start + c.R] for start in range(0, len(v), c.R)]
    if not blocks:
        return v
    pooled = [_block_keys(c, w, keys[b][None], positions[:, b][:, None]) for b in blocks]
    scores = reference_attention.block_scores(c, q, np.concatenate(pooled))
    return np.concatenate([blocks[m] for m in reference_attention.best_blocks(c, scores)])


def incomplete_block_dropped(
    c: Sizes, w: Weights, q: Array, keys: Array, positions: Array, v: Array
) -> Array:
    return _selected_tokens(c, w, q, keys, positions, v[: len(v) // c.R * c.R])


def max_pool(keys: Array) -> Array:
    return keys.max(1) if len(keys) else keys.mean(1)


def norm_before_pooling(c: Sizes, w: Weights, keys: Array, positions: Array) -> Array:
    cos, sin = _rotary(c, positions[:, :, 0])
    return _rotate(_index_key_norm(c, w, keys).mean(1), cos, sin)


def keys_not_turned(c: Sizes, w: Weights, keys: Array, positions: Array) -> Array:
    return _index_key_norm(c, w, keys.mean(1))


def position_of_the_last_token(positions: Array) -> Array:
    return positions[:, :, -1]


def block_number(positions: Array) -> Array:
    return np.tile(np.arange(positions.shape[1]), (4, 1))


def no_relu(c: Sizes, q: Array, keys: Array) -> Array:
    return (q @ keys.T).sum(0)


def max_over_heads(c: Sizes, q: Array, keys: Array) -> Array:
    return np.maximum(q @ keys.T, 0).max(0)


def budget_in_blocks(c: Sizes, scores: Array) -> Array:
    return np.argsort(-scores, kind="stable")[: c.budget]


def newest_block_kept(c: Sizes, scores: Array) -> Array:
    scores = scores.copy()
    scores[-1:] = np.inf
    return np.argsort(-scores, kind="stable")[: c.budget // c.R]


def key_before_index_queries(c: Sizes, w: Weights, h: Array) -> tuple[Array, Array]:
    key, queries = np.split(linear(w, "indexer.index_qk_proj", h), [c.Dx], axis=-1)
    return queries.reshape(*h.shape[:2], c.nx, c.Dx), key


def normed_key_cached(c: Sizes, w: Weights, h: Array) -> tuple[Array, Array]:
    queries, key = _index_projection(c, w, h)
    return queries, _index_key_norm(c, w, key)


# --- rotation and attention -----------------------------------------------------------------------


def frequencies_of_the_head(c: Sizes) -> Array:
    j = np.arange(c.rd // 2, dtype=np.float32)
    return (1 / np.float32(c.theta) ** (2 * j / c.D)).astype(np.float32)


def turned_in_pairs(x: Array, cos: Array, sin: Array) -> Array:
    turned, rest = np.split(x, [cos.shape[-1]], axis=-1)
    cos, sin = (np.split(t, 2, axis=-1)[0] for t in (cos, sin))
    even, odd = turned[..., ::2], turned[..., 1::2]
    pairs = np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return np.concatenate([pairs.reshape(turned.shape), rest], axis=-1)


def sections_in_a_row(c: Sizes) -> Array:
    return np.repeat([1, 2, 3], c.sections)


def height_and_width_swapped(c: Sizes) -> Array:
    return np.array([0, 1, 3, 2])[_angle_channels(c)]


def temporal_channel_alone(c: Sizes) -> Array:
    return np.full(c.rd // 2, 1)


def channel_0(c: Sizes) -> Array:
    return np.full(c.rd // 2, 0)


def queries_then_gates(c: Sizes, p: Array) -> tuple[Array, Array]:
    q, gate = np.split(p, 2, axis=-1)
    return q.reshape(*p.shape[:2], c.nh, c.D), gate


# --- experts --------------------------------------------------------------------------------------


def renormalised_otherwise(c: Sizes, logits: Array) -> tuple[Array, Array]:
    return _route(replace(c, renormalise=not c.renormalise), logits)


def softmax_of_the_chosen(c: Sizes, logits: Array) -> tuple[Array, Array]:
    ids, p = _route(c, logits)
    return ids, softmax(p)


def sigmoid_router(c: Sizes, logits: Array) -> tuple[Array, Array]:
    ids, _ = _route(c, logits)
    p = np.take_along_axis(sigmoid(logits), ids, axis=-1)
    return ids, p / p.sum(-1, keepdims=True)


def interleaved_gate_and_up(rows: Array) -> tuple[Array, Array]:
    return rows[..., ::2], rows[..., 1::2]


def up_before_gate(rows: Array) -> tuple[Array, Array]:
    up, gate = np.split(rows, 2, axis=-1)
    return gate, up


def shared_without_gate(w: Weights, x: Array) -> Array:
    s = reference_layers.scoped(w, "shared_expert")
    return linear(s, "down_proj", silu(linear(s, "gate_proj", x)) * linear(s, "up_proj", x))


# --- PLE ------------------------------------------------------------------------------------------


def first_primes(c: Ngrams, p: int) -> tuple[int, ...]:
    return _head_sizes(c, 0)


def first_multipliers(c: Ngrams, p: int) -> tuple[int, ...]:
    return _multipliers(c, 0)


def across_eos(c: Ngrams, history: list[int], t: int, d: int) -> int:
    return history[t - d] if t >= d else c.eos


def sum_of_products(tokens: list[int], factors: tuple[int, ...]) -> int:
    total = sum(token * factor for token, factor in zip(tokens, factors, strict=False))
    return (total + 2**63) % 2**64 - 2**63  # as int64 wraps around


def no_offsets(c: Ngrams, p: int) -> tuple[int, ...]:
    return (0,) * c.heads


def zero_context(c: Ngrams) -> list[int]:
    return [0] * (c.n - 1)


def dilation_1(c: Sizes, past: Array, gn: Array, kernel: Array) -> Array:
    return silu(_causal_convolution(past, gn, kernel))


def ple_conv_without_silu(c: Sizes, past: Array, gn: Array, kernel: Array) -> Array:
    assert c.ngrams is not None
    return _causal_convolution(past, gn, kernel, c.ngrams.n)
