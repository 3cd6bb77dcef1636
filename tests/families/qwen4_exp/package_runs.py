"""Exported packages of the tiny checkpoints in ONNX Runtime on the CPU, driven by package.json, and
their distance from the goldens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from ntool.lib.runtime.session import Session, Settings

from .decoder_cases import DATA, DTYPES

Arrays = dict[str, np.ndarray]
NARROW = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TYPES = {**NARROW, "int64": np.int64}
TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 1e-2}
"""rtol = atol that the goldens promise, by the type of the model."""


def golden(case: str, name: str) -> Arrays:
    """The arrays of a golden file, in their own types."""
    found = {}
    kinds = {**DTYPES, "F16": np.dtype(np.float16)}
    raw = (DATA / case / "golden" / f"{name}.safetensors").read_bytes()
    for key, entry in safetensors.deserialize(raw):
        value = np.frombuffer(entry["data"], kinds[entry["dtype"]])
        found[key] = value.reshape(entry["shape"])
    return found


def beginning(found: Arrays, prefix: str) -> Arrays:
    """Those whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}


class Packaged:
    """A package and a session of each component.

    Attributes:
        dtype: compute type of the decoder.
    """

    def __init__(self, root: Path) -> None:
        self.manifest: dict[str, Any] = json.loads((root / "package.json").read_text())
        self.sessions = {
            name: Session(root / c["graph"], Settings())
            for name, c in self.manifest["components"].items()
        }
        self.dtype: str = self.manifest["components"]["decoder"]["compute_dtype"]

    def run(self, component: str, feeds: Arrays) -> Arrays:
        """All outputs; inputs have the types of package.json, floats are cast to them."""
        ports = self.manifest["components"][component]["inputs"]
        assert {p["name"] for p in ports} == feeds.keys()
        session = self.sessions[component]
        return session.run({name: session.cast(name, v) for name, v in feeds.items()})

    def start(self, batch: int) -> Arrays:
        """The state of a first call, by its names as inputs."""
        found = {}
        for e in self.manifest["cache"]:
            sizes = {"batch": batch, "past_sequence": 0}
            shape = [d if isinstance(d, int) else sizes[d] for d in e["shape"]]
            found[e["input"]] = np.full(shape, e["initial"], TYPES[e["dtype"]])
        return found

    def after(self, outputs: Arrays) -> Arrays:
        """The state that a call leaves, by its names as inputs of the next."""
        return {e["input"]: outputs[e["output"]] for e in self.manifest["cache"]}

    def embedded(self, ids: np.ndarray, features: np.ndarray | None = None) -> np.ndarray:
        """inputs_embeds of ids; without features there are none."""
        if features is None:
            port = self.manifest["components"]["embedding"]["inputs"][1]
            features = np.zeros((0, port["shape"][1]), TYPES[port["dtype"]])
        feeds = {"input_ids": ids, "image_features": features}
        return self.run("embedding", feeds)["inputs_embeds"]

    def call(
        self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, state: Arrays,
        embeds: np.ndarray | None = None,
    ) -> Arrays:  # fmt: skip
        """One call of the decoder, whichever form it has."""
        feeds = {"attention_mask": mask, "position_ids": positions, **state}
        if "embedding" in self.sessions:
            feeds["inputs_embeds"] = self.embedded(ids) if embeds is None else embeds
            feeds["ple_input_ids"] = ids
        else:
            feeds["input_ids"] = ids
        return self.run("decoder", feeds)


def deviation(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> float:
    """|found - wanted| / (tolerance + tolerance |wanted|), the largest; inf where integers differ,
    or types or shapes."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return np.inf
    if wanted.dtype.kind in "iu":
        return 0.0 if np.array_equal(found, wanted) else np.inf
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if not np.isfinite(a).all():
        return np.inf
    return float((np.abs(a - b) / (tolerance + tolerance * np.abs(b))).max(initial=0.0))


def farthest(found: Arrays, wanted: Arrays, tolerance: float) -> tuple[float, str]:
    """The output that deviates most, among those that the golden has."""
    assert found.keys() & wanted.keys()
    return max((deviation(found[k], wanted[k], tolerance), k) for k in found if k in wanted)


def plain_positions(start: int, count: int) -> np.ndarray:
    """Positions of text alone, int64 [4, 1, count]."""
    return np.broadcast_to(np.arange(start, start + count), (4, 1, count)).copy()
