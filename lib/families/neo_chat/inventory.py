"""Every tensor that a neo_chat config demands, by component. Standard library only.

Two widths of the pixel head are not in the config (4096 of the MLP head, 1024 of the convolution
are fixed in the published code): they stand as None in a shape and are read from the tensors.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ..values import Values

Shape = tuple[int | None, ...]
Inventory = dict[str, dict[str, Shape]]

COMPONENTS = ("vision_encoder", "embedding", "decoder", "image_gen_embedding", "image_gen_denoiser")
MAX_TENSORS = 2_000_000
"""Most names that a config may demand."""
SINUSOID = 256
"""Width of the sinusoid of the scalar embedders, fixed in the published code."""


def expected(config: dict[str, Any], where: str = "config.json") -> Inventory:
    """{component: {name: shape}} of all tensors that the config demands.

    With tied embeddings the one matrix is demanded by `embedding` and `decoder`.

    Args:
        config: config.json of the checkpoint.
        where: its name in messages.
    Raises:
        InputError: a value is missing or impossible; the message names it.
    """
    top = Values(config, where)
    llm, vision = top.inner("llm_config"), top.inner("vision_config")
    out: Inventory = {component: {} for component in COMPONENTS}
    hidden = llm.size("hidden_size")
    patch = vision.size("patch_size", 16)
    ratio = top.values.get("downsample_ratio", vision.values.get("downsample_ratio", 0.5))
    merge = _merge(ratio, where)
    _tower(out["vision_encoder"], "vision_model", vision, hidden, patch, merge)
    tower = "fm_modules.vision_model_mot_gen"
    _tower(out["image_gen_embedding"], tower, vision, hidden, patch, merge)
    embedders = ["timestep_embedder"]
    if top.flag("add_noise_scale_embedding", False):
        embedders.append("noise_scale_embedder")
    for embedder in embedders:
        _embedder(out["image_gen_embedding"], f"fm_modules.{embedder}", hidden)
    face = patch * merge
    _head(out["image_gen_denoiser"], top.flag("use_pixel_head", False), hidden, face)
    _backbone(out, top, llm, hidden)
    return out


def _merge(ratio: Any, where: str) -> int:
    """Side of the square of patches that becomes one token: 1 / downsample_ratio."""
    if isinstance(ratio, list) and len(ratio) == 1:
        ratio = ratio[0]
    if isinstance(ratio, int | float) and not isinstance(ratio, bool) and 1e-3 < ratio <= 1:
        merge = round(1 / ratio)
        if abs(merge * ratio - 1) < 1e-9:
            return merge
    raise InputError(
        f"{where}: 'downsample_ratio'", found=repr(ratio)[:40], expected="1 / an integer"
    )


def _tower(
    out: dict[str, Shape], prefix: str, vision: Values, hidden: int, patch: int, merge: int
) -> None:
    width = vision.size("hidden_size", 1024)
    channels = vision.size("num_channels", 3)
    at = f"{prefix}.embeddings"
    out[f"{at}.patch_embedding.weight"] = (width, channels, patch, patch)
    out[f"{at}.patch_embedding.bias"] = (width,)
    out[f"{at}.dense_embedding.weight"] = (hidden, width, merge, merge)
    out[f"{at}.dense_embedding.bias"] = (hidden,)


def _embedder(out: dict[str, Shape], prefix: str, hidden: int) -> None:
    out[f"{prefix}.mlp.0.weight"] = (hidden, SINUSOID)
    out[f"{prefix}.mlp.0.bias"] = (hidden,)
    out[f"{prefix}.mlp.2.weight"] = (hidden, hidden)
    out[f"{prefix}.mlp.2.bias"] = (hidden,)


def _head(out: dict[str, Shape], convolution: bool, hidden: int, face: int) -> None:
    """The pixel head: `face` is the side in pixels of the square that one token draws."""
    at = "fm_modules.fm_head"
    if convolution:
        out[f"{at}.conv1.weight"] = (None, hidden // 4, 3, 3)
        out[f"{at}.conv1.bias"] = (None,)
        out[f"{at}.conv2.weight"] = (192, None, 3, 3)
        out[f"{at}.conv2.bias"] = (192,)
    else:
        out[f"{at}.0.weight"] = (None, hidden)
        out[f"{at}.0.bias"] = (None,)
        out[f"{at}.2.weight"] = (3 * face * face, None)
        out[f"{at}.2.bias"] = (3 * face * face,)


def complete(config: dict[str, Any], names: frozenset[str]) -> dict[str, bool]:
    """For each component whether every tensor that the config demands is there.

    Raises:
        InputError: as `expected`.
    """
    return {c: all(name in names for name in shapes) for c, shapes in expected(config).items()}


def is_moe(llm: dict[str, Any]) -> bool:
    """Whether the backbone has experts: by its type or architectures, not by `num_experts`."""
    architectures = llm.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    return "moe" in str(llm.get("model_type", "")).lower() or any(
        "Moe" in str(a) or "MoE" in str(a) for a in names
    )


def _backbone(out: Inventory, top: Values, llm: Values, hidden: int) -> None:
    vocabulary = llm.size("vocab_size")
    layers = llm.size("num_hidden_layers")
    tied = llm.flag("tie_word_embeddings", top.flag("tie_word_embeddings", False))
    moe = is_moe(llm.values)
    per_layer = 26
    if moe:
        experts = llm.size("num_experts")
        gen_experts = llm.size("gen_num_experts", experts)
        per_layer += 3 * (experts + gen_experts)
    if layers * per_layer > MAX_TENSORS:
        raise InputError(
            f"{llm.where}: layers times experts",
            found=layers * per_layer,
            expected=f"<= {MAX_TENSORS}",
        )
    embed = "language_model.model.embed_tokens.weight"
    out["embedding"][embed] = (vocabulary, hidden)
    head = embed if tied else "language_model.lm_head.weight"
    out["decoder"][head] = (vocabulary, hidden)
    for component, suffix in (("decoder", ""), ("image_gen_denoiser", "_mot_gen")):
        tensors = out[component]
        tensors[f"language_model.model.norm{suffix}.weight"] = (hidden,)
        for i in range(layers):
            at = f"language_model.model.layers.{i}"
            _attention(tensors, f"{at}.self_attn", suffix, llm, hidden)
            tensors[f"{at}.input_layernorm{suffix}.weight"] = (hidden,)
            tensors[f"{at}.post_attention_layernorm{suffix}.weight"] = (hidden,)
            mlp = f"{at}.mlp{suffix}"
            if moe and (suffix or _sparse(llm, i)):
                _experts(tensors, mlp, llm, hidden, generation=bool(suffix))
            else:
                _dense(tensors, mlp, llm.size("intermediate_size"), hidden)


def _attention(out: dict[str, Shape], at: str, suffix: str, llm: Values, hidden: int) -> None:
    heads, kv_heads = llm.size("num_attention_heads"), llm.size("num_key_value_heads")
    width = llm.size("head_dim")
    rows = {"q": heads * width, "k": kv_heads * width, "v": kv_heads * width, "o": hidden}
    for letter, n in rows.items():
        columns = heads * width if letter == "o" else hidden
        out[f"{at}.{letter}_proj{suffix}.weight"] = (n, columns)
        if llm.flag("attention_bias", False):
            out[f"{at}.{letter}_proj{suffix}.bias"] = (n,)
    for norm in ("q_norm", "k_norm", "q_norm_hw", "k_norm_hw"):
        out[f"{at}.{norm}{suffix}.weight"] = (width // 2,)


def _sparse(llm: Values, layer: int) -> bool:
    """Whether the understanding side of a layer has experts; the generation side always has."""
    only = llm.values.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise InputError(
            f"{llm.where}: 'mlp_only_layers'", found=repr(only)[:40], expected="a list"
        )
    return layer not in only and (layer + 1) % llm.size("decoder_sparse_step", 1) == 0


def _dense(out: dict[str, Shape], at: str, width: int, hidden: int) -> None:
    out[f"{at}.gate_proj.weight"] = (width, hidden)
    out[f"{at}.up_proj.weight"] = (width, hidden)
    out[f"{at}.down_proj.weight"] = (hidden, width)


def _experts(out: dict[str, Shape], at: str, llm: Values, hidden: int, generation: bool) -> None:
    experts, width = llm.size("num_experts"), llm.size("moe_intermediate_size")
    if generation:  # each value falls back to that of the understanding side
        experts = llm.size("gen_num_experts", experts)
        width = llm.size("gen_moe_intermediate_size", width)
    out[f"{at}.gate.weight"] = (experts, hidden)
    for e in range(experts):
        _dense(out, f"{at}.experts.{e}", width, hidden)
