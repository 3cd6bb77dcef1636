"""Layers of Qwen4-Exp in NumPy, float32: norms, hyper-connections, delta net, mixture of experts.

Written from the Qwen4-Exp specification, sections 4, 5 and 8, not from graph code. `w` maps the
names inside one module (`in_proj_qkv.weight`) to arrays; `scoped` makes it. Sizes as in
`reference_sizes.Sizes`; B rows, S new tokens, P cached tokens, T tokens in all rows together.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .reference_sizes import Sizes

Array = np.ndarray
Weights = Mapping[str, Array]


def scoped(w: Weights, prefix: str) -> dict[str, Array]:
    """The weights whose name begins with `prefix.`, without it."""
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in w.items() if name.startswith(start)}


def linear(w: Weights, name: str, x: Array) -> Array:
    """x W^T, and plus the bias where the module has one."""
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow for large negative x."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, np.float32(1)) / (1 + small)


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)) in float32, where a large negative x gives -0 (Q20)."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), linear above 20 (section 5, step 5)."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- norms (section 4.2) --------------------------------------------------------------------------


def rms(v: Array, eps: float) -> Array:
    """v / sqrt(mean(v^2) + eps) over the last axis."""
    return v / np.sqrt((v * v).mean(-1, keepdims=True) + np.float32(eps))


def zero_centred_norm(v: Array, weight: Array, eps: float) -> Array:
    """Section 4.2: RMS norm over the last axis, times 1 + weight."""
    return rms(v, eps) * (1 + weight)


def grouped_norm(x: Array, weight: Array, groups: int, eps: float) -> Array:
    """Zero-centred norm of every stream for itself (sections 4.1 and 7.4).

    Args:
        x: [..., N*H], stream after stream; weight: [N*H].
    """
    streams = x.reshape(*x.shape[:-1], groups, -1)  # [..., N, H]
    return zero_centred_norm(streams, weight.reshape(groups, -1), eps).reshape(x.shape)


# --- hyper-connections (section 4.1) --------------------------------------------------------------


def mixing_gate(c: Sizes, w: Weights, n: Array) -> Array:
    """g = sigmoid(up(silu(down(n) / N))), one number for each feature of each stream."""
    a = silu(linear(w, "input_mix_weight_down", n) / c.N)  # [B, S, r]
    return sigmoid(linear(w, "input_mix_weight_up", a))  # [B, S, N*H]


def stream_mean(c: Sizes, x: Array) -> Array:
    """Mean over the N streams: [B, S, N*H] -> [B, S, H]."""
    return x.reshape(*x.shape[:-1], c.N, c.H).sum(-2) / c.N


def read_streams(c: Sizes, w: Weights, x: Array) -> tuple[Array, Array]:
    """The normed streams n [B, S, N*H] and what a block reads of them, h [B, S, H]."""
    n = grouped_norm(x, w["hc_norm.weight"], c.N, c.eps)
    return n, stream_mean(c, mixing_gate(c, w, n) * n)


def injection(c: Sizes, w: Weights, n: Array) -> Array:
    """inj = 2 sigmoid(block_inject(n) / N) [B, S, N]."""
    return 2 * sigmoid(linear(w, "block_inject_weight", n) / c.N)


def hyper_connection_read(c: Sizes, w: Weights, x: Array) -> tuple[Array, Array]:
    """Section 4.1: streams x [B, S, N*H] -> h [B, S, H] and inj [B, S, N]."""
    n, h = read_streams(c, w, x)
    return h, injection(c, w, n)


def hyper_connection_write(x: Array, o: Array, inj: Array) -> Array:
    """Section 4.1, write back: x_s + o * inj_s, x being what the read began from."""
    return x + (inj[..., None] * o[..., None, :]).reshape(x.shape)


def final_mixer(c: Sizes, w: Weights, x: Array) -> Array:
    """Section 4, step 7: the read-out of the streams [B, S, N*H] -> [B, S, H]; no other norm."""
    return read_streams(c, w, x)[1]


# --- convolutions of the delta net and of the PLE ------------------------------------------------


def causal_convolution(past: Array, new: Array, kernel: Array, dilation: int = 1) -> Array:
    """Depthwise, the last tap at the current token: sum_j w_j v_{t - (taps-1-j) * dilation}.

    Args:
        past: [B, C, at least (taps - 1) * dilation]; new: [B, C, S]; kernel: [C, 1, taps].
    """
    joined = np.concatenate([past, new], axis=2)
    taps, S = kernel.shape[2], new.shape[2]
    out = np.zeros_like(new)
    for j in range(taps):
        first = past.shape[2] - (taps - 1 - j) * dilation
        out += kernel[:, 0, j, None] * joined[:, :, first : first + S]
    return out


def newest(past: Array, new: Array, columns: int) -> Array:
    """The last columns of what came before and what is new: [B, C, columns]."""
    joined = np.concatenate([past, new], axis=2)
    return joined[:, :, joined.shape[2] - columns :]


# --- gated delta net (section 5) ------------------------------------------------------------------


def zero_padding(h: Array, conv_mask: Array | None) -> Array:
    """Section 5: zeros at padding, where the mask is in force [B, S]."""
    return h if conv_mask is None else h * conv_mask[..., None]


def short_convolution(past: Array, qkv: Array, kernel: Array) -> Array:
    """Section 5, step 2: the convolution without bias, then SiLU."""
    return silu(causal_convolution(past, qkv, kernel))


def next_conv_state(c: Sizes, past: Array, qkv: Array) -> Array:
    """Section 5, step 2: the last K raw columns."""
    return newest(past, qkv, c.K)


def key_head_of(c: Sizes) -> Array:
    """Which key head serves a value head: consecutive value heads share one."""
    return np.arange(c.gv) // (c.gv // c.gk)


def split_heads(c: Sizes, mixed: Array) -> tuple[Array, Array, Array]:
    """Section 5, step 3: [B, Tc, S] -> q, k [B, S, gk, dk] and v [B, S, gv, dv]."""
    B, _, S = mixed.shape
    width = c.gk * c.dk
    q, k, v = np.split(mixed.transpose(0, 2, 1), [width, 2 * width], axis=-1)
    return (q.reshape(B, S, c.gk, c.dk), k.reshape(B, S, c.gk, c.dk), v.reshape(B, S, c.gv, c.dv))


def unit(v: Array) -> Array:
    """v / sqrt(sum(v^2) + 1e-6) over the last axis."""
    return v / np.sqrt((v * v).sum(-1, keepdims=True) + np.float32(1e-6))


def query_and_key(c: Sizes, q: Array, k: Array) -> tuple[Array, Array]:
    """Section 5, step 4: both of unit length, then q * dk^-0.5."""
    return unit(q) * np.float32(c.dk**-0.5), unit(k)


def write_strength(b: Array) -> Array:
    """Section 5, step 5: beta = sigmoid(b)."""
    return sigmoid(b)


def log_decay(a: Array, A_log: Array, dt_bias: Array) -> Array:
    """Section 5, step 5: g = -exp(A_log) softplus(a + dt_bias)."""
    return -np.exp(A_log) * softplus(a + dt_bias)


def delta_step(
    U: Array, q: Array, k: Array, v: Array, g: Array, beta: Array
) -> tuple[Array, Array]:
    """Section 5, step 6, one token: decay, correct, write, read.

    Args:
        U: [B, gv, dk, dv]; q, k: [B, gv, dk]; v: [B, gv, dv]; g, beta: [B, gv].
    Returns:
        o [B, gv, dv] and the next U.
    """
    U = U * np.exp(g)[..., None, None]
    d = (v - read(U, k)) * beta[..., None]
    U = U + k[..., :, None] * d[..., None, :]
    return read(U, q), U


def read(U: Array, k: Array) -> Array:
    """k^T U of every head: [B, gv, dv]."""
    return (k[..., None, :] @ U)[..., 0, :]


def delta_rule(
    q: Array, k: Array, v: Array, g: Array, beta: Array, U: Array
) -> tuple[Array, Array]:
    """Section 5, step 6: token after token. All [B, S, gv, ...]; returns o [B, S, gv, dv], U."""
    out = np.empty_like(v)
    for t in range(v.shape[1]):
        out[:, t], U = delta_step(U, q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t])
    return out, U


def gated_norm(c: Sizes, weight: Array, o: Array, z: Array) -> Array:
    """Section 5, step 7: RMS norm over dv, times a plain weight, times act(z)."""
    return rms(o, c.eps) * weight * {"sigmoid": sigmoid, "silu": silu}[c.gate](z)


def delta_net(
    c: Sizes, w: Weights, h: Array, conv_state: Array, U: Array, conv_mask: Array | None = None
) -> tuple[Array, Array, Array]:
    """Section 5.

    Args:
        h: [B, S, H]; conv_state: [B, Tc, K]; U: recurrent state [B, gv, dk, dv].
        conv_mask: [B, S] of 0 and 1, where it is in force.
    Returns:
        the output [B, S, H], and both next states.
    """
    B, S, _ = h.shape
    h = zero_padding(h, conv_mask)
    qkv = linear(w, "in_proj_qkv", h).transpose(0, 2, 1)  # [B, Tc, S]
    z = linear(w, "in_proj_z", h).reshape(B, S, c.gv, c.dv)
    q, k, v = split_heads(c, short_convolution(conv_state, qkv, w["conv1d.weight"]))
    q, k = query_and_key(c, q, k)
    served = key_head_of(c)
    beta = write_strength(linear(w, "in_proj_b", h))  # [B, S, gv]
    g = log_decay(linear(w, "in_proj_a", h), w["A_log"], w["dt_bias"])
    o, U = delta_rule(q[:, :, served], k[:, :, served], v, g, beta, U)
    y = gated_norm(c, w["norm.weight"], o, z).reshape(B, S, c.gv * c.dv)
    return linear(w, "out_proj", y), next_conv_state(c, conv_state, qkv), U


# --- mixture of experts (section 8) ---------------------------------------------------------------


def route(c: Sizes, logits: Array) -> tuple[Array, Array]:
    """Section 8: router logits [T, E] -> experts [T, k], best first, and their weights [T, k].

    Equal probabilities go to the lower expert, which no golden depends on.
    """
    p = softmax(logits)
    ids = np.argsort(-p, axis=-1, kind="stable")[:, : c.k]
    weights = np.take_along_axis(p, ids, axis=-1)
    return ids, weights / weights.sum(-1, keepdims=True) if c.renormalise else weights


def gate_and_up(rows: Array) -> tuple[Array, Array]:
    """The halves of [..., 2I]: gate first."""
    return np.split(rows, 2, axis=-1)[0], np.split(rows, 2, axis=-1)[1]


def expert(gate_up: Array, down: Array, x: Array) -> Array:
    """down(silu(gate x) * up x) of one expert, gate_up [2I, H], down [H, I], x [T, H]."""
    gate, up = gate_and_up(x @ gate_up.T)
    return (silu(gate) * up) @ down.T


def routed_experts(w: Weights, x: Array, ids: Array, weights: Array) -> Array:
    """Section 8: the sum over chosen experts of route weight times expert, ascending experts."""
    out = np.zeros_like(x)
    for e in np.unique(ids):
        token, place = np.nonzero(ids == e)
        y = expert(w["experts.gate_up_proj"][e], w["experts.down_proj"][e], x[token])
        out[token] += weights[token, place, None] * y
    return out


def shared_expert(w: Weights, x: Array) -> Array:
    """Section 8: sigmoid(shared_expert_gate(x)) times the expert that serves every token."""
    s = scoped(w, "shared_expert")
    y = linear(s, "down_proj", silu(linear(s, "gate_proj", x)) * linear(s, "up_proj", x))
    return sigmoid(linear(w, "shared_expert_gate", x)) * y


def moe(c: Sizes, w: Weights, h: Array) -> Array:
    """Section 8: routed plus shared experts, [B, S, H] -> [B, S, H]."""
    x = h.reshape(-1, h.shape[-1])  # [T, H]
    ids, weights = route(c, linear(w, "gate", x))
    return (routed_experts(w, x, ids, weights) + shared_expert(w, x)).reshape(h.shape)
