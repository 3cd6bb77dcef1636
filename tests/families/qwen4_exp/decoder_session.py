"""The decoder's graph with weights inside, run call after call as a package's runner will.

Weights take the way of a package: `weights.renamed` says which stored tensors a parameter is made
of, and their bytes are joined in that order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.families.qwen4_exp.config import read_config
from ntool.lib.families.qwen4_exp.decoder import decoder, states
from ntool.lib.families.qwen4_exp.weights import renamed
from ntool.lib.graph.builder import FLOAT, Graph
from ntool.lib.runtime.session import Session, Settings

from .decoder_cases import config_of, stored
from .reference_layers import Array

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
State = dict[str, Array]


class Weights:
    """Claims that are met by a checkpoint's tensors, joined; nothing else is accepted."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self.tensors = tensors
        headers = {n: Tensor(n, "", v.shape, "", 0, 0) for n, v in tensors.items()}
        self.rename = renamed(read_config(dict(config), text_only=True), headers)
        self.found: dict[str, Array] = {}
        self.used: set[str] = set()

    def part(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """One stored tensor in the type of the graph; FP8 codes are only ever handed through."""
        value = self.tensors[name]
        assert value.shape == shape, (name, value.shape, shape)
        assert (value.dtype == FP8) == (kind == FP8), (name, value.dtype, kind)
        self.used.add(name)
        return value.astype(kind)

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        parts, _ = self.rename(name, shape)
        joined = b"".join(self.part(n, s, kind).tobytes() for n, s in parts)
        assert len(joined) == math.prod(shape) * kind.itemsize, name
        self.found[name] = np.frombuffer(joined, kind).reshape(shape)
        return "inside"


def with_weights(g: Graph, found: Mapping[str, Array]) -> onnx.ModelProto:
    """A graph's model with its parameters' values stored inside."""
    model = g.model()
    for t in model.graph.initializer:
        if t.external_data:
            del t.external_data[:]
            t.data_location = onnx.TensorProto.DEFAULT
            t.raw_data = found[t.name].tobytes()
    return model


def session(g: Graph, found: Mapping[str, Array]) -> Session:
    """A session on one thread of the CPU."""
    return Session(with_weights(g, found).SerializeToString(), Settings(threads=1), name=g.name)


class Decoder:
    """A decoder's graph in a session.

    Args:
        config: config.json; tensors: of the checkpoint, by full names, as they are stored.
        how: of `decoder`: dtype, text_only, route, fp8, reading, rounded.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, Array] | Weights,
        *,
        dtype: int = FLOAT,
        text_only: bool = True,
        **how: Any,
    ) -> None:
        self.c = read_config(dict(config), text_only=True).text
        self.kind = helper.tensor_dtype_to_np_dtype(dtype)
        self.weights = tensors if isinstance(tensors, Weights) else Weights(config, tensors)
        self.graph = decoder(self.c, self.weights, dtype, text_only=text_only, **how)
        self.session = session(self.graph, self.weights.found)

    def first_state(self, B: int) -> State:
        """What the first call is given, by the names of the inputs."""
        state = {}
        for s in states(self.c):
            sizes = {"batch": B, "past_sequence": 0}
            shape = [sizes[d] if isinstance(d, str) else d for d in s.shape]
            kind = self.kind if s.dtype is None else helper.tensor_dtype_to_np_dtype(s.dtype)
            state[s.input] = np.full(shape, s.initial, kind)
        return state

    def call(self, g: Mapping[str, Array], state: State | None) -> tuple[dict[str, Array], State]:
        """One call with the inputs of a golden: every output by its name, and the state.

        Embeddings are given where the golden has them and the graph takes them; a mask or positions
        that it lacks are those of rows without padding.
        """
        ids = g["input_ids"]
        B, S = ids.shape
        past = self.first_state(B) if state is None else state
        before = past["past_position_ids"].shape[2]
        plain = np.broadcast_to(np.arange(before, before + S), (4, B, S))
        feeds = {
            "input_ids": ids,
            "ple_input_ids": ids,
            "attention_mask": g.get("attention_mask", np.ones((B, before + S), np.int64)),
            "position_ids": np.ascontiguousarray(g.get("position_ids", plain)),
            **past,
        }
        if "inputs_embeds" in g:
            feeds["inputs_embeds"] = g["inputs_embeds"].astype(self.kind)
        outputs = self.session.run(feeds)
        return outputs, {s.input: outputs[s.output] for s in states(self.c)}


@cache
def graph_of(name: str, **how: Any) -> Decoder:
    """The graph of a tiny checkpoint, made once; runs leave nothing in it."""
    return Decoder(config_of(name), stored(name), **how)
