"""Tiny image-text checkpoints; their vision and embedding graphs, run with the weights inside."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from safetensors import safe_open
from safetensors.numpy import load_file

from ntool.lib.families.qwen4_exp import embedding as embedding_module
from ntool.lib.families.qwen4_exp import vision
from ntool.lib.families.qwen4_exp.config import Qwen4ExpConfig, read_config
from ntool.lib.graph.builder import FLOAT, FLOAT16, Graph

Arrays = dict[str, np.ndarray]
DATA = Path(__file__).parents[2] / "data" / "qwen4-exp"
CASES = ["image-text", "vision-gelu"]
NUMPY = {FLOAT: np.float32, FLOAT16: np.float16}


class Case:
    """One tiny checkpoint: its config, weights as float32 and goldens."""

    def __init__(self, name: str) -> None:
        self.folder = DATA / name
        self.values: dict[str, Any] = json.loads((self.folder / "config.json").read_text("utf-8"))
        self.w = load_weights(self.folder)

    @property
    def config(self) -> Qwen4ExpConfig:
        return read_config(self.values)

    def golden(self, name: str = "prefill") -> Arrays:
        return load_file(self.folder / "golden" / f"{name}.safetensors")


@cache
def load_case(name: str) -> Case:
    return Case(name)


def load_weights(folder: Path) -> Arrays:
    """Tensors of the tower and of the embedding, BF16 widened, names as graphs spell them."""
    weights: Arrays = {}
    for file in sorted(folder.glob("model-*.safetensors")):
        with safe_open(file, "np") as f:
            for name in f.keys():  # noqa: SIM118 (not a dict)
                if name.startswith("model.visual.") or name.endswith("embed_tokens.weight"):
                    spelled = name.replace("model.language_model.", "model.")
                    weights[spelled] = f.get_tensor(name).astype(np.float32)
    return weights


class Weights:
    """Claims that check names, shapes and uses against the checkpoint's own tensors."""

    def __init__(self, tensors: Arrays) -> None:
        self.tensors, self.claimed = tensors, set[str]()

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        assert self.tensors[name].shape == shape, (name, self.tensors[name].shape, shape)
        self.claimed.add(name)
        return "inside"


def vision_graph(values: dict[str, Any], tensors: Arrays, dtype: int = FLOAT) -> Graph:
    c = read_config(values)
    assert c.vision is not None
    return vision.vision_encoder(c.vision, c.text.H, Weights(tensors), dtype)


def embedding_graph(values: dict[str, Any], tensors: Arrays, dtype: int = FLOAT) -> Graph:
    c = read_config(values)
    assert c.image_token_id is not None and c.video_token_id is not None
    return embedding_module.embedding(
        c.text.V, c.text.H, c.image_token_id, c.video_token_id, Weights(tensors), dtype
    )


def session(
    g: Graph, tensors: Arrays, level: ort.GraphOptimizationLevel | None = None
) -> ort.InferenceSession:
    """A session on the CPU; the model passes the checker with strict shape inference first."""
    model = g.model()
    for t in model.graph.initializer:
        if t.external_data:
            del t.external_data[:]
            t.data_location = onnx.TensorProto.DEFAULT
            kind = onnx.helper.tensor_dtype_to_np_dtype(t.data_type)
            t.raw_data = tensors[t.name].astype(kind).tobytes()
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if level is not None:
        options.graph_optimization_level = level
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run_vision(
    values: dict[str, Any], tensors: Arrays, pixels: np.ndarray, grids: Any, dtype: int = FLOAT
) -> np.ndarray:
    """image_features of patches [N, 1536]."""
    s = session(vision_graph(values, tensors, dtype), tensors)
    feeds = {"pixel_values": pixels.astype(NUMPY[dtype]), "image_grid_thw": np.asarray(grids)}
    return s.run(["image_features"], feeds)[0]
