"""Gated delta net: linear attention with a decaying state that is corrected, not only added to.

For each value head, with state U [dk, dv] in float32, per token

    U *= exp(g);  d = beta (v - k^T U);  U += k d^T;  o = q^T U.

One token is computed as it is written here. Several are computed in chunks of C: inside a chunk
all d follow from one triangular system, so what is left to do in order is one step per chunk.

    (1 + M) d = beta (v - e^G K U),   M_ij = beta_i e^(G_i - G_j) k_i.k_j  for j < i,
    o = e^G Q U + A d,                A_ij = e^(G_i - G_j) q_i.k_j         for j <= i,
    U' = e^(G_C) U + (e^(G_C - G) K)^T d,

G the running sum of g in the chunk. With R = (1 + M)^-1, d = R (beta v) - R (beta e^G K) U.

B sequences, S tokens, n chunks, gk key heads, rep = gv / gk value heads of each.
Source: docs/qwen4-exp.md, "Gated delta net".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...graph.builder import FLOAT, Dim, Graph, Value
from .config import Text
from .numerics import causal_taps, narrow, silu, wide

CHUNK = 64
L2_EPS = 1e-6


@dataclass(frozen=True)
class Tokens:
    """What the recurrence sees of S tokens, float32: q, k [B, gk, 1, S, dk]; v [B, gk, rep, S, dv];
    beta, decay [B, gk, rep, S, 1]; decay is g, the logarithm."""

    q: Value
    k: Value
    v: Value
    beta: Value
    decay: Value


def delta_net(
    g: Graph,
    h: Value,
    conv_state: Value,
    state: Value,
    shape: tuple[Value, Value],
    c: Text,
) -> tuple[Value, Value, Value]:
    """Rows [n, H], zero at padding -> rows [n, H], convolution state, recurrent state.

    Args:
        conv_state: T [B, Tc, K]: the last K columns of the raw projection.
        state: float32 [B, gv, dk, dv].
        shape: B and S, int64 [1] each.
    """
    batch, length = shape
    rows = g.Concat(batch, length, [c.Tc], axis=0)
    qkv = g.Reshape(g.linear(h, "in_proj_qkv", c.Tc), rows, shape=["batch", "sequence", c.Tc])
    mixed, conv_state = causal_taps(g, conv_state, qkv, "conv1d", c.K)
    tokens = _tokens(g, h, silu(g, narrow(g, mixed, h.dtype)), shape, c)
    one = g.Squeeze(g.Equal(length, 1), [0], shape=[])
    step, chunks = g.body("step"), g.body("chunks")
    for body, how in ((step, single), (chunks, chunked)):
        o, u = how(body, tokens, _grouped(body, state, c), c)
        body.output(f"{body.scope}{body.name}.o", o)
        body.output(f"{body.scope}{body.name}.u", u)
    o, u = g.op("If", one, then_branch=step, else_branch=chunks, outputs=2)
    o = g.Transpose(o, perm=[0, 3, 1, 2, 4])  # [B, S, gk, rep, dv]
    o = narrow(g, g.Reshape(o, [-1, c.gv, c.dv], shape=["rows", c.gv, c.dv]), h.dtype)
    u = g.Reshape(u, [0, c.gv, c.dk, c.dv], shape=["batch", c.gv, c.dk, c.dv])
    z = g.Reshape(g.linear(h, "in_proj_z", c.gv * c.dv), [-1, c.gv, c.dv])
    y = g.Reshape(gated_norm(g, o, z, c), [-1, c.gv * c.dv], shape=["rows", c.gv * c.dv])
    return g.linear(y, "out_proj", c.H), conv_state, u


def gated_norm(g: Graph, o: Value, z: Value, c: Text) -> Value:
    """RMS norm over dv in float32, rounded to T, times w in T, times act(z) in float32."""
    one = g.constant(np.ones(c.dv, np.float32))
    y = narrow(g, g.at("norm").RMSNormalization(wide(g, o), one, axis=-1, epsilon=c.eps), o.dtype)
    y = g.Mul(y, g.parameter("norm.weight", [c.dv], o.dtype))
    gate = wide(g, z)
    act = g.Sigmoid(gate)
    act = act if c.gate == "sigmoid" else g.Mul(gate, act)
    return narrow(g, g.Mul(wide(g, y), act), o.dtype)


def _grouped(g: Graph, state: Value, c: Text) -> Value:
    rep = c.gv // c.gk
    return g.Reshape(state, [0, c.gk, rep, c.dk, c.dv], shape=["batch", c.gk, rep, c.dk, c.dv])


def _tokens(g: Graph, h: Value, mixed: Value, shape: tuple[Value, Value], c: Text) -> Tokens:
    """Queries, keys and values out of the convolved projection [B, S, Tc], and the two gates."""
    rep = c.gv // c.gk
    wide_keys = c.gk * c.dk
    q, k, v = g.Split(mixed, [wide_keys, wide_keys, c.gv * c.dv], axis=-1, outputs=3)

    def heads(x: Value, n: int, width: int) -> Value:
        """[B, S, gk n width] -> float32 [B, gk, n, S, width]."""
        x = g.Reshape(wide(g, x), [0, 0, c.gk, n, width])
        dims = ["batch", c.gk, n, "sequence", width]
        return g.Transpose(x, perm=[0, 2, 3, 1, 4], shape=dims)

    def gate(name: str) -> Value:
        """A projection to one number a value head, T [B, S, gv]."""
        to = g.Concat(*shape, [c.gv], axis=0)
        return g.Reshape(g.linear(h, name, c.gv), to, shape=["batch", "sequence", c.gv])

    beta = g.Sigmoid(gate("in_proj_b"))
    bias = wide(g, g.parameter("dt_bias", [c.gv], h.dtype))
    rate = g.Exp(wide(g, g.parameter("A_log", [c.gv], h.dtype)))
    a = wide(g, gate("in_proj_a"))
    decay = g.Neg(g.Mul(rate, g.Softplus(g.Add(a, bias))))
    return Tokens(
        q=g.Mul(_unit(g, heads(q, 1, c.dk)), float(c.dk**-0.5)),
        k=_unit(g, heads(k, 1, c.dk)),
        v=heads(v, rep, c.dv),
        beta=heads(beta, rep, 1),
        decay=heads(decay, rep, 1),
    )


def _unit(g: Graph, x: Value) -> Value:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    total = g.ReduceSumSquare(x, [-1], keepdims=1)
    return g.Div(x, g.Sqrt(g.Add(total, float(L2_EPS))))


def single(g: Graph, t: Tokens, u: Value, c: Text) -> tuple[Value, Value]:
    """One token: o [B, gk, rep, 1, dv] and the new state.

    Key and query read the state in one product: o = e^g q U + (q.k) d.
    """
    rep = c.gv // c.gk
    fade = g.Exp(t.decay)  # [B, gk, rep, 1, 1]
    both = g.Concat(t.k, t.q, axis=3)  # [B, gk, 1, 2, dk]
    seen = g.Mul(g.MatMul(both, u), fade)  # [B, gk, rep, 2, dv]
    by_key, by_query = g.Split(seen, [1, 1], axis=3, outputs=2)
    d = g.Mul(g.Sub(t.v, by_key), t.beta)
    match = g.ReduceSum(g.Mul(t.q, t.k), [-1], keepdims=1)  # [B, gk, 1, 1, 1]
    o = g.Add(by_query, g.Mul(match, d), shape=["batch", c.gk, rep, "sequence", c.dv])
    column = g.Transpose(t.k, perm=[0, 1, 2, 4, 3])  # [B, gk, 1, dk, 1]
    grown = g.Add(g.Mul(u, fade), g.Mul(column, d))
    return o, grown


def chunked(g: Graph, t: Tokens, u: Value, c: Text, chunk: int = CHUNK) -> tuple[Value, Value]:
    """Any number of tokens: o [B, gk, rep, S, dv] and the new state.

    Tokens that fill up the last chunk have k = 0 and g = 0: they change nothing.
    """
    rep = c.gv // c.gk
    length = g.Shape(t.k, start=3, end=4)
    missing = g.Mod(g.Neg(length), [chunk])
    pads = g.Concat([0] * 8, missing, [0], axis=0)

    def cut(x: Value) -> Value:
        """[B, gk, m, S, w] -> [n, B, gk, m, C, w]."""
        heads, width = x.shape[2], x.shape[4]
        x = g.Pad(x, pads, shape=["batch", c.gk, heads, None, width])
        x = g.Reshape(x, [0, 0, 0, -1, chunk, width])
        dims = [None, "batch", c.gk, heads, chunk, width]
        return g.Transpose(x, perm=[3, 0, 1, 2, 4, 5], shape=dims)

    q, k, v, beta, decay = (cut(x) for x in (t.q, t.k, t.v, t.beta, t.decay))
    total = g.CumSum(decay, g.constant(np.int64(4)))  # [n, B, gk, rep, C, 1]
    turned = [0, 1, 2, 3, 5, 4]
    # e^(G_i - G_j): the difference is <= 0 where it is used, and set to -inf elsewhere, before exp
    gap = g.Sub(total, g.Transpose(total, perm=turned))
    upto = np.tril(np.ones((chunk, chunk), bool))
    fade = g.Exp(
        g.Where(g.constant(upto), gap, g.constant(np.float32(-np.inf)))
    )  # [n, B, gk, rep, C, C]
    keys = g.Transpose(k, perm=turned)
    a = g.Mul(g.MatMul(q, keys), fade)
    m = g.Mul(g.Mul(g.MatMul(k, keys), fade), beta)
    r = inverse(g, m, chunk)
    grown = g.Exp(total)
    values = g.MatMul(r, g.Mul(v, beta))  # [n, B, gk, rep, C, dv]
    seen = g.MatMul(r, g.Mul(k, g.Mul(beta, grown)))  # [n, B, gk, rep, C, dk]
    ask = g.Mul(q, grown)
    last = g.Slice(total, [chunk - 1], [chunk], [4])  # [n, B, gk, rep, 1, 1]
    leave = g.Transpose(g.Mul(k, g.Exp(g.Sub(last, total))), perm=turned)  # [.., dk, C]

    body = g.body("chunk")
    name = body.scope
    before = body.input(f"{name}chunk.u", FLOAT, u.shape)
    dims: list[Dim] = ["batch", c.gk, rep]
    given = {"values": (values, [chunk, c.dv]), "seen": (seen, [chunk, c.dk]),
             "ask": (ask, [chunk, c.dk]), "a": (a, [chunk, chunk]),
             "leave": (leave, [c.dk, chunk]), "keep": (g.Exp(last), [1, 1])}  # fmt: skip
    inner = {k: body.input(f"{name}chunk.{k}", FLOAT, [*dims, *w]) for k, (_, w) in given.items()}
    d = body.Sub(inner["values"], body.MatMul(inner["seen"], before))
    o = body.Add(body.MatMul(inner["ask"], before), body.MatMul(inner["a"], d))
    after = body.Add(body.Mul(before, inner["keep"]), body.MatMul(inner["leave"], d))
    body.output(f"{name}chunk.after", after, shape=u.shape)
    body.output(f"{name}chunk.o", o, shape=[*dims, chunk, c.dv])
    scanned = [v for v, _ in given.values()]
    u, o = g.op("Scan", u, *scanned, body=body, num_scan_inputs=len(scanned), outputs=2)
    o = g.Transpose(o, perm=[1, 2, 3, 0, 4, 5])  # [B, gk, rep, n, C, dv]
    o = g.Reshape(o, [0, 0, 0, -1, c.dv], shape=["batch", c.gk, rep, None, c.dv])
    o = g.Slice(o, [0], length, [3], shape=["batch", c.gk, rep, "sequence", c.dv])
    return o, u


def inverse(g: Graph, m: Value, size: int) -> Value:
    """(1 + M)^-1 of strictly lower triangular M [..., size, size]; size is a power of two.

    Diagonal blocks are inverted at twice the size in each round. With R the inverse of the
    diagonal blocks and L what M has below them inside a block of twice the size, the next R is
    R - R L R. No power of M is taken, which would overflow where keys repeat.
    """
    index = np.arange(size)
    r: Value | None = None
    block = 1
    while block < size:
        same = index[:, None] // (2 * block) == index // (2 * block)
        below = same & (index[:, None] // block != index // block) & (index[:, None] > index)
        part = g.Mul(m, g.constant(below.astype(np.float32)))
        if r is None:
            r = g.Sub(g.constant(np.eye(size, dtype=np.float32)), part)
        else:
            r = g.Sub(r, g.MatMul(r, g.MatMul(part, r)))
        block *= 2
    return r if r is not None else g.Add(m, g.constant(np.eye(size, dtype=np.float32)))
