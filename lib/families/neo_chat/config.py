"""The fields of a neo_chat config.json that change the computation, checked; the rest is ignored.

Source of the field list: docs/neo-chat.md, "Configuration".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...checkpoint.strict_json import has_lone_surrogate
from ...errors import InputError, Unsupported

MISSING = object()
MAX_SIZE = 1 << 24
"""Largest width or count; the largest vocabularies have 2^18 words."""
MAX_LAYERS = 4096
MAX_HEAD = 65_536
MAX_EXPERTS = 65_536
MAX_PATCH = 1024
MAX_MERGE = 64
MAX_TOKEN_SIDE = 4096
THETA = {"least": 1.0, "most": 1e15}
"""Range of a rotary base: below 1 frequencies grow, and far above they leave float32."""
NOISE_MODES = ("resolution", "dynamic", "dynamic_sqrt")
"""Modes that scale with the picture; every other string leaves the noise scale fixed."""


@dataclass(frozen=True)
class Experts:
    """One side's mixture of experts: E of them of width I, k for a token."""

    E: int
    k: int
    I: int  # noqa: E741


@dataclass(frozen=True)
class Backbone:
    """Sizes of the language model: D hidden, H/KV query/key heads of hd, Nl layers, I MLP width, V
    words.

    Attributes:
        experts: each side's mixture, by the suffix of its modules; empty for a dense backbone.
        renormalise: the k weights of a token are divided by their sum.
        dense_layers: layers whose understanding MLP is dense in a mixture-of-experts backbone.
    """

    D: int
    H: int
    KV: int
    hd: int
    Nl: int
    I: int  # noqa: E741
    V: int
    eps: float
    rope_theta: float
    rope_theta_hw: float
    attention_bias: bool
    tied: bool
    experts: dict[str, Experts]
    renormalise: bool
    dense_layers: frozenset[int]

    @property
    def moe(self) -> bool:
        """Whether the backbone is a mixture of experts."""
        return bool(self.experts)

    def mixture(self, layer: int, suffix: str) -> Experts | None:
        """The experts of a layer's MLP on one side, or None where it is dense.

        The generation side is sparse in every layer, whatever the understanding side is.
        """
        if not suffix and layer in self.dense_layers:
            return None
        return self.experts.get(suffix)


@dataclass(frozen=True)
class NeoChatConfig:
    """A checked neo_chat configuration.

    Attributes:
        P: pixels of a patch side. m: patches of a token side.
        vh: width of the vision towers. rope_theta_vision: base of their rotary code.
        max_grid: largest patch-grid side that the towers' position table allows.
        pixel_head: ConvDecoder if true, else the MLP head.
        noise_*: see `sampling.schedule.noise_scale`; no unit.
    """

    llm: Backbone
    P: int
    m: int
    vh: int
    rope_theta_vision: float
    max_grid: int
    pixel_head: bool
    noise_scale: float
    noise_scale_mode: str
    noise_scale_base_image_seq_len: float
    noise_scale_max_value: float
    add_noise_scale_embedding: bool

    @property
    def F(self) -> int:
        """Pixels of a token side."""
        return self.P * self.m


class _Fields:
    """Typed access to a JSON object that names the field in every refusal."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise InputError(f"{where}", found=type(values).__name__, expected="a JSON object")
        self.values, self.where = values, where

    def get(self, key: str, default: Any = MISSING) -> Any:
        value = self.values.get(key, default)
        if value is MISSING:
            raise InputError(f"{self.where}: '{key}' is missing")
        return value

    def number(
        self, key: str, default: Any = MISSING, *, least: float = 1e-6, most: float = 1e12
    ) -> float:
        value = self.get(key, default)
        if isinstance(value, list) and len(value) == 1:  # a re-saved config may hold [0.5]
            value = value[0]
        # the bounds also keep what float32 cannot hold from becoming 0 or infinity in a graph
        if type(value) not in (int, float) or not least <= value <= most:
            raise self.refused(key, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def size(
        self, key: str, default: Any = MISSING, *, at_least: int = 1, most: int = MAX_SIZE
    ) -> int:
        value = self.get(key, default)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is not int or not at_least <= value <= most:
            raise self.refused(key, value, f"a whole number from {at_least} to {most}")
        return value

    def refused(self, key: str, value: Any, expected: str) -> InputError:
        """The refusal of a field's value."""
        return InputError(f"{self.where}: '{key}'", found=repr(value), expected=expected)

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or has_lone_surrogate(value):
            raise self.refused(key, value, "a string of UTF-8")
        return value

    def flag(self, key: str, default: Any = MISSING) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, value, "true or false")
        return value


def is_moe(llm: dict[str, Any]) -> bool:
    """Whether a dict `llm_config` describes a mixture-of-experts backbone.

    True if `model_type` contains "moe" or an entry of `architectures` contains "Moe" or "MoE"; a
    bare `num_experts` does not count.
    """
    names = llm.get("architectures")  # its form is judged by `read_config`
    return "moe" in str(llm.get("model_type", "")) or any(
        "Moe" in str(n) or "MoE" in str(n) for n in (names if isinstance(names, list) else ())
    )


def read_config(values: dict[str, Any], where: str = "config.json") -> NeoChatConfig:
    """A checked configuration from the JSON of config.json.

    Raises:
        InputError: a field that the computation needs is missing or of the wrong kind.
        Unsupported: a value that no released or derived checkpoint can run with here; named.
    """
    top = _Fields(values, where)
    vision = _Fields(top.get("vision_config"), f"{where}: vision_config")
    if top.get("template") != "neo1_0":
        raise Unsupported(
            f"{where}: template", found=repr(top.get("template")), expected="'neo1_0'"
        )
    if top.size("fm_head_layers", at_least=0) > 2:
        raise Unsupported(
            f"{where}: fm_head_layers", found=top.get("fm_head_layers"), expected="<= 2"
        )
    if top.size("concat_time_token_num", at_least=0) != 0:
        raise Unsupported(
            f"{where}: concat_time_token_num", found=top.get("concat_time_token_num"), expected=0
        )
    channels = vision.size("num_channels", 3)
    if channels != 3:
        raise Unsupported(
            f"{where}: vision_config: num_channels", found=channels, expected="3 (RGB)"
        )
    ratio = top.number("downsample_ratio", least=1 / MAX_MERGE, most=1)
    m = int(1 / ratio)
    # the second part refuses what processor.json could not say: m is a whole number
    if abs(m * ratio - 1) > 1e-6 or vision.number("downsample_ratio", 0.5) != ratio:
        raise InputError(
            f"{where}: downsample_ratio", found=ratio, expected="1/m, the same in vision_config"
        )
    P = vision.size("patch_size", 16, most=MAX_PATCH)
    vh = vision.size("hidden_size", 1024, most=MAX_HEAD)
    if P * m > MAX_TOKEN_SIDE:
        raise InputError(
            f"{where}: vision_config: patch_size",
            found=P,
            expected=f"tokens of at most {MAX_TOKEN_SIDE} pixels a side",
        )
    llm = _backbone(_Fields(top.get("llm_config"), f"{where}: llm_config"), top)
    if vh % 8:
        raise InputError(
            f"{where}: vision_config: hidden_size", found=vh, expected="a multiple of 8"
        )
    if vision.size("llm_hidden_size", 2048) != llm.D:
        raise InputError(
            f"{where}: vision_config: llm_hidden_size",
            found=vision.get("llm_hidden_size", 2048),
            expected=f"{llm.D}, llm_config.hidden_size",
        )
    return NeoChatConfig(
        llm=llm,
        P=P,
        m=m,
        vh=vh,
        rope_theta_vision=vision.number("rope_theta_vision", 1e4, **THETA),
        max_grid=vision.size("max_position_embeddings_vision", 10000),
        pixel_head=top.flag("use_pixel_head"),
        noise_scale=top.number("noise_scale", most=1e6),
        noise_scale_mode=top.text("noise_scale_mode"),
        noise_scale_base_image_seq_len=top.number("noise_scale_base_image_seq_len", least=1),
        noise_scale_max_value=top.number("noise_scale_max_value", most=1e6),
        add_noise_scale_embedding=top.flag("add_noise_scale_embedding"),
    )


def _check_names(fields: _Fields) -> None:
    """Refuse an `architectures` or `model_type` of another form: they tell dense from sparse."""
    names = fields.get("architectures", None)
    if names is not None and not (
        isinstance(names, list) and all(isinstance(n, str) for n in names)
    ):
        raise fields.refused("architectures", names, "a list of strings")
    kind = fields.get("model_type", None)
    if kind is not None and not isinstance(kind, str):
        raise fields.refused("model_type", kind, "a string")


def _experts(llm: _Fields) -> tuple[dict[str, Experts], bool, frozenset[int]]:
    """Mixtures of both sides; a generation field that is absent or null is the other side's."""
    if not is_moe(llm.values):
        return {}, False, frozenset()
    own = Experts(
        llm.size("num_experts", most=MAX_EXPERTS),
        llm.size("num_experts_per_tok"),
        llm.size("moe_intermediate_size"),
    )

    def generation(key: str, fallback: int) -> int:
        return fallback if llm.get(key, None) is None else llm.size(key, most=MAX_EXPERTS)

    gen = Experts(
        generation("gen_num_experts", own.E),
        generation("gen_num_experts_per_tok", own.k),
        generation("gen_moe_intermediate_size", own.I),
    )
    for side, e in (("num_experts_per_tok", own), ("gen_num_experts_per_tok", gen)):
        if e.k > e.E:
            raise InputError(f"{llm.where}: '{side}'", found=e.k, expected=f"<= {e.E} experts")
    # which layers are sparse decides which tensors there are, so a wrong default cannot pass unseen
    step = llm.size("decoder_sparse_step", 1)
    named = llm.get("mlp_only_layers", None) or []
    if not isinstance(named, list) or not all(type(i) is int and i >= 0 for i in named):
        raise llm.refused("mlp_only_layers", named, "layer numbers")
    layers = range(llm.size("num_hidden_layers", most=MAX_LAYERS))
    dense = frozenset(i for i in layers if i in named or (i + 1) % step)
    return {"": own, "_mot_gen": gen}, llm.flag("norm_topk_prob"), dense


def _backbone(llm: _Fields, top: _Fields) -> Backbone:
    where = llm.where
    _check_names(llm)
    if llm.get("rope_scaling", None) is not None:
        raise Unsupported(
            f"{where}: rope_scaling", found=repr(llm.get("rope_scaling")), expected="null"
        )
    if llm.get("hidden_act") != "silu":
        raise Unsupported(
            f"{where}: hidden_act", found=repr(llm.get("hidden_act")), expected="'silu'"
        )
    layers = llm.size("num_hidden_layers", most=MAX_LAYERS)
    sliding = llm.get("use_sliding_window", None) is not None and llm.flag("use_sliding_window")
    if sliding and layers >= llm.size("max_window_layers", 28, at_least=0):
        raise Unsupported(f"{where}: use_sliding_window", found="true", expected="false")
    H, KV, hd = (
        llm.size("num_attention_heads"),
        llm.size("num_key_value_heads"),
        llm.size("head_dim", most=MAX_HEAD),
    )
    if H % KV:
        raise InputError(
            f"{where}: num_attention_heads",
            found=H,
            expected=f"a multiple of num_key_value_heads {KV}",
        )
    if hd % 8:
        raise InputError(
            f"{where}: head_dim",
            found=hd,
            expected="a multiple of 8 (time, height and width parts)",
        )
    experts, renormalise, dense_layers = _experts(llm)
    return Backbone(
        D=llm.size("hidden_size"),
        H=H,
        KV=KV,
        hd=hd,
        Nl=layers,
        I=llm.size("intermediate_size"),
        V=llm.size("vocab_size"),
        eps=llm.number("rms_norm_eps", least=1e-30, most=1),
        rope_theta=llm.number("rope_theta", **THETA),
        rope_theta_hw=llm.number("rope_theta_hw", 1e4, **THETA),
        attention_bias=llm.flag("attention_bias"),
        tied=llm.flag("tie_word_embeddings", top.flag("tie_word_embeddings", False)),
        experts=experts,
        renormalise=renormalise,
        dense_layers=dense_layers,
    )
