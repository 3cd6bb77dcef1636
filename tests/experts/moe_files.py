"""Checkpoints of experts on disk, in any layout, laid out by NumPy alone: stack, concatenate,
swapaxes. What conversions give is compared with these."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import BITS, Checkpoint
from ntool.lib.conversion.plan import Plan
from ntool.lib.experts import convert

Array = np.ndarray[Any, Any]
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""{name: (dtype, shape, payload)}"""
MODULES = {
    "gate-up-down": {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
    "w1-w3-w2": {"gate": "w1", "up": "w3", "down": "w2"},
}
LAYOUTS = ("split", "fused", "fused-transposed", "stacked")


@dataclass
class Experts:
    """The matrices [E, out, in] of one group, and their scales as [E, rows, columns].

    Attributes:
        weights, scales: by role; no gate where there is none.
        one: a scale for each matrix.
    """

    dtype: str
    weights: dict[str, Array]
    scales: dict[str, Array] = field(default_factory=dict)
    one: bool = False


def random_experts(
    seed: int, E: int, H: int, I: int, dtype: str = "BF16", gated: bool = True,  # noqa: E741
    block: tuple[int, int] | str | None = None,
) -> Experts:  # fmt: skip
    """Random bytes.

    Args:
        block: of scales in F32; "matrix" or "row" for one for each; None: no scales.
    """
    rng = np.random.default_rng(seed)
    roles = {"gate": (I, H), "up": (I, H), "down": (H, I)}
    if not gated:
        del roles["gate"]
    item = BITS[dtype] // 8

    def bits(shape: tuple[int, ...], item: int) -> Array:
        return rng.integers(0, 256, (*shape, item), np.uint8).view(f"u{item}")[..., 0]

    weights = {r: bits((E, *s), item) for r, s in roles.items()}
    scales = {}
    for role, (rows, columns) in roles.items() if block is not None else ():
        if isinstance(block, tuple):
            grid = -(-rows // block[0]), -(-columns // block[1])
        else:
            grid = (1, 1) if block == "matrix" else (rows, 1)
        scales[role] = bits((E, *grid), 4)
    return Experts(dtype, weights, scales, block == "matrix")


def laid_out(
    x: Experts, layout: str, group: str, *,
    names: str = "gate-up-down", order: str = "concatenated",
    banks: dict[str, str] | None = None, scale: str = "_scale_inv",
) -> Tensors:  # fmt: skip
    """A group in a layout.

    Args:
        banks: other names of banks: {"gate_up": "w13_weight"}.
        scale: what follows the name of a bank in that of its scales.
    """
    out: Tensors = {}
    parts = [("", "weight", x.dtype, x.weights)]
    if x.scales:
        parts.append((scale, "weight_scale_inv", "F32", x.scales))
    for end, leaf, dtype, arrays in parts:
        if layout == "split":
            for role, a in arrays.items():
                for j, matrix in enumerate(a):
                    name = f"{group}.{j}.{MODULES[names][role]}.{leaf}"
                    out[name] = dtype, matrix.shape, matrix.tobytes()
            continue
        turned = layout.endswith("transposed") and not (x.one and end)
        for role, bank in _banks(arrays, layout.startswith("fused"), order).items():
            a = bank.swapaxes(1, 2) if turned else bank
            stem = (banks or {}).get(role) or f"{role}_proj"
            out[f"{group}.{stem}{end}"] = dtype, a.shape, np.ascontiguousarray(a).tobytes()
    return out


def _banks(arrays: dict[str, Array], fused: bool, order: str) -> dict[str, Array]:
    if not fused or "gate" not in arrays:
        return arrays
    gate, up, down = arrays["gate"], arrays["up"], arrays["down"]
    if order == "interleaved":
        E, rows, columns = gate.shape
        both = np.stack([gate, up], axis=2).reshape(E, 2 * rows, columns)
    else:
        both = np.concatenate([gate, up], axis=1)
    return {"gate_up": both, "down": down}


def config_of(E: int, H: int, I: int, block: Any = None, **more: Any) -> dict[str, Any]:  # noqa: E741
    config: dict[str, Any] = {"hidden_size": H, "num_experts": E, "moe_intermediate_size": I}
    if block is not None:
        config["quantization_config"] = {"quant_method": "fp8"}
    if isinstance(block, tuple):
        config["quantization_config"]["weight_block_size"] = list(block)
    return {**config, **more}


def save(folder: Path, tensors: Tensors, config: dict[str, Any] | None, files: int = 1) -> Path:
    """Write a checkpoint, its tensors dealt out to files, with an index for several."""
    folder.mkdir(parents=True)
    shares = [list(tensors.items())[i::files] for i in range(files)]
    weight_map = {}
    for i, share in enumerate(shares, 1):
        name = f"model-{i:05d}-of-{files:05d}.safetensors" if files > 1 else "model.safetensors"
        header: dict[str, Any] = {}
        at = 0
        for tensor, (dtype, shape, payload) in share:
            header[tensor] = {
                "dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(payload)],
            }  # fmt: skip
            at += len(payload)
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.writelines(payload for _, (_, _, payload) in share)
    if files > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def tensors_of(checkpoint: Checkpoint) -> Tensors:
    return {
        n: (t.dtype, t.shape, b"".join(checkpoint.bands(t)))
        for n, t in checkpoint.tensors.items()
    }  # fmt: skip


def planned(plan: Plan) -> Tensors:
    """The tensors that a plan would write, without writing them."""

    def payload(entry: Any) -> Iterator[bytes]:
        for f, offset, nbytes in entry.copies():
            yield f.read(offset, nbytes)
        for band in entry.bands():
            yield bytes(band)

    with plan.files:
        return {
            e.name: (e.dtype, e.shape, b"".join(payload(e))) for s in plan.shards for e in s.entries
        }


def converted(source: Path, to: str, **wish: Any) -> Tensors:
    """What a checkpoint becomes."""
    return planned(convert.plan(open_checkpoint(str(source)), convert.Wish(to, **wish)))


def refused(source: Path, to: str, **wish: Any) -> list[str]:
    """Codes of the errors by which a conversion is refused."""
    try:
        convert.plan(open_checkpoint(str(source)), convert.Wish(to, **wish))
    except convert.Refused as e:
        return sorted({p.code for p in e.problems if p.severity == "error"})
    raise AssertionError("not refused")


def same(got: Tensors, wanted: Tensors) -> None:
    """Compare, and name what differs."""
    assert got.keys() == wanted.keys()
    wrong = [n for n in wanted if got[n] != wanted[n]]
    assert not wrong, [(n, got[n][:2], wanted[n][:2]) for n in wrong[:3]]
