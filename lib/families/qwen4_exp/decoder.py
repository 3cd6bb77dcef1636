"""The decoder as a graph: token ids (or embeddings) and state -> logits and state.

B sequences, S new tokens, P cached ones. Names of inputs and outputs are the package's interface.
Source: docs/qwen4-exp.md, "Decoder" and "Package".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.builder import FLOAT, INT64, Graph, Value, WeightSource
from ...graph.layers import rows_of, unrows
from . import hyper_connection
from .config import Text
from .delta_net import delta_net
from .mixture import Route, mixture
from .numerics import narrow
from .ple import Stored, ple
from .sparse_attention import scene, sparse_attention


@dataclass(frozen=True)
class State:
    """One tensor that a call hands to the next.

    Attributes:
        layer: None for what belongs to no layer.
        role, kind: as package.json has them.
        narrow: it has the model's type, whatever that is; else `dtype`.
        shape: symbolic dimensions as strings; `grows` is the axis that grows with the tokens.
        initial: value of the first call, where the state is not empty.
    """

    layer: int | None
    role: str
    kind: str
    shape: tuple[int | str, ...]
    dtype: int | None = None
    grows: int | None = None
    initial: int = 0

    @property
    def input(self) -> str:
        """Name of the input."""
        return "past_position_ids" if self.layer is None else f"past_key_values.{self._name()}"

    @property
    def output(self) -> str:
        """Name of the output."""
        return f"present{'_' if self.layer is None else '.'}{self._name()}"

    def _name(self) -> str:
        return self.role if self.layer is None else f"{self.layer}.{self.role}"


def states(c: Text) -> Iterator[State]:
    """The whole state of the decoder, layer by layer; the position history comes first."""
    yield State(None, "position_ids", "positions", (4, "batch", "past_sequence"), INT64, 2)
    for i, linear in enumerate(c.linear):
        if linear:
            yield State(i, "conv_state", "conv", ("batch", c.Tc, c.K))
            shape = ("batch", c.gv, c.dk, c.dv)
            yield State(i, "recurrent_state", "recurrent", shape, FLOAT)
        else:
            kv = ("batch", c.nkv, "past_sequence", c.D)
            yield State(i, "key", "kv", kv, grows=2)
            yield State(i, "value", "kv", kv, grows=2)
            yield State(i, "index_key", "index", ("batch", "past_sequence", c.Dx), grows=1)
        if i in c.ple:
            columns = (c.kp - 1) * c.n
            yield State(i, "ple_conv_state", "conv", ("batch", c.N * c.H, columns))
            context = ("batch", c.n - 1)
            yield State(i, "ple_context", "context", context, INT64, initial=c.eos[0])


def decoder(
    c: Text,
    weights: WeightSource,
    dtype: int,
    *,
    text_only: bool,
    route: str = "standard",
    fp8: bool = False,
    reading: str = "exact",
    rounded: bool = False,
) -> Graph:
    """The decoder of a package.

    Args:
        dtype: ONNX element type of the model.
        text_only: it takes `input_ids`; else `inputs_embeds` and `ple_input_ids`.
        route: `standard` or `fused` (mixture.py).
        fp8: experts and n-gram tables are stored as FP8 codes with their scales, and stay so.
        reading: of those scales, `exact` or `bf16`.
        rounded: 16-bit arithmetic is spelled out for runtimes that have none (graph/builder.py).
    """
    g = Graph("decoder", weights, rounded=rounded)
    model = g.at("model")
    if text_only:
        ids = g.input("input_ids", INT64, ["batch", "sequence"])
        table = model.parameter("embed_tokens.weight", [c.V, c.H], dtype)
        x = model.Gather(table, ids, axis=0, shape=["batch", "sequence", c.H])
    else:
        x = g.input("inputs_embeds", dtype, ["batch", "sequence", c.H])
        ids = g.input("ple_input_ids", INT64, ["batch", "sequence"])
    mask = g.input("attention_mask", INT64, ["batch", "total_sequence"])
    positions = g.input("position_ids", INT64, [4, "batch", "sequence"])
    past = {s.input: g.input(s.input, dtype if s.dtype is None else s.dtype, s.shape)
            for s in states(c)}  # fmt: skip
    new: dict[str, Value] = {}
    grown = [4, "batch", "total_sequence"]
    history = g.Concat(past["past_position_ids"], positions, axis=2, shape=grown)
    new["past_position_ids"] = history
    h, rows = rows_of(g, x)
    shape = (rows.batch, rows.sequence)
    keep = _keep(g, mask, shape)  # bool [B, S]
    share = g.Reshape(g.Cast(keep, to=FLOAT), [-1, 1, 1], shape=["rows", 1, 1])
    hashed = g.Where(keep, ids, c.eos[0]) if c.ple else ids
    sparse = None
    if not all(c.linear):
        sparse = scene(g, mask, positions, history, shape, c, dtype)
    x = g.Concat(*[h] * c.N, axis=1, shape=["rows", c.N * c.H])
    experts = Route(route == "fused" and not fp8, fp8, reading)
    stored = Stored(fp8, reading)
    for i, linear in enumerate(c.linear):
        layer = model.at(f"layers.{i}")
        old = {s.role: past[s.input] for s in states(c) if s.layer == i}

        def keeps(values: dict[str, Value], i: int = i) -> None:
            for role, value in values.items():
                new[f"past_key_values.{i}.{role}"] = value

        if i in c.ple:
            x, context, conv = ple(
                layer.at("ple"), x, hashed, share, old["ple_context"], old["ple_conv_state"],
                shape, c.ple.index(i), stored, c,
            )  # fmt: skip
            keeps({"ple_context": context, "ple_conv_state": conv})
        hc = layer.at("attn_hyper_connection")
        h, normed = hyper_connection.read(hc, x, c)
        inj = hyper_connection.inject(hc, normed, c)
        if linear:
            here = layer.at("linear_attn")
            flag = here.Reshape(narrow(here, share, dtype), [-1, 1], shape=["rows", 1])
            o, conv, state = delta_net(
                here, here.Mul(h, flag), old["conv_state"], old["recurrent_state"], shape, c
            )
            keeps({"conv_state": conv, "recurrent_state": state})
        else:
            assert sparse is not None
            cached = (old["key"], old["value"], old["index_key"])
            o, k, v, raw = sparse_attention(layer.at("self_attn"), h, cached, sparse, c)
            keeps({"key": k, "value": v, "index_key": raw})
        x = hyper_connection.write(layer, x, o, inj, c)
        hc = layer.at("mlp_hyper_connection")
        h, normed = hyper_connection.read(hc, x, c)
        inj = hyper_connection.inject(hc, normed, c)
        x = hyper_connection.write(layer, x, mixture(layer.at("mlp"), h, experts, c), inj, c)
    h, _ = hyper_connection.read(model.at("hyper_connection_mixer"), x, c)
    logits = g.linear(h, "lm_head", c.V)
    g.output("logits", unrows(g, logits, rows, [c.V]), ["batch", "sequence", c.V])
    for s in states(c):
        dims: list[Any] = ["total_sequence" if a == s.grows else d for a, d in enumerate(s.shape)]
        g.output(s.output, new[s.input], dims)
    return g


def _keep(g: Graph, mask: Value, shape: tuple[Value, Value]) -> Value:
    """Which new tokens are real, bool [B, S]: the last columns of the mask. A single new token is
    always taken as real."""
    length = shape[1]
    last = g.Slice(mask, g.Neg(length), [np.iinfo(np.int64).max], [1], shape=["batch", "sequence"])
    return g.Or(g.Not(g.Equal(last, 0)), g.Equal(length, 1), shape=["batch", "sequence"])
