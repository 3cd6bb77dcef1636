"""The tiny Qwen4-Exp checkpoints with their decoder goldens, for the NumPy reference.

A deviation is in units of the tolerance a golden promises, rtol = atol = 1e-3: the largest of
|actual - expected| / (1e-3 + 1e-3 |expected|) in an array.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import load_file

from . import reference as R
from . import reference_ple as ple
from .reference_layers import Array
from .reference_sizes import read_ngrams

DATA = Path(__file__).parents[2] / "data" / "qwen4-exp"
TOLERANCE = 1e-3

# Two float32 programs of 4 or 8 layers differ by roundings alone: 0.012 of the tolerance is the
# worst measured, and 0.03 is what the goldens' own second implementation stayed below.
CLOSE = 0.03
CAUGHT = 10.0
"""A mistake must deviate by more than this many tolerances."""


def deviation(actual: Array, expected: Array, tolerance: float = TOLERANCE) -> float:
    """The largest deviation in tolerances; infinite where integers differ or a value is not finite.

    Raises:
        AssertionError: shapes or dtypes differ.
    """
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    if expected.dtype.kind in "iub":
        return 0.0 if np.array_equal(actual, expected) else np.inf
    wide = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(wide[0]).all():
        return np.inf
    bound = tolerance + tolerance * np.abs(wide[1])
    return float((np.abs(wide[0] - wide[1]) / bound).max(initial=0.0))


def close(actual: Array, expected: Array) -> None:
    """Shape and dtype equal, values within CLOSE of the tolerance."""
    assert deviation(actual, expected) < CLOSE


# Names of types in a safetensors header; the library's NumPy reader does not know FP8.
DTYPES = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I64": np.dtype(np.int64),
}


def widened(value: Array) -> Array:
    """BF16 as float32, which holds it exactly; other types as they are."""
    return value.astype(np.float32) if value.dtype == ml_dtypes.bfloat16 else value


@cache
def config_of(name: str) -> dict[str, Any]:
    """config.json of a checkpoint."""
    return json.loads((DATA / name / "config.json").read_text())


@cache
def stored(name: str) -> dict[str, Array]:
    """Every tensor of a checkpoint by its full name, as it is stored, BF16 widened."""
    weights: dict[str, Array] = {}
    for shard in sorted((DATA / name).glob("model-*.safetensors")):
        for name, entry in safetensors.deserialize(shard.read_bytes()):
            value = np.frombuffer(entry["data"], DTYPES[entry["dtype"]])
            weights[name] = widened(value.reshape(entry["shape"]))
    return weights


@cache
def multiplied_out(rounded: bool) -> dict[str, Array]:
    """`text-fp8` with every code times its scale, in float32 or rounded once to BF16 (11.1)."""
    weights = {}
    for name, value in stored("text-fp8").items():
        scale = scale_of(name, value.shape)
        if scale is not None:
            value = value.astype(np.float32) * scale
            value = widened(value.astype(ml_dtypes.bfloat16)) if rounded else value
        if "scale" not in name:
            weights[name] = value
    return weights


def scale_of(name: str, shape: tuple[int, ...]) -> Array | None:
    """The float32 factor of every element of a tensor of FP8 codes, None for other tensors."""
    tensors = stored("text-fp8")
    if f"{name}_scale_inv" in tensors:
        grid = tensors[f"{name}_scale_inv"]
        rows, columns = (np.arange(size) // 128 for size in shape)
        return grid[rows[:, None], columns]
    if ".ngram_embedding.shard_" in name:
        return tensors[f"{name.partition('.shard_')[0]}.weight_scale"]
    return None


def decoder_of(name: str) -> R.Decoder:
    """The reference with the weights of a checkpoint, joined anew."""
    return R.Decoder(config_of(name), stored(name))


@cache
def golden(path: str) -> dict[str, Array]:
    """The tensors of a file, by its path in the folder of goldens without the suffix."""
    return load_file(DATA / f"{path}.safetensors")


def step_goldens(values: dict[str, Array]) -> list[dict[str, Array]]:
    """`step1.*`, `step2.*`, ... of a file, each without its prefix."""
    prefixes = {name.partition(".")[0] for name in values if name.startswith("step")}
    return [R.scoped(values, f"step{i + 1}") for i in range(len(prefixes))]


def run_call(
    decoder: R.Decoder, g: dict[str, Array], state: R.State | None
) -> tuple[dict[str, Array], R.State]:
    """One call with the inputs of a golden: its outputs by the golden's names, and the state.

    Embeddings are given where the golden has them, with the ids for the PLE; positions that it
    lacks are those of a row without padding.
    """
    ids = g["input_ids"]
    past = 0 if state is None else state["position_ids"].shape[2]
    B, S = ids.shape
    mask = g.get("attention_mask", np.ones((B, past + S), np.int64))
    plain = np.broadcast_to(np.arange(past, past + S), (4, B, S))
    positions = g.get("position_ids", plain)
    tokens = g.get("inputs_embeds", ids)
    logits, state = decoder.forward(tokens, ids, mask, positions, state)
    outputs = {f"present.{k}": v for k, v in state.items() if k != "position_ids"}
    return outputs | {"logits": logits, "present_position_ids": state["position_ids"]}, state


def at_real_tokens(name: str, value: Array, mask: Array) -> Array:
    """What is specified of an output under a mask [B, P+S]: the others only at real tokens."""
    real = mask != 0
    role = name.rpartition(".")[2]
    if role == "logits":
        return value[real[:, mask.shape[1] - value.shape[1] :]]
    if role in ("key", "value"):
        return value.swapaxes(1, 2)[real]
    if role == "index_key":
        return value[real]
    return value


def deviations(
    outputs: dict[str, Array], g: dict[str, Array], tolerance: float = TOLERANCE
) -> dict[str, float]:
    """By name of an output, for all that a golden has; it must have logits."""
    assert "logits" in g
    mask = g.get("attention_mask")
    found = {}
    for name in outputs.keys() & g.keys():
        actual, expected = outputs[name], g[name]
        if mask is not None:
            actual = at_real_tokens(name, actual, mask)
            expected = at_real_tokens(name, expected, mask)
        found[name] = deviation(actual, expected, tolerance)
    return found


def row_differences() -> tuple[int, int]:
    """How many recorded calls get other rows, and how many sequences end in another context."""
    calls = contexts = 0
    for case in json.loads((DATA / "ngram" / "rows.json").read_text())["cases"]:
        c = read_ngrams(case["config"])
        for sequence in case["sequences"]:
            assert c.layers[sequence["ple_index"]] == sequence["layer"]
            context = np.array([ple.first_context(c)])
            for ids, rows in zip(sequence["calls"], sequence["rows"], strict=True):
                found, context = ple.row_ids(c, sequence["ple_index"], context, np.array([ids]))
                calls += found[0].tolist() != rows
            contexts += context[0].tolist() != sequence["context_after"]
    return calls, contexts
