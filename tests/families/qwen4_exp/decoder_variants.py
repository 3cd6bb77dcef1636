"""Small decoders of any configuration, with random weights for the graph and for the reference."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.families.qwen4_exp.config import Text, read_config
from ntool.lib.families.qwen4_exp.weights import renamed

from .decoder_session import FP8, Weights
from .reference_layers import Array

SMALL: dict[str, Any] = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "hidden_act": "silu",
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
    "linear_conv_kernel_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 6, "output_gate_type": "sigmoid",
    "moe_intermediate_size": 10, "shared_expert_intermediate_size": 14,
    "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "hc_count": 4, "hc_lowrank": 5, "eos_token_id": 7,
    "ple_layer_ids": [1], "ple_embed_dim": 12, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 2, "ngram_vocab_size_base": 31, "seed": 5, "split_ngram_parts": 4,
    "make_ngram_vocab_size_divisible_by": 8,
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 12, "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}  # fmt: skip
"""Three layers: a delta net with an n-gram embedding, sparse attention, a delta net."""


def config(**changes: Any) -> dict[str, Any]:
    """SMALL with other fields; those of `rope_parameters` by their own names."""
    rope = {k: v for k, v in changes.items() if k in SMALL["rope_parameters"]}
    rest = {k: v for k, v in changes.items() if k not in rope}
    return {**SMALL, **rest, "rope_parameters": {**SMALL["rope_parameters"], **rope}}


def text(**changes: Any) -> Text:
    return read_config(config(**changes)).text


class Names:
    """Claims of a graph whose weights nobody needs; remembers them."""

    def __init__(self) -> None:
        self.claims: dict[str, tuple[tuple[int, ...], int]] = {}

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        self.claims[name] = shape, dtype
        return "outside"


class RandomWeights(Weights):
    """Stored tensors that are made when they are first claimed; the graph's sizes decide.

    Values are those that BF16 has, so that every type of a graph starts from the same ones, and
    large enough that gates, decay, selection and every stream matter.

    Args:
        names: of tensors that are there, which decide on prefix and layout of the experts.
    """

    def __init__(self, config: Mapping[str, Any], names: Iterable[str] = (), seed: int = 0) -> None:
        super().__init__(config, {})
        headers = {n: Tensor(n, "", (), "", 0, 0) for n in names}
        self.rename = renamed(read_config(dict(config), text_only=True), headers)
        self.made: dict[str, Array] = {}
        self.tensors, self.seed = self.made, seed

    def part(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        if name not in self.made:
            rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
            value = drawn(name, shape, rng)
            stored = FP8 if kind == FP8 else np.dtype(ml_dtypes.bfloat16)
            self.made[name] = value.astype(stored)
        return super().part(name, shape, kind)

    def widened(self) -> dict[str, Array]:
        """What was made, in float32; codes times their scales."""
        out: dict[str, Array] = {}
        for name, value in self.made.items():
            if name.endswith(("_scale_inv", "weight_scale")):
                continue
            out[name] = value.astype(np.float32)
            if value.dtype == FP8:
                out[name] = out[name] * self._scale(name, value.shape)
        return out

    def _scale(self, name: str, shape: tuple[int, ...]) -> Array:
        if ".shard_" in name:
            return self.made[f"{name.partition('.shard_')[0]}.weight_scale"].astype(np.float32)
        grid = self.made[f"{name}_scale_inv"].astype(np.float32)
        rows, columns = (np.arange(size) // 128 for size in shape)
        return grid[rows[:, None], columns]


def drawn(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random values of a tensor, by its name."""
    x = rng.standard_normal(shape)
    role = name.rpartition("layers.")[2]
    if name.endswith(("_scale_inv", "weight_scale")):
        return 0.02 + 0.02 * rng.random(shape)
    if name.endswith("A_log"):
        return rng.uniform(-2, 1, shape)
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.3 * x
    if "norm" in role:
        return 0.3 * x
    if name.endswith((".bias", "dt_bias", "conv1d.weight")):
        return 0.5 * x
    if "embed" in name and "proj" not in role:
        return x if ".shard_" not in name else 2 * x
    return 1.5 * x / np.sqrt(shape[-1])
