"""Every tensor that a qwen4_exp config demands, by component. Standard library only.

Names and numbers: docs of the format, "Tensors": composite checkpoints hold the text model under
`model.language_model.`, checkpoints of the text model alone under `model.`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cache
from typing import Any

from ...errors import InputError
from ..values import Values
from .ngram_table import shards, table_rows

COMPOSITE, ALONE = "model.language_model.", "model."
HYPER = ("hc_norm", "input_mix_weight_down", "input_mix_weight_up")
"""Parts of a hyper-connection; those of a layer also have `block_inject_weight`."""
LINEAR = (
    *("in_proj_qkv.weight", "in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight"),
    *("conv1d.weight", "dt_bias", "A_log", "norm.weight", "out_proj.weight"),
)
SPARSE = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"),
    *("indexer.index_qk_proj", "indexer.q_layernorm", "indexer.k_layernorm"),
)
PLE = ("key_proj", "value_proj", "norm_key", "norm_query", "norm_conv", "conv1d")
ATTENTION = SPARSE[:4]
"""Projections that may have biases."""
ROLES = ("gate_proj", "up_proj", "down_proj")
_MANY = 10_000
"""Experts of a layer whose names are not kept: a config may claim any number."""


def complete(config: dict[str, Any], names: frozenset[str]) -> dict[str, bool]:
    """For each component whether every tensor that the config demands is there.

    A component that the checkpoint may lack is judged only where it has a tensor of it (`mtp`) or a
    config (`visual`). The hash buffers may be absent: they follow from the config.

    Raises:
        InputError: a value is missing or impossible; the message names it.
    """
    top = Values(config, "config.json")
    text = text_of(top)
    start = start_of(names)
    layers = text.size("num_hidden_layers")
    experts = text.size("num_experts")
    fp8 = isinstance(config.get("quantization_config"), dict)
    homes = [f"{start}layers.{i}" for i in range(layers)]
    out = {
        "text": _all(names, wanted_text(text, start, tied(config, text))),
        "experts": all(_experts(names, home, experts, "") for home in homes),
    }
    if fp8:
        out["scales"] = all(_experts(names, home, experts, "_scale_inv") for home in homes)
    ple = [f"{start}layers.{i}.ple" for i in ple_layers(text, layers)]
    if ple:
        parts = text.size("split_ngram_parts", 512)
        counts = [shards(table_rows(text, p), parts) for p in range(len(ple))]
        out["ple"] = all(_all(names, _ple(*of)) for of in zip(ple, counts, strict=True))
        if fp8:
            table = "ple_embedding.ngram_embedding"
            out["scales"] &= all(f"{at}.{table}.weight_scale" in names for at in ple)
    if start == COMPOSITE and isinstance(config.get("vision_config"), dict):
        out["visual"] = _all(names, _visual(top.inner("vision_config")))
    if "mtp.fc_hidden.weight" in names or "mtp.fc_embedding.weight" in names:
        out["mtp"] = _all(names, _mtp()) and all(
            _experts(names, "mtp.layers.0", experts, suffix)
            for suffix in (("", "_scale_inv") if fp8 else ("",))
        )
    return out


def _all(names: frozenset[str], wanted: Iterator[str]) -> bool:
    """Whether all wanted names are there; the first that is not ends it, however many there are."""
    return all(map(names.__contains__, wanted))


def start_of(names: Container[str]) -> str:
    """What the names of the text model begin with, by those that every checkpoint has."""
    signs = ("embed_tokens.weight", "hyper_connection_mixer.hc_norm.weight")
    return COMPOSITE if any(f"{COMPOSITE}{sign}" in names for sign in signs) else ALONE


def text_of(top: Values) -> Values:
    """The config of the text model: a part of a composite one, or the whole."""
    return top.inner("text_config") if "text_config" in top.values else top


def tied(config: dict[str, Any], text: Values) -> bool:
    """Whether the output head is the embedding, by the text config or the whole one."""
    return Values({**config, **text.values}, text.where).flag("tie_word_embeddings", False)


def layer_types(text: Values, layers: int) -> list[bool]:
    """For each layer whether it is of linear attention.

    Raises:
        InputError: another number of types than layers, or an unknown one.
    """
    given = text.values.get("layer_types")
    if given is None:
        interval = text.size("full_attention_interval", 4)
        return [(i + 1) % interval != 0 for i in range(layers)]
    known = {"linear_attention": True, "full_attention": False, "indexed_attention": False}
    where = f"{text.where}: 'layer_types'"
    if not isinstance(given, list) or len(given) != layers:
        found = f"{len(given)} types" if isinstance(given, list) else repr(given)[:40]
        raise InputError(where, found=found, expected=f"{layers}, one a layer")
    for name in given:
        if not isinstance(name, str) or name not in known:
            raise InputError(where, found=repr(name)[:40], expected=", ".join(known))
    return [known[name] for name in given]


def ple_layers(text: Values, layers: int) -> list[int]:
    """Numbers, from zero, of the layers with an n-gram embedding; the config counts from one.

    Raises:
        InputError: not a list of layer numbers.
    """
    given = text.values.get("ple_layer_ids")
    given = [] if given is None else given
    sound = isinstance(given, list) and all(type(i) is int and 1 <= i <= layers for i in given)
    if not sound:
        where = f"{text.where}: 'ple_layer_ids'"
        expected = f"a list of numbers from 1 to {layers}"
        raise InputError(where, found=repr(given)[:40], expected=expected)
    return sorted({i - 1 for i in given})


def wanted_text(text: Values, start: str, tied: bool) -> Iterator[str]:
    """The tensors of the text model but for routed experts and n-gram embeddings."""
    yield f"{start}embed_tokens.weight"
    if not tied:
        yield "lm_head.weight"
    for part in HYPER:
        yield f"{start}hyper_connection_mixer.{part}.weight"
    layers = text.size("num_hidden_layers")
    for i, linear in enumerate(layer_types(text, layers)):
        yield from _layer(f"{start}layers.{i}", linear)


def _layer(at: str, linear: bool) -> Iterator[str]:
    for block in ("attn_hyper_connection", "mlp_hyper_connection"):
        for part in (*HYPER, "block_inject_weight"):
            yield f"{at}.{block}.{part}.weight"
    if linear:
        for name in LINEAR:
            yield f"{at}.linear_attn.{name}"
    else:
        for name in SPARSE:
            yield f"{at}.self_attn.{name}.weight"
    for name in ("gate", "shared_expert_gate", *(f"shared_expert.{r}" for r in ROLES)):
        yield f"{at}.mlp.{name}.weight"


def _experts(names: frozenset[str], layer: str, experts: int, suffix: str) -> bool:
    """Whether a layer has all routed experts, in one layout or the other, or all their scales."""
    at = f"{layer}.mlp.experts"
    if f"{at}.gate_up_proj{suffix}" in names:
        return f"{at}.down_proj{suffix}" in names
    if experts > _MANY:
        each = (f"{at}.{e}.{r}.weight{suffix}" for r in ROLES for e in range(experts))
        return _all(names, each)
    return _all(names, map(at.__add__, _tails(experts, suffix)))


@cache
def _tails(experts: int, suffix: str) -> list[str]:
    """What follows a layer's name in those of its routed experts: the same in every layer."""
    return [f".{e}.{role}.weight{suffix}" for role in ROLES for e in range(experts)]


def _ple(at: str, count: int) -> Iterator[str]:
    for name in PLE:
        yield f"{at}.{name}.weight"
    for part in range(count):
        yield f"{at}.ple_embedding.ngram_embedding.shard_{part}.weight"


def _mtp() -> Iterator[str]:
    for name in ("fc_embedding", "fc_hidden", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield f"mtp.{name}.weight"
    for part in HYPER:
        yield f"mtp.hyper_connection_mixer.{part}.weight"
    yield from _layer("mtp.layers.0", linear=False)


def _visual(vision: Values) -> Iterator[str]:
    def both(name: str) -> Iterator[str]:
        yield f"model.visual.{name}.weight"
        yield f"model.visual.{name}.bias"

    yield "model.visual.pos_embed.weight"
    for name in ("patch_embed.proj", "merger.norm", "merger.linear_fc1", "merger.linear_fc2"):
        yield from both(name)
    for i in range(vision.size("depth")):
        for name in ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2"):
            yield from both(f"blocks.{i}.{name}")
