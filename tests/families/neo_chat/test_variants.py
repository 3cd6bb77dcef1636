"""Options of the configuration that no golden checkpoint uses, as whole graphs against NumPy.

Each variant is a tiny checkpoint with its config and the weights that this config demands, the new
ones drawn; the reference alone is judged in test_reference.py.
"""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
import pytest

from ntool.lib.families.neo_chat.components import BUILDERS
from ntool.lib.families.neo_chat.config import read_config
from ntool.lib.families.neo_chat.inventory import expected
from ntool.lib.graph.builder import FLOAT

from . import reference as R
from .golden_cases import COMPONENT, close, load_case
from .graph_session import Arrays, Weights, empty_cache, run_model

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention bias": ("dense-conv", {"llm_config.attention_bias": True}),
    "attention bias of a mixture": ("moe-mlp", {"llm_config.attention_bias": True}),
    "tied by llm_config": ("dense-mlp", {"llm_config.tie_word_embeddings": True}),
    "tied by the top level": ("moe-mlp", {"tie_word_embeddings": True}),
    "no noise-scale embedder": ("dense-conv", {"add_noise_scale_embedding": False}),
    "dense first and last": ("moe-mlp", {"llm_config.mlp_only_layers": [0, 2]}),
    "every second layer sparse": ("moe-mlp", {"llm_config.decoder_sparse_step": 2}),
    "weights not renormalised": ("moe-mlp", {"llm_config.norm_topk_prob": False}),
    "one expert a token, more drawn": (
        "moe-mlp",
        {"llm_config.num_experts_per_tok": 1, "llm_config.gen_num_experts_per_tok": 3},
    ),
    "generation as understanding": (
        "moe-mlp",
        {
            "llm_config.gen_num_experts": None,
            "llm_config.gen_num_experts_per_tok": None,
            "llm_config.gen_moe_intermediate_size": None,
        },
    ),
    "wider experts of generation": (
        "moe-mlp",
        {"llm_config.gen_moe_intermediate_size": 48, "llm_config.gen_num_experts": 5},
    ),
    "pixel head on a mixture": ("moe-mlp", {"use_pixel_head": True}),
    "eps and bases": (
        "dense-mlp",
        {
            "llm_config.rms_norm_eps": 1e-2,
            "llm_config.rope_theta": 1e4,
            "llm_config.rope_theta_hw": 50.0,
            "vision_config.rope_theta_vision": 30.0,
        },
    ),
}
ONLY_GENERATION = {
    "no noise-scale embedder",
    "generation as understanding",
    "wider experts of generation",
    "pixel head on a mixture",
}
"""Variants that answer as their checkpoint does; all others show in the logits."""
HEAD_WIDTH = {True: 40, False: 56}
"""Inner width of the head, the dimension that weights alone decide: by `use_pixel_head`."""


class Variant:
    """A variant's config and weights."""

    def __init__(self, name: str) -> None:
        self.case = load_case(VARIANTS[name][0])
        self.config = copy.deepcopy(self.case.config)
        for field, value in VARIANTS[name][1].items():
            *scopes, last = field.split(".")
            inner = self.config
            for scope in scopes:
                inner = inner[scope]
            if value is None:
                del inner[last]
            else:
                inner[last] = value
        self.c = read_config(self.config)
        shapes = {n: s for part in expected(self.config).values() for n, s in part.items()}
        self.w: Arrays = {n: self.weight(n, s) for n, s in shapes.items()}
        head = "conv1" if self.c.pixel_head else "0"
        self.head_width = self.w[f"fm_modules.fm_head.{head}.weight"].shape[0]

    def weight(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """The checkpoint's own, where it has one that fits."""
        own = self.case.w.get(name)
        if own is not None and all(d in (None, e) for d, e in zip(shape, own.shape, strict=True)):
            return own
        sizes = [HEAD_WIDTH[self.c.pixel_head] if d is None else d for d in shape]
        if name.endswith("conv2.weight"):
            sizes[1] = HEAD_WIDTH[True] // 4
        drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(sizes)
        return (drawn / np.sqrt(np.prod(sizes[1:]) if len(sizes) > 1 else 1)).astype(np.float32)

    def run(self, component: str, feeds: Arrays) -> Arrays:
        tensors = dict(self.w)
        weights = Weights(tensors, self.c)
        build = BUILDERS[component]
        g = build(self.c, weights, FLOAT, self.case.context_id, self.head_width)
        return run_model(g, tensors, feeds)


@pytest.mark.parametrize("name", VARIANTS)
def test_understanding(name: str) -> None:
    v = Variant(name)
    golden = v.case.golden("image_prefill")
    ids, positions = golden["input_ids"], golden["position_indexes"]
    rows, grid = v.case.pixels("image_prefill")
    features = v.run("vision_encoder", {"pixel_values": rows, "grid_hw": grid})["image_features"]
    close(features, R.vision_tower(v.w, v.config, R.VISION, rows, grid), COMPONENT)
    x = R.embed(v.w, ids, features, v.case.context_id)
    feeds = {"inputs_embeds": x, "position_ids": positions, "logits_to_keep": np.array([3])}
    found = v.run("decoder", {**feeds, **empty_cache(v.c)})
    hidden, cache = R.decoder(v.w, v.config, x, positions)
    close(found["logits"], R.lm_head(v.w, v.config, hidden)[:, -3:], COMPONENT)
    for i, pair in enumerate(cache):
        for role, value in zip(("key", "value"), pair, strict=True):
            close(found[f"present.{i}.{role}"], value, COMPONENT)
    # a graph that ignored the option would be the checkpoint's own, so that has to differ
    same = np.allclose(found["logits"][:, -1:], golden["logits_last"], 1e-3, 1e-3)
    assert same is (name in ONLY_GENERATION)


@pytest.mark.parametrize("name", VARIANTS)
def test_generation(name: str) -> None:
    v = Variant(name)
    ids = v.case.golden("text_prefill")["input_ids"]
    x = R.embed(v.w, ids)
    S = ids.shape[1]
    steps = np.arange(S)
    text = np.stack([steps, np.zeros_like(steps), np.zeros_like(steps)])
    _, cache = R.decoder(v.w, v.config, x, text)
    th, tw, t, scale = 2, 3, 0.3, 1.7
    z = np.random.default_rng(1).standard_normal((1, 3, 32 * th, 32 * tw), dtype=np.float32)
    embeds = R.image_gen_embedding(v.w, v.config, z, t, scale)
    feeds: Arrays = {"z": z, "timestep": np.array([t], np.float32)}
    if v.config["add_noise_scale_embedding"]:
        feeds["noise_scale"] = np.array([scale], np.float32)
    close(v.run("image_gen_embedding", feeds)["inputs_embeds"], embeds, COMPONENT)
    past = {
        f"past.{i}.{role}": value
        for i, pair in enumerate(cache)
        for role, value in zip(("key", "value"), pair, strict=True)
    }
    indexes = R.image_indexes(S, th, tw)
    feeds = {"inputs_embeds": embeds, "position_ids": indexes, "token_grid": np.array([th, tw])}
    x0 = R.denoiser(v.w, v.config, embeds, S, th, tw, cache)
    close(v.run("image_gen_denoiser", {**feeds, **past})["x0"], x0, COMPONENT)
    w, config = v.case.w, v.case.config
    if name in ONLY_GENERATION:
        embeds = R.image_gen_embedding(w, config, z, t, scale)
        own = R.denoiser(w, config, embeds, S, th, tw, cache)
        assert not np.allclose(x0, own, 1e-3, 1e-3)
