"""The neo_chat model as a plain NumPy program in float32, written from its description.

The five components (docs/neo-chat.md 4) and image preprocessing (docs/neo-chat.md 6), each with its
own small function; `reference_layers.py` holds the layers, `reference_sampling.py` the sampler.
Slow and simple on purpose: this is what the exported graphs are compared with.

Sizes as in `reference_layers`; th x tw token grid, L = th * tw, V vocabulary.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
from PIL import Image

from .reference_layers import (
    Array,
    KeyValue,
    Weights,
    backbone_layer,
    block_causal,
    conv3x3,
    gelu,
    linear,
    merge_patches,
    pixel_shuffle,
    rms_norm,
    silu,
    sinusoid,
    vision_rotary,
)

# Pixels per patch side, merge size (1 / downsample_ratio), pixels per token side: the same in every
# member of the family, and the pixel shuffles 2, 2, 8 of the convolutional head allow no other F.
P, M, F = 16, 2, 32
UNDERSTANDING, GENERATION = "", "_mot_gen"
VISION, VISION_GEN = "vision_model", "fm_modules.vision_model_mot_gen"
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)
_DTYPES = {"F32": np.dtype(np.float32), "BF16": np.dtype(ml_dtypes.bfloat16)}


def load_config(folder: Path) -> dict:
    """config.json of a checkpoint folder."""
    return json.loads((folder / "config.json").read_text())


def load_weights(folder: Path) -> dict[str, Array]:
    """Every tensor of a checkpoint by its full name, widened to float32 (exact from bfloat16).

    The shards are the values of `weight_map`: their numbers have gaps.
    """
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    weights = {}
    for shard in sorted(set(index.values())):
        for name, entry in safetensors.deserialize((folder / shard).read_bytes()):
            stored = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]])
            weights[name] = stored.reshape(entry["shape"]).astype(np.float32)
    if set(weights) != set(index):
        raise ValueError(f"index and shards differ in {sorted(set(weights) ^ set(index))}")
    return weights


# --- preprocessing (docs/neo-chat.md 6) -----------------------------------------------------------


def resized_size(
    height: int, width: int, min_pixels: int, max_pixels: int, factor: int = F
) -> tuple[int, int]:
    """Size in whole tokens with an area between the two limits; ties round to even.

    Raises:
        ValueError: one side is more than 200 times the other.
    """
    if max(height, width) / min(height, width) > 200:
        raise ValueError(f"aspect ratio of {width} x {height} is above 200")
    h = max(factor, round(height / factor) * factor)
    w = max(factor, round(width / factor) * factor)
    if h * w > max_pixels:
        b = math.sqrt(height * width / max_pixels)
        h = max(factor, math.floor(height / b / factor) * factor)
        w = max(factor, math.floor(width / b / factor) * factor)
    elif h * w < min_pixels:
        b = math.sqrt(min_pixels / (height * width))
        h = math.ceil(height * b / factor) * factor
        w = math.ceil(width * b / factor) * factor
    return h, w


def patchify(x: Array, patch: int = P) -> Array:
    """Row-major patches, (channel, row, column) inside a row: the input format of the towers.

    Args:
        x: [C, height, width].
    """
    C, height, width = x.shape
    cut = x.reshape(C, height // patch, patch, width // patch, patch)
    return cut.transpose(1, 3, 0, 2, 4).reshape(-1, C * patch * patch)  # [gh * gw, C * P * P]


def resize(image: Image.Image, min_pixels: int, max_pixels: int) -> Array:
    """Picture in RGB on white, bicubic, of the size `resized_size` gives: uint8 [h, w, 3]."""
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    image = image.convert("RGB")
    h, w = resized_size(image.height, image.width, min_pixels, max_pixels)
    return np.asarray(image.resize((w, h), Image.Resampling.BICUBIC))


def preprocess(image: Image.Image, min_pixels: int, max_pixels: int) -> tuple[Array, Array]:
    """Picture -> patch rows [N, 3 * P * P] and grid_hw [1, 2]."""
    pixels = resize(image, min_pixels, max_pixels)
    normed = (pixels.astype(np.float32) / 255 - IMAGENET_MEAN) / IMAGENET_STD  # [h, w, 3]
    h, w, _ = pixels.shape
    return patchify(normed.transpose(2, 0, 1)), np.array([[h // P, w // P]])


# --- components (docs/neo-chat.md 4) --------------------------------------------------------------


def vision_tower(
    w: Weights, config: dict, tower: str, pixel_values: Array, grid_hw: Array
) -> Array:
    """Patch projection, GELU, 2-D rotary, merge; image by image, then concatenated.

    Args:
        tower: `VISION` or `VISION_GEN`.
        pixel_values: [N, 3 * P * P], patches of all images.
        grid_hw: [images, 2], patch grid of each image.
    """
    at = f"{tower}.embeddings."
    base = config["vision_config"].get("rope_theta_vision", 1e4)
    kernel = w[f"{at}patch_embedding.weight"]
    rows = linear(pixel_values, kernel.reshape(len(kernel), -1), w[f"{at}patch_embedding.bias"])
    rows = gelu(rows)  # [N, vh]
    features, start = [], 0
    for gh, gw in np.asarray(grid_hw).tolist():
        turned = vision_rotary(rows[start : start + gh * gw], gw, base)
        merge = w[f"{at}dense_embedding.weight"], w[f"{at}dense_embedding.bias"]
        features.append(merge_patches(turned, gh, gw, *merge))
        start += gh * gw
    if start != len(rows):
        raise ValueError(f"grids name {start} patches, pixel_values has {len(rows)}")
    return np.concatenate(features)  # [sum of th * tw, D]


def embed(w: Weights, ids: Array, features: Array | None = None, context_id: int = -1) -> Array:
    """Token embeddings, with image features in place of the context tokens, in order.

    Args:
        ids: [B, S].
        features: [n, D], n = the number of context tokens.
    Raises:
        ValueError: the counts differ.
    """
    x = w["language_model.model.embed_tokens.weight"][ids].copy()  # [B, S, D]
    if features is not None:
        here = ids == context_id
        if here.sum() != len(features):
            raise ValueError(f"{here.sum()} context tokens for {len(features)} features")
        x[here] = features
    return x


def position_indexes(ids: Array, grid_hw: Array, start_id: int, context_id: int) -> Array:
    """Temporal, row and column index of every prompt token.

    t[j] = #(k <= j, no context token) + #(k < j, image start) - 1.

    Args:
        ids: [S].
        grid_hw: [images, 2] in patches.
    """
    context, start = ids == context_id, ids == start_id
    t = np.cumsum(~context) + np.cumsum(start) - start - 1
    out = np.stack([t, np.zeros_like(t), np.zeros_like(t)])
    grids = [np.indices((gh // M, gw // M)).reshape(2, -1) for gh, gw in np.asarray(grid_hw)]
    if grids:
        out[1:, context] = np.concatenate(grids, axis=1)
    return out  # [3, S]


def run_layers(
    w: Weights,
    config: dict,
    suffix: str,
    x: Array,
    positions: Array,
    past: list[KeyValue] | None,
    allowed: Array,
) -> tuple[Array, list[KeyValue]]:
    """All layers of one branch and its final norm.

    Args:
        x: [B, S, D].
        positions: [3, S].
        allowed: bool [S, P + S].
    """
    llm = config["llm_config"]
    cache = []
    for i in range(llm["num_hidden_layers"]):
        before = None if past is None else past[i]
        x, kv = backbone_layer(w, llm, i, suffix, x, positions, before, allowed)
        cache.append(kv)
    return rms_norm(x, w[f"language_model.model.norm{suffix}.weight"], llm["rms_norm_eps"]), cache


def decoder(
    w: Weights, config: dict, x: Array, positions: Array, past: list[KeyValue] | None = None
) -> tuple[Array, list[KeyValue]]:
    """Understanding branch: prefill (no past) and every later addition to the cache.

    All past tokens are visible; inside the new chunk the block-causal rule holds.

    Returns:
        Hidden states after the final norm [B, S, D], and the extended cache.
    """
    n_past = 0 if past is None else past[0][0].shape[2]
    seen = np.ones((x.shape[1], n_past), bool)
    allowed = np.concatenate([seen, block_causal(positions[0])], axis=1)
    return run_layers(w, config, UNDERSTANDING, x, positions, past, allowed)


def lm_head(w: Weights, config: dict, hidden: Array) -> Array:
    """Logits [..., V]; a tied head is the embedding table. `llm_config` decides when it speaks."""
    tied = config["llm_config"].get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    name = "language_model.model.embed_tokens" if tied else "language_model.lm_head"
    return linear(hidden, w[f"{name}.weight"])


def greedy(
    w: Weights,
    config: dict,
    hidden: Array,
    cache: list[KeyValue],
    next_t: int,
    stop_id: int,
    limit: int,
) -> tuple[list[int], Array]:
    """Greedy decode of one sequence after a prefill.

    Args:
        hidden: [1, S, D] of the prefill.
        next_t: temporal index of the first decoded token; rows and columns are 0.
    Returns:
        The picked ids, stop id included, and the logits of every pick [picks, V].
    """
    ids: list[int] = []
    rows = []
    while len(ids) < limit and (not ids or ids[-1] != stop_id):
        rows.append(lm_head(w, config, hidden[0, -1]))
        ids.append(int(rows[-1].argmax()))
        x = embed(w, np.array([ids[-1:]]))
        hidden, cache = decoder(w, config, x, np.array([[next_t], [0], [0]]), cache)
        next_t += 1
    return ids, np.stack(rows)


def scalar_embedder(w: Weights, name: str, value: float) -> Array:
    """Linear, SiLU, Linear on the sinusoid of one number."""
    at = f"fm_modules.{name}.mlp."
    x = sinusoid(np.array([value], np.float32))
    x = silu(linear(x, w[f"{at}0.weight"], w[f"{at}0.bias"]))
    return linear(x, w[f"{at}2.weight"], w[f"{at}2.bias"])  # [1, D]


def image_gen_embedding(w: Weights, config: dict, z: Array, t: float, noise_scale: float) -> Array:
    """Features of the noisy picture plus the embeddings of t and of the noise scale.

    Args:
        z: [B, 3, H, W] in pixel space, not ImageNet-normalised.
    """
    B, _, height, width = z.shape
    grid = np.array([[height // P, width // P]] * B)
    rows = np.concatenate([patchify(picture) for picture in z])
    features = vision_tower(w, config, VISION_GEN, rows, grid)  # [B * L, D]
    e = scalar_embedder(w, "timestep_embedder", t)
    if config["add_noise_scale_embedding"]:
        relative = noise_scale / config["noise_scale_max_value"]
        e = e + scalar_embedder(w, "noise_scale_embedder", relative)
    return features.reshape(B, -1, features.shape[-1]) + e  # [B, L, D]


def image_indexes(t: int, token_h: int, token_w: int) -> Array:
    """[3, L]: one shared t, then row and column of every generated token."""
    rows, columns = np.indices((token_h, token_w)).reshape(2, -1)
    return np.stack([np.full_like(rows, t), rows, columns])


def generation_hidden(
    w: Weights, config: dict, x: Array, positions: Array, prefix: list[KeyValue]
) -> Array:
    """Generation branch over a frozen prefix, no mask; the own keys and values are dropped.

    Args:
        x: [B, L, D]; a prefix of batch 1 is repeated over the batch.
    """
    B, L, _ = x.shape
    prefix = [
        (np.repeat(k, B // len(k), axis=0), np.repeat(v, B // len(v), axis=0)) for k, v in prefix
    ]
    allowed = np.ones((L, prefix[0][0].shape[2] + L), bool)
    return run_layers(w, config, GENERATION, x, positions, prefix, allowed)[0]  # [B, L, D]


def conv_decoder(w: Weights, hidden: Array, token_h: int, token_w: int) -> Array:
    """Shuffle 2, conv, GELU, shuffle 2, conv, shuffle 8: [B, L, D] -> picture [B, 3, H, W]."""
    at = "fm_modules.fm_head."
    x = hidden.reshape(len(hidden), token_h, token_w, -1).transpose(0, 3, 1, 2)  # [B, D, th, tw]
    x = conv3x3(pixel_shuffle(x, 2), w[f"{at}conv1.weight"], w[f"{at}conv1.bias"])
    x = conv3x3(pixel_shuffle(gelu(x), 2), w[f"{at}conv2.weight"], w[f"{at}conv2.bias"])
    return pixel_shuffle(x, 8)


def mlp_head(w: Weights, hidden: Array) -> Array:
    """Linear, GELU, Linear: [B, L, D] -> [B, L, F * F * 3], channel fastest."""
    at = "fm_modules.fm_head."
    x = gelu(linear(hidden, w[f"{at}0.weight"], w[f"{at}0.bias"]))
    return linear(x, w[f"{at}2.weight"], w[f"{at}2.bias"])


def to_head_patches(picture: Array, side: int = F) -> Array:
    """[B, 3, H, W] -> [B, L, F * F * 3] in (row, column, channel) order."""
    B, C, height, width = picture.shape
    cut = picture.reshape(B, C, height // side, side, width // side, side)
    return cut.transpose(0, 2, 4, 3, 5, 1).reshape(B, -1, side * side * C)


def from_head_patches(patches: Array, token_h: int, token_w: int, side: int = F) -> Array:
    """The inverse of `to_head_patches`."""
    cut = patches.reshape(len(patches), token_h, token_w, side, side, -1)
    picture = cut.transpose(0, 5, 1, 3, 2, 4)  # [B, 3, th, F, tw, F]
    return picture.reshape(len(patches), -1, token_h * side, token_w * side)


def pixel_head(w: Weights, config: dict, hidden: Array, token_h: int, token_w: int) -> Array:
    """x0 as a picture [B, 3, H, W] from the hidden states of the generation branch."""
    if config["use_pixel_head"]:
        return conv_decoder(w, hidden, token_h, token_w)
    return from_head_patches(mlp_head(w, hidden), token_h, token_w)


def denoiser(
    w: Weights,
    config: dict,
    x: Array,
    t_image: int,
    token_h: int,
    token_w: int,
    prefix: list[KeyValue],
) -> Array:
    """Predicted clean picture x0 [B, 3, H, W] from the input embeddings [B, L, D]."""
    hidden = generation_hidden(w, config, x, image_indexes(t_image, token_h, token_w), prefix)
    return pixel_head(w, config, hidden, token_h, token_w)
