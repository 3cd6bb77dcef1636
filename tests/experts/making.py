"""Makes the headers of groups of experts, whole ones, so that a test can damage one thing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.experts.detect import Detection, detect

Headers = dict[str, tuple[str, tuple[int, ...]]]
"""{name: (dtype, shape)}"""
SPLIT_NAMES = {
    "gate-up-down": {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
    "w1-w3-w2": {"gate": "w1", "up": "w3", "down": "w2"},
    "fc1-fc3-fc2": {"gate": "fc1", "up": "fc3", "down": "fc2"},
    "up-down": {"up": "up_proj", "down": "down_proj"},
    "wi-wo": {"up": "wi", "down": "wo"},
    "fc1-fc2": {"up": "fc1", "down": "fc2"},
}
NUMBERED = ("wi-wo", "fc1-fc2")
"""Namings whose experts are called `expert_J`."""


def tensors(headers: Headers) -> list[Tensor]:
    return [Tensor(n, dtype, shape, "a.safetensors", 0, 0) for n, (dtype, shape) in headers.items()]


def found(headers: Headers, config: dict[str, Any] | None = None) -> Detection:
    return detect(tensors(headers), config or {})


def codes(detection: Detection) -> list[str]:
    return [p["code"] for p in detection.problems]


def one(detection: Detection) -> dict[str, Any]:
    """The only problem."""
    (problem,) = detection.problems
    return problem


@dataclass(frozen=True)
class Sizes:
    E: int = 4
    H: int = 8
    I: int = 6  # noqa: E741

    @property
    def config(self) -> dict[str, Any]:
        return {
            "num_experts": self.E,
            "hidden_size": self.H,
            "moe_intermediate_size": self.I,
            "intermediate_size": self.I + 5,
        }


def split(
    group: str,
    sizes: Sizes,
    naming: str = "gate-up-down",
    dtype: str = "BF16",
    experts: Iterable[int] | None = None,
) -> Headers:
    out: Headers = {}
    before = "expert_" if naming in NUMBERED else ""
    for j in range(sizes.E) if experts is None else experts:
        for role, module in SPLIT_NAMES[naming].items():
            shape = (sizes.H, sizes.I) if role == "down" else (sizes.I, sizes.H)
            out[f"{group}.{before}{j}.{module}.weight"] = dtype, shape
    return out


def packed(group: str, sizes: Sizes, naming: str = "w1-w3-w2", dtype: str = "I8") -> Headers:
    """Two values in a byte along the input axis, with scales for 32 values each."""
    out: Headers = {}
    for name, (_, (rows, columns)) in split(group, sizes, naming).items():
        out[name] = dtype, (rows, columns // 2)
        out[name.removesuffix("weight") + "scale"] = "F8_E8M0", (rows, -(-columns // 32))
    return out


def fused(
    group: str,
    sizes: Sizes,
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    transposed: bool = False,
    dtype: str = "BF16",
) -> Headers:
    E, H, I = sizes.E, sizes.H, sizes.I  # noqa: E741
    wide, down = ((E, H, 2 * I), (E, I, H)) if transposed else ((E, 2 * I, H), (E, H, I))
    return {f"{group}.{names[0]}": (dtype, wide), f"{group}.{names[1]}": (dtype, down)}


def stacked(
    group: str,
    sizes: Sizes,
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
    transposed: bool = False,
) -> Headers:
    """Three banks, or up and down for two names."""
    E, H, I = sizes.E, sizes.H, sizes.I  # noqa: E741
    wide, down = ((E, H, I), (E, I, H)) if transposed else ((E, I, H), (E, H, I))
    shapes = [wide, wide, down][-len(names) :]
    return {f"{group}.{n}": ("BF16", s) for n, s in zip(names, shapes, strict=True)}


def flat(group: str, sizes: Sizes) -> Headers:
    shape = (sizes.E * sizes.I, sizes.H)
    return {f"{group}.mlp.{n}": ("BF16", shape) for n in ("w1", "v1", "w2")}


def mxfp4(group: str, sizes: Sizes, bias: bool = True) -> Headers:
    E, H, I = sizes.E, sizes.H, sizes.I  # noqa: E741
    out: Headers = {}
    for name, rows, columns in (("gate_up_proj", 2 * I, H), ("down_proj", H, I)):
        assert columns % 32 == 0
        out[f"{group}.{name}_blocks"] = "U8", (E, rows, columns // 32, 16)
        out[f"{group}.{name}_scales"] = "U8", (E, rows, columns // 32)
        if bias:
            out[f"{group}.{name}_bias"] = "BF16", (E, rows)
    return out


def scaled(headers: Headers, suffix: str, block: tuple[int, int]) -> Headers:
    """FP8 weights with their grids. The suffix follows the name, or replaces `weight`."""
    out: Headers = {}
    for name, (_, shape) in headers.items():
        out[name] = "F8_E4M3", shape
        *lead, rows, columns = shape
        grid = (*lead, -(-rows // block[0]), -(-columns // block[1]))
        base = name.removesuffix("weight") if suffix[0] not in "._" else name
        out[base + suffix] = "F32", grid
    return out


GROUP = "model.layers.0.mlp.experts"
OTHER = "model.layers.1.mlp.experts"
SIZES = Sizes()
BLOCKS = {"quantization_config": {"weight_block_size": [4, 4]}}


def without(headers: Headers, *parts: str) -> Headers:
    kept = {n: t for n, t in headers.items() if not any(p in n for p in parts)}
    assert len(kept) < len(headers)
    return kept
