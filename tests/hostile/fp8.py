"""Scales of FP8 weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..fp8 import fp8_files
from .making import FP8, case

DOWN = "model.layers.0.mlp.down_proj.weight"
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}


def fp(
    name: str,
    verdict: str,
    scale: Any,
    *,
    dtype: str = "BF16",
    shape: tuple[int, int] = (200, 300),
    suffix: str = "_scale_inv",
    config: dict[str, Any] | None = None,
    words: str | None = None,
    codes: str = "F8_E4M3",
) -> None:
    """A weight of random codes with a scale: an array (float32), or None for none."""

    def build(folder: Path) -> None:
        rng = np.random.default_rng(5)
        arrays = {DOWN: (codes, fp8_files.codes(rng, *shape))}
        if scale is not None:
            stored = np.asarray(scale, np.float32)
            if dtype == "BF16":
                stored = (stored.view(np.uint32) >> 16).astype(np.uint16)
            arrays[DOWN + suffix] = (dtype, stored.astype(fp8_files.NUMPY.get(dtype, stored.dtype)))
        fp8_files.write(folder / "model.safetensors", arrays)
        values = {
            "model_type": "qwen4_exp_text",
            "num_hidden_layers": 1,
            "quantization_config": config or BLOCKS,
        }
        (folder / "config.json").write_text(json.dumps(values))

    case(name, verdict, build, kind="fp8", main=".", commands=FP8, words=words)


def grid(rows: int, columns: int, *odd: float) -> Any:
    found = np.full((rows, columns), 0.5, np.float32)
    found.flat[: len(odd)] = odd
    return found


fp("fp-ok-odd-grid", "accept", grid(2, 3))
fp("fp-ok-float32-scale", "accept", grid(2, 3), dtype="F32")
fp("fp-ok-one-by-one", "accept", grid(1, 1), shape=(1, 1))
for label, odd in {"infinity": np.inf, "minus-infinity": -np.inf, "nan-bits": np.nan}.items():
    fp(f"fp-bad-scale-{label}", "reject", grid(2, 3, 0.5, odd))
fp("fp-scale-zero", "warn_or_reject", grid(2, 3, 0.0))
fp("fp-scale-zeros", "accept", grid(2, 3, *[0.0] * 6))
fp("fp-scale-minus-zero", "warn_or_reject", grid(2, 3, -0.0))
fp("fp-bad-scale-last-neg", "warn_or_reject", grid(2, 3, 1, 1, 1, 1, 1, -1))
for label, size in {
    "transposed": (3, 2),
    "more": (2, 4),
    "less": (1, 3),
    "none": (0, 3),
    "one": (1, 1),
    "elements": (200, 300),
    "rows": (200, 1),
    "flat": (6,),
}.items():
    fp(
        f"fp-bad-grid-{label}",
        "warn_or_reject" if label == "one" else "difference",
        np.full(size, 0.5, np.float32),
    )
fp("fp-bad-no-scale", "difference", None)
fp("fp-bad-scale-dtype", "warn_or_reject", grid(2, 3), dtype="I64")
fp("fp-bad-scale-of-codes", "warn_or_reject", grid(2, 3), dtype="F8_E4M3")
fp("fp-bad-other-block", "difference", grid(2, 3), config={**BLOCKS, "weight_block_size": [64, 64]})
fp(
    "fp-bad-skip-prefix",
    "warn_or_reject",
    grid(2, 3),
    config={**BLOCKS, "modules_to_not_convert": ["model.layers.0"]},
)
fp(
    "fp-bad-skip-kind",
    "warn_or_reject",
    grid(2, 3),
    config={**BLOCKS, "modules_to_not_convert": "x"},
)
fp(
    "fp-bad-skip-number",
    "warn_or_reject",
    grid(2, 3),
    config={**BLOCKS, "modules_to_not_convert": [1]},
)
