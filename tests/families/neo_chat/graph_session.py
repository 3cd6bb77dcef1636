"""Running a piece of a graph with a tiny checkpoint's weights inside, and tapping values of a whole
one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort

from ntool.lib.families.neo_chat.components import BUILDERS
from ntool.lib.families.neo_chat.config import NeoChatConfig, read_config
from ntool.lib.families.neo_chat.weights import renamed
from ntool.lib.graph.builder import FLOAT, INT64, Graph, Value
from ntool.lib.package.bindings import STACKED

from .golden_cases import Case, load_case

Arrays = dict[str, np.ndarray]
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}


class Weights:
    """Claims that check shapes against the checkpoint's own tensors; banks are stacked when
    asked."""

    def __init__(self, tensors: Arrays, c: NeoChatConfig) -> None:
        self.tensors, self.config = tensors, c

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        stored, reason = renamed(self.config, name, shape)
        if name not in self.tensors:
            parts = [self.tensors[n] for n, _ in stored]
            self.tensors[name] = np.stack(parts) if reason == STACKED else parts[0]
        assert self.tensors[name].shape == shape, (name, self.tensors[name].shape, shape)
        return "inside"


def run_model(g: Graph, tensors: Arrays, feeds: Arrays, taps: Sequence[str] = ()) -> Arrays:
    """Run a graph whose external weights are taken from `tensors`; `taps` are inner values to
    see."""
    model = g.model()
    for t in model.graph.initializer:
        if t.external_data:
            del t.external_data[:]
            t.data_location = onnx.TensorProto.DEFAULT
            t.raw_data = tensors[t.name].tobytes()
    for name in taps:
        value = g.values[name]
        shape = [None if isinstance(d, str) else d for d in value.shape]
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, value.dtype, shape))
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def run_piece(
    case: Case,
    build: Callable[[Graph, NeoChatConfig, dict[str, Value]], Sequence[Value]],
    feeds: Arrays,
    dims: dict[str, Sequence[str | int | None]] | None = None,
) -> list[np.ndarray]:
    """Build a piece of graph on inputs like `feeds` and run it."""
    g = Graph("piece", Weights(case.w, config_of(case)))
    inputs = {
        k: g.input(k, TYPES[v.dtype], (dims or {}).get(k, list(v.shape))) for k, v in feeds.items()
    }
    values = build(g, config_of(case), inputs)
    for i, value in enumerate(values):
        g.output(f"out.{i}", value)
    found = run_model(g, case.w, feeds)
    return [found[f"out.{i}"] for i in range(len(values))]


def config_of(case: Case) -> NeoChatConfig:
    return read_config(case.config)


@cache
def component(case_name: str, name: str) -> Graph:
    """A component's graph for a tiny checkpoint."""
    case = load_case(case_name)
    c = config_of(case)
    head = case.w["fm_modules.fm_head." + ("conv1" if c.pixel_head else "0") + ".weight"].shape[0]
    return BUILDERS[name](c, Weights(case.w, c), FLOAT, case.context_id, head)


def run_component(case_name: str, name: str, feeds: Arrays, taps: Sequence[str] = ()) -> Arrays:
    return run_model(component(case_name, name), load_case(case_name).w, feeds, taps)


def empty_cache(c: NeoChatConfig) -> Arrays:
    shape = (1, c.llm.KV, 0, c.llm.hd)
    return {
        f"past.{i}.{role}": np.zeros(shape, np.float32)
        for i in range(c.llm.Nl)
        for role in ("key", "value")
    }
