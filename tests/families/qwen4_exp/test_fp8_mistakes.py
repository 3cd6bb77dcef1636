"""That the goldens of FP8 weights catch the mistakes they are there for: digests and logits.

Each mistake is made in the multiplication of codes and scales; the rows are those of the table that
came with the goldens. Odd sizes are what shows most of them: 136 x 160 in blocks of 128.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from . import reference as R
from .decoder_cases import CAUGHT, DATA, config_of, deviations, golden, run_call, stored
from .reference_layers import Array

Factor = Callable[[Array, tuple[int, ...]], Array]
META = json.loads((DATA / "text-fp8" / "golden" / "meta.json").read_text())


def blocks(size: int) -> Array:
    return np.arange(size) // 128


def right(grid: Array, shape: tuple[int, ...]) -> Array:
    return grid[blocks(shape[0])[:, None], blocks(shape[1])]


def divided(grid: Array, shape: tuple[int, ...]) -> Array:
    return 1 / right(grid, shape)


def transposed(grid: Array, shape: tuple[int, ...]) -> Array:
    return right(grid.T, shape)


def equal_blocks(grid: Array, shape: tuple[int, ...]) -> Array:
    """A block is ceil(rows / rows of the grid) high, ceil(columns / its columns) wide."""
    rows, columns = (np.arange(s) // -(-s // g) for s, g in zip(shape, grid.shape, strict=True))
    return grid[rows[:, None], columns]


def one(grid: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(grid[:1, :1], shape)


def weights(
    factor: Factor = right,
    table: Callable[[Array], Array] = lambda scale: scale,
    codes: Callable[[Array], Array] = lambda codes: codes.astype(np.float32),
) -> dict[str, Array]:
    """`text-fp8` multiplied out in float32 in a way of one's own."""
    tensors, found = stored("text-fp8"), {}
    for name, value in tensors.items():
        if f"{name}_scale_inv" in tensors:
            found[name] = codes(value) * factor(tensors[f"{name}_scale_inv"], value.shape)
        elif ".ngram_embedding.shard_" in name:
            scale = tensors[f"{name.partition('.shard_')[0]}.weight_scale"]
            found[name] = codes(value) * table(scale)
        elif "scale" not in name:
            found[name] = value
    return found


def as_e5m2(codes: Array) -> Array:
    """Some of these codes are no numbers in the other format, so every logit is none."""
    return codes.view(ml_dtypes.float8_e5m2).astype(np.float32)


TABLE: dict[str, Callable[[], dict[str, Array]]] = {
    "scale divided instead of multiplied": lambda: weights(divided),
    "scale grid transposed": lambda: weights(transposed),
    "block size = ceil(rows/grid rows) instead of 128": lambda: weights(equal_blocks),
    "one scale per matrix": lambda: weights(one),
    "PLE scalar ignored": lambda: weights(table=np.ones_like),
    "PLE scalar divided": lambda: weights(table=lambda scale: 1 / scale),
    "codes read as E5M2": lambda: weights(codes=as_e5m2),
}


def differing(made: dict[str, Array]) -> int:
    """Tensors whose products have another digest than published."""
    wanted = META["sha256_exact_f32"]
    assert wanted.keys() <= made.keys()
    return sum(
        hashlib.sha256(np.ascontiguousarray(made[n], np.float32).tobytes()).hexdigest() != digest
        for n, digest in wanted.items()
    )


def farthest(made: dict[str, Array]) -> float:
    """The deviation of the logits of the prefill in tolerances; infinite for no numbers."""
    g = golden("text-fp8/golden/prefill")
    inputs = {k: g[k] for k in ("input_ids", "attention_mask", "position_ids")}
    with np.errstate(all="ignore"):
        outputs, _ = run_call(R.Decoder(config_of("text-fp8"), made), inputs, None)
    if not np.isfinite(outputs["logits"]).all():
        return np.inf
    return deviations({"logits": outputs["logits"]}, inputs | {"logits": g["exact.logits"]})[
        "logits"
    ]


def test_without_a_mistake() -> None:
    made = weights()
    assert differing(made) == 0 and farthest(made) < 1


@pytest.mark.parametrize("mistake", TABLE)
def test_the_mistake_is_caught(mistake: str) -> None:
    made = TABLE[mistake]()
    assert differing(made) > 0
    assert farthest(made) > CAUGHT
