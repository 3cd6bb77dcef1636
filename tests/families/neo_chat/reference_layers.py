"""Layers of the neo_chat NumPy reference, in the order of docs/neo-chat.md 4.

Every function takes and returns float32 arrays and states one equation. Weights are a mapping from
the checkpoint's full tensor name to a float32 array. Nothing here comes from the graph code: the
graphs are compared with these functions, so a shared mistake must stay impossible.

Sizes: B batch, S new tokens, P past tokens, D hidden, H query heads, KV key/value heads, hd head
width, E experts, N patches, gh x gw patch grid of one image, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]
KeyValue = tuple[Array, Array]  # one layer's key and value, each [B, KV, P, hd]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Array) -> Array:
    """x Phi(x), exact: 0.5 x (1 + erf(x / sqrt 2)).

    The float64 inside keeps 1 + erf from cancelling for negative x.
    """
    wide = x.astype(np.float64)
    return (0.5 * wide * (1.0 + _erf(wide / math.sqrt(2.0)))).astype(np.float32)


def silu(x: Array) -> Array:
    """x / (1 + e^-x)."""
    return (x / (1.0 + np.exp(-x))).astype(np.float32)


def softmax(x: Array) -> Array:
    """e^x / sum e^x over the last axis; -inf entries get weight 0."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x W^T + b; weight [out, in]."""
    y = x @ weight.T
    return y if bias is None else y + bias


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis. The weight is not 1 + weight."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


def inverse_frequencies(width: int, base: float) -> Array:
    """base^(-2i / width), i = 0 .. width/2 - 1."""
    i = np.arange(width // 2, dtype=np.float64)
    return (float(base) ** (-2.0 * i / width)).astype(np.float32)  # [width/2]


# --- vision tower (docs/neo-chat.md 4.1) ----------------------------------------------------------


def rotate_pairs(x: Array, positions: Array, base: float) -> Array:
    """Rotary on neighbouring channels: (a, b) -> (a cos - b sin, a sin + b cos).

    Args:
        x: [N, width], channels 2i and 2i + 1 form pair i.
        positions: [N].
    """
    angle = positions.astype(np.float32)[:, None] * inverse_frequencies(x.shape[-1], base)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[:, 0::2], x[:, 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def vision_rotary(x: Array, grid_w: int, base: float) -> Array:
    """First half of the channels turns with the column, second half with the row.

    Args:
        x: [gh * gw, vh], the row-major patches of one image.
    """
    k = np.arange(x.shape[0])
    half = x.shape[1] // 2
    column_part = rotate_pairs(x[:, :half], k % grid_w, base)
    row_part = rotate_pairs(x[:, half:], k // grid_w, base)
    return np.concatenate([column_part, row_part], axis=-1)  # [gh * gw, vh]


def merge_patches(x: Array, grid_h: int, grid_w: int, weight: Array, bias: Array) -> Array:
    """Convolution with kernel = stride = m over one image's patch grid.

    Args:
        x: [gh * gw, vh].
        weight: [D, vh, m, m].
    """
    m = weight.shape[-1]
    blocks = x.reshape(grid_h // m, m, grid_w // m, m, -1)  # [th, m, tw, m, vh]
    tokens = np.einsum("yixjc,dcij->yxd", blocks, weight, optimize=True)
    return tokens.reshape(-1, weight.shape[0]) + bias  # [th * tw, D]


# --- backbone (docs/neo-chat.md 4.4) --------------------------------------------------------------


def rotate_half(x: Array, positions: Array, base: float) -> Array:
    """Rotary on the two halves of a part: x cos + concat(-x2, x1) sin.

    Args:
        x: [B, heads, S, width].
        positions: [S].
    """
    angle = positions.astype(np.float32)[:, None] * inverse_frequencies(x.shape[-1], base)
    cos = np.concatenate([np.cos(angle)] * 2, axis=-1)
    sin = np.concatenate([np.sin(angle)] * 2, axis=-1)
    x1, x2 = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-x2, x1], axis=-1) * sin


def norm_and_rotate(x: Array, norm_t: Array, norm_hw: Array, positions: Array, llm: dict) -> Array:
    """Normalise the temporal and the spatial half, then turn the parts T, Hh, Ww.

    Args:
        x: [B, heads, S, hd].
        norm_t, norm_hw: [hd / 2] each.
        positions: [3, S]: temporal, row, column.
    """
    eps = llm["rms_norm_eps"]
    temporal, spatial = np.split(x, 2, axis=-1)
    temporal = rms_norm(temporal, norm_t, eps)
    height, width = np.split(rms_norm(spatial, norm_hw, eps), 2, axis=-1)
    base_hw = llm.get("rope_theta_hw", 1e4)
    return np.concatenate(
        [
            rotate_half(temporal, positions[0], llm["rope_theta"]),
            rotate_half(height, positions[1], base_hw),
            rotate_half(width, positions[2], base_hw),
        ],
        axis=-1,
    )  # [B, heads, S, hd]


def block_causal(t: Array) -> Array:
    """True where query i may see key j: t[j] == t[i] or j <= i."""
    i = np.arange(len(t))
    return (t[None, :] == t[:, None]) | (i[None, :] <= i[:, None])  # [S, S]


def attention(
    w: Weights,
    llm: dict,
    at: str,
    suffix: str,
    x: Array,
    positions: Array,
    past: KeyValue | None,
    allowed: Array,
) -> tuple[Array, KeyValue]:
    """softmax(q k^T / sqrt hd) v over the past and the new tokens.

    Args:
        at: scope of the layer, ending in a dot.
        suffix: "" (understanding) or "_mot_gen" (generation).
        x: [B, S, D], already normalised.
        positions: [3, S] of the new tokens.
        past: keys and values of the P tokens before.
        allowed: bool [S, P + S].
    Returns:
        Output [B, S, D] and the extended keys and values, both after norm and rotary.
    """

    def project(name: str, inputs: Array) -> Array:
        full = f"{at}self_attn.{name}{suffix}"
        return linear(
            inputs, w[f"{full}.weight"], w[f"{full}.bias"] if llm["attention_bias"] else None
        )

    def heads(name: str, n: int) -> Array:
        split = project(name, x).reshape(x.shape[0], x.shape[1], n, llm["head_dim"])
        return split.transpose(0, 2, 1, 3)  # [B, n, S, hd]

    def norms(name: str) -> tuple[Array, Array]:
        return (
            w[f"{at}self_attn.{name}_norm{suffix}.weight"],
            w[f"{at}self_attn.{name}_norm_hw{suffix}.weight"],
        )

    H, KV = llm["num_attention_heads"], llm["num_key_value_heads"]
    q = norm_and_rotate(heads("q_proj", H), *norms("q"), positions, llm)
    k = norm_and_rotate(heads("k_proj", KV), *norms("k"), positions, llm)
    v = heads("v_proj", KV)
    if past is not None:
        k = np.concatenate([past[0], k], axis=2)
        v = np.concatenate([past[1], v], axis=2)  # [B, KV, P + S, hd]
    # Query head h reads kv head h div (H / KV): consecutive copies, not tiled ones.
    all_k, all_v = np.repeat(k, H // KV, axis=1), np.repeat(v, H // KV, axis=1)
    scores = q @ all_k.transpose(0, 1, 3, 2) * np.float32(llm["head_dim"] ** -0.5)
    weights = softmax(np.where(allowed, scores, np.float32(-np.inf)))  # [B, H, S, P + S]
    out = (weights @ all_v).transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], -1)
    return project("o_proj", out), (k, v)  # [B, S, D]


def dense_mlp(w: Weights, at: str, x: Array) -> Array:
    """down(silu(gate(x)) * up(x)); `at` is the scope of the three projections, with its dot."""
    gated = silu(linear(x, w[f"{at}gate_proj.weight"])) * linear(x, w[f"{at}up_proj.weight"])
    return linear(gated, w[f"{at}down_proj.weight"])


def route(logits: Array, k: int, renormalise: bool) -> Array:
    """Expert weights: softmax over all experts, all but the k largest set to zero.

    Args:
        logits: [..., E].
        renormalise: divide the k weights by their sum.
    """
    p = softmax(logits)
    order = np.argsort(-p, axis=-1, kind="stable")
    keep = np.zeros(p.shape, bool)
    np.put_along_axis(keep, order[..., :k], True, axis=-1)
    p = np.where(keep, p, np.float32(0))
    return p / p.sum(axis=-1, keepdims=True) if renormalise else p  # [..., E]


def sparse_mlp(w: Weights, llm: dict, at: str, suffix: str, x: Array) -> Array:
    """sum over the chosen experts of weight * expert(x). Every expert is evaluated: E is tiny."""
    k = side_value(llm, "num_experts_per_tok", suffix)
    weights = route(linear(x, w[f"{at}gate.weight"]), k, llm["norm_topk_prob"])
    y = np.zeros_like(x)
    for e in range(side_value(llm, "num_experts", suffix)):
        y += weights[..., e : e + 1] * dense_mlp(w, f"{at}experts.{e}.", x)
    return y  # [B, S, D]


def side_value(llm: dict, name: str, suffix: str) -> int:
    """A MoE size of one branch; the generation field falls back to the understanding one."""
    own = llm.get(f"gen_{name}") if suffix else None
    return llm[name] if own is None else own


def is_moe(llm: dict) -> bool:
    """The backbone kind: "moe" in model_type, or "Moe"/"MoE" in one of the architectures."""
    names = llm.get("architectures") or []
    return "moe" in llm.get("model_type", "") or any("Moe" in n or "MoE" in n for n in names)


def is_sparse(llm: dict, layer: int, suffix: str) -> bool:
    """Whether a layer's MLP has experts; the generation branch has them in every layer."""
    if not is_moe(llm) or suffix:
        return is_moe(llm)
    return (
        layer not in llm["mlp_only_layers"] and (layer + 1) % llm.get("decoder_sparse_step", 1) == 0
    )


def backbone_layer(
    w: Weights,
    llm: dict,
    layer: int,
    suffix: str,
    x: Array,
    positions: Array,
    past: KeyValue | None,
    allowed: Array,
) -> tuple[Array, KeyValue]:
    """x += attn(norm_in(x)); x += mlp(norm_post(x)). Arguments as in `attention`."""
    at = f"language_model.model.layers.{layer}."
    eps = llm["rms_norm_eps"]
    normed = rms_norm(x, w[f"{at}input_layernorm{suffix}.weight"], eps)
    out, kv = attention(w, llm, at, suffix, normed, positions, past, allowed)
    x = x + out
    normed = rms_norm(x, w[f"{at}post_attention_layernorm{suffix}.weight"], eps)
    mlp = f"{at}mlp{suffix}."
    if is_sparse(llm, layer, suffix):
        return x + sparse_mlp(w, llm, mlp, suffix, normed), kv
    return x + dense_mlp(w, mlp, normed), kv  # [B, S, D]


# --- scalar embedders (docs/neo-chat.md 4.5) and pixel heads (docs/neo-chat.md 4.6) ---------------


def sinusoid(x: Array, width: int = 256, period: float = 10000.0) -> Array:
    """[cos(x f), sin(x f)] with f_k = period^(-k / half), half = width / 2. x is used as is.

    Args:
        x: [n].
    """
    half = width // 2
    f = np.exp(-math.log(period) * np.arange(half, dtype=np.float64) / half).astype(np.float32)
    args = x.astype(np.float32)[:, None] * f
    return np.concatenate([np.cos(args), np.sin(args)], axis=-1)  # [n, width]


def pixel_shuffle(x: Array, r: int) -> Array:
    """Channel c r r + i r + j goes to channel c, sub-row i, sub-column j.

    Args:
        x: [B, C r r, h, w].
    """
    B, _, h, w = x.shape
    split = x.reshape(B, -1, r, r, h, w).transpose(0, 1, 4, 2, 5, 3)  # [B, C, h, i, w, j]
    return split.reshape(B, -1, h * r, w * r)  # [B, C, h r, w r]


def conv3x3(x: Array, weight: Array, bias: Array) -> Array:
    """Cross-correlation, zero padding 1.

    Args:
        x: [B, C, h, w].
        weight: [out, C, 3, 3].
    """
    h, w = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.stack(
        [padded[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)], axis=2
    )  # [B, C, 9, h, w]
    kernel = weight.reshape(*weight.shape[:2], 9)
    y = np.einsum("bcnhw,ocn->bohw", windows, kernel, optimize=True)
    return y + bias[:, None, None]  # [B, out, h, w]
