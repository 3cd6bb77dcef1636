"""The five components of neo_chat as graphs. Inputs and outputs are the package's ABI.

B sequences, S tokens, P cached tokens, D hidden size, V words, L = th tw tokens of a picture.
Source: docs/neo-chat.md, "Components".
"""

from __future__ import annotations

from collections.abc import Callable

from ...graph.builder import FLOAT, INT64, Graph, Value, WeightSource
from ...graph.layers import unrows
from .backbone import GENERATION, UNDERSTANDING, positions_input, stack
from .config import NeoChatConfig
from .heads import conv_decoder, mlp_head
from .vision import patchify, scalar_embedder, token_order, tower


def vision_encoder(
    c: NeoChatConfig, weights: WeightSource, dtype: int, context_id: int, head_width: int
) -> Graph:
    """pixel_values [N, 3 P P], grid_hw [images, 2] -> image_features [image_tokens, D]."""
    g = Graph("vision_encoder", weights)
    pixels = g.input("pixel_values", FLOAT, ["patches", 3 * c.P * c.P])
    grid_hw = g.input("grid_hw", INT64, ["images", 2])
    source, x, y = token_order(g, grid_hw, c)
    rows = g.Gather(_cast(g, pixels, dtype), source, axis=0)
    features = tower(g.at("vision_model"), rows, x, y, c)
    g.output("image_features", features, ["image_tokens", c.llm.D])
    return g


def embedding(
    c: NeoChatConfig, weights: WeightSource, dtype: int, context_id: int, head_width: int
) -> Graph:
    """input_ids [B, S], image_features [image_tokens, D] -> inputs_embeds [B, S, D].

    Rows of the table; then the rows of context tokens are replaced, in order, by the picture
    features. A count that differs makes the scatter fail, so a mismatch cannot pass.
    """
    g = Graph("embedding", weights)
    ids = g.input("input_ids", INT64, ["batch", "sequence"])
    features = g.input("image_features", dtype, ["image_tokens", c.llm.D])
    table = g.at("language_model.model").parameter("embed_tokens.weight", [c.llm.V, c.llm.D], dtype)
    words = g.Gather(table, ids, axis=0)  # [B, S, D]
    is_context = g.Equal(ids, context_id)
    where = g.Transpose(g.NonZero(is_context), perm=[1, 0], shape=["context_tokens", 2])
    g.output("inputs_embeds", g.ScatterND(words, where, features), ["batch", "sequence", c.llm.D])
    return g


def decoder(
    c: NeoChatConfig, weights: WeightSource, dtype: int, context_id: int, head_width: int
) -> Graph:
    """The understanding branch: embeddings, positions and past -> logits of the last tokens, and
    the cache.

    `logits_to_keep` int64 [1]: of how many last positions the logits [B, kept, V] are computed.
    """
    g = Graph("decoder", weights)
    x = g.input("inputs_embeds", dtype, ["batch", "sequence", c.llm.D])
    positions = positions_input(g, "sequence")
    keep = g.input("logits_to_keep", INT64, [1])
    h, rows, grown = stack(g, x, positions, UNDERSTANDING, c.llm, mask=True)
    h = unrows(g, h, rows, [c.llm.D])
    h = g.Slice(h, g.Sub(rows.sequence, keep), rows.sequence, [1], shape=["batch", "kept", c.llm.D])
    flat = g.Reshape(h, [-1, c.llm.D], shape=["kept_rows", c.llm.D])
    logits = g.at("language_model").linear(flat, "lm_head", c.llm.V)
    shape = g.Concat(rows.batch, keep, [c.llm.V], axis=0)
    logits = g.Reshape(logits, shape, shape=["batch", "kept", c.llm.V])
    g.output("logits", _cast(g, logits, FLOAT))
    for i, (k, v) in enumerate(grown):
        g.output(f"present.{i}.key", k)
        g.output(f"present.{i}.value", v)
    return g


def image_gen_embedding(
    c: NeoChatConfig, weights: WeightSource, dtype: int, context_id: int, head_width: int
) -> Graph:
    """Noisy picture z [B, 3, H, W], timestep [1] and noise_scale [1] -> inputs_embeds [B, L, D]."""
    g = Graph("image_gen_embedding", weights)
    z = g.input("z", FLOAT, ["batch", 3, "height", "width"])
    timestep = g.input("timestep", FLOAT, [1])
    modules = g.at("fm_modules")
    rows, x, y, batch = patchify(g, _cast(g, z, dtype), c)
    features = tower(modules.at("vision_model_mot_gen"), rows, x, y, c)  # [B L, D]
    e = scalar_embedder(modules.at("timestep_embedder"), timestep, c, dtype)
    if c.add_noise_scale_embedding:
        noise_scale = g.input("noise_scale", FLOAT, [1])
        share = g.Div(noise_scale, float(c.noise_scale_max_value))
        e = g.Add(e, scalar_embedder(modules.at("noise_scale_embedder"), share, c, dtype))
    rows = g.Add(features, e)
    out = g.Reshape(
        rows, g.Concat(batch, [-1, c.llm.D], axis=0), shape=["batch", "picture_tokens", c.llm.D]
    )
    g.output("inputs_embeds", out)
    return g


def image_gen_denoiser(
    c: NeoChatConfig, weights: WeightSource, dtype: int, context_id: int, head_width: int
) -> Graph:
    """The generation branch: embeddings [B, L, D] and the prefix cache -> clean picture x0 [B, 3,
    H, W].

    Every picture token sees the whole prefix and every picture token. `token_grid` int64 [2] is
    (th, tw).
    """
    g = Graph("image_gen_denoiser", weights)
    x = g.input("inputs_embeds", dtype, ["batch", "picture_tokens", c.llm.D])
    positions = positions_input(g, "picture_tokens")
    grid = g.input("token_grid", INT64, [2])
    h, rows, _ = stack(g, x, positions, GENERATION, c.llm, mask=False)
    head = conv_decoder if c.pixel_head else mlp_head
    x0 = head(g.at("fm_modules.fm_head"), h, rows, grid, c, head_width)
    g.output("x0", _cast(g, x0, FLOAT), ["batch", 3, "height", "width"])
    return g


Builder = Callable[[NeoChatConfig, WeightSource, int, int, int], Graph]

BUILDERS: dict[str, Builder] = {
    "vision_encoder": vision_encoder,
    "embedding": embedding,
    "decoder": decoder,
    "image_gen_embedding": image_gen_embedding,
    "image_gen_denoiser": image_gen_denoiser,
}


def _cast(g: Graph, x: Value, dtype: int) -> Value:
    return x if x.dtype == dtype else g.Cast(x, to=dtype)
