"""The fields of a qwen4_exp config.json that change the result, checked. Standard library only.

Source of the field list: docs/qwen4-exp.md, "Configuration". Symbols are those of the equations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from typing import Any

from ...errors import InputError, Unsupported
from ..values import Values
from .inventory import layer_types, ple_layers, text_of, tied
from .ngram_table import MAX_BASE, MAX_HEADS, MAX_SEED, heads

MAX_SIZE = 1 << 24
"""Largest width or vocabulary; the largest vocabularies have 2^18 words."""
MAX_LAYERS = 4096
MAX_HEAD = 65_536
MAX_EXPERTS = 65_536
MAX_TAPS = 1024
MAX_NGRAM = 64
THETA = {"least": 1.0, "most": 1e15}
"""Range of a rotary base: below 1 frequencies grow, and far above they leave float32."""
INDEXER = (
    *("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim"),
    *("indexer_budget", "indexer_compress_ratio"),
)
"""Fields of the selection of tokens: all of them, or none."""
VISION_TOKENS = (
    *("image_token_id", "video_token_id"),
    *("vision_start_token_id", "vision_end_token_id"),
)
TEXT_TYPES, VISION_TYPES = ("qwen4_exp_text", "qwen4_exp"), ("qwen4_exp_vision", "qwen4_exp")
"""`model_type` of an inner block; old configs give it that of the whole."""


@dataclass(frozen=True)
class Text:
    """Sizes of the decoder.

    Attributes:
        H, L, V: width, layers, vocabulary.
        nh, nkv, D, rd: heads of queries and of keys, their width, how much of it is rotated.
        eps: of every RMS norm.
        linear: for each layer whether it is a delta net; the others have sparse attention.
        gk, gv, dk, dv, K: the delta net's heads of keys and of values, their widths, taps.
        I, Is, E, k: width of an expert and of the shared one, experts, those of a token.
        renormalise: the k weights of a token are divided by their sum.
        N, r: residual streams, low rank of their mixers.
        ple: layers with n-gram embeddings, from zero; the next ones are 0 without any.
        M, kp: width of all gathered rows together, taps.
        n, hp: longest n-gram, heads for each length.
        base, divisible, seed, parts: least size of a head's table, unit of the rows of a layer's,
            seed of the hash, shards that the table is cut into.
        nx, Dx, budget, R: the indexer's heads, their width, tokens that are selected, tokens of a
            block; 0 where no layer has sparse attention and the config does not say.
        gate: activation of the delta net's output gate, `sigmoid` or `silu`.
        eos: the first one begins every n-gram context.
        tied: the output head is the embedding.
        attention_bias: the projections q, k, v, o of sparse attention have biases.
        theta, sections: rotary base; frequencies of the temporal, height and width channels.
    """

    H: int
    L: int
    V: int
    nh: int
    nkv: int
    D: int
    rd: int
    eps: float
    linear: tuple[bool, ...]
    gk: int
    gv: int
    dk: int
    dv: int
    K: int
    I: int  # noqa: E741 (the symbol of the equations)
    Is: int
    E: int
    k: int
    renormalise: bool
    N: int
    r: int
    ple: tuple[int, ...]
    M: int
    kp: int
    n: int
    hp: int
    base: int
    divisible: int
    seed: int
    parts: int
    nx: int
    Dx: int
    budget: int
    R: int
    gate: str
    eos: tuple[int, ...]
    tied: bool
    attention_bias: bool
    theta: float
    sections: tuple[int, int, int]

    @property
    def Tc(self) -> int:
        """Channels of the delta net's convolution: q, k and v."""
        return 2 * self.gk * self.dk + self.gv * self.dv

    @property
    def heads(self) -> int:
        """N-gram heads of a layer."""
        return (self.n - 1) * self.hp if self.ple else 0

    @property
    def W(self) -> int:
        """Width of a row of the n-gram table."""
        return self.M // self.heads if self.ple else 0


@dataclass(frozen=True)
class Vision:
    """Sizes of the vision tower.

    Attributes:
        depth, C, F, heads: blocks, width, width of an MLP, heads of attention.
        side: positions along a side of the learned square table.
        P, frames, merge: pixels of a patch side, pictures in a patch, patches of a token side.
        theta: rotary base.
    """

    depth: int
    C: int
    F: int
    heads: int
    side: int
    P: int
    frames: int
    merge: int
    theta: float


@dataclass(frozen=True)
class Qwen4ExpConfig:
    """A checked configuration.

    Attributes:
        vision: None for a checkpoint of the text model alone, and where only that is wanted.
        image_token_id, video_token_id, vision_start_token_id, vision_end_token_id: None without
            vision. Pictures alone are supported: that of videos is known to be refused.
        composite: the text model is a part (`text_config`) of a larger one.
        notes: `mtp*` fields that say something of what is not executed.
    """

    text: Text
    vision: Vision | None
    image_token_id: int | None
    video_token_id: int | None
    vision_start_token_id: int | None
    vision_end_token_id: int | None
    composite: bool
    notes: dict[str, Any] = field(default_factory=dict, hash=False)


def read_config(
    values: dict[str, Any], where: str = "config.json", *, text_only: bool = False
) -> Qwen4ExpConfig:
    """A checked configuration from the JSON of config.json.

    Args:
        text_only: leave the vision tower out; its fields are not looked at.
    Raises:
        InputError: a field that the computation needs is missing, impossible or contradicts
            another.
        Unsupported: a sound value that nothing is built for.
    """
    top = Values(values, where)
    _model_type(top, ("qwen4_exp", "qwen4_exp_text"))
    text = text_of(top)
    composite = text is not top
    if composite:
        _model_type(text, TEXT_TYPES)
    elif values.get("model_type") == "qwen4_exp":
        raise top.wrong("text_config", "none", "an object: 'model_type' is 'qwen4_exp'")
    for block in (top, text):
        if block.flag("mtp_use_dedicated_embeddings", False):
            expected = "false: there is no cache interface for embeddings of MTP's own"
            raise block.unsupported("mtp_use_dedicated_embeddings", expected)
    decoder = _text(text, tied(values, text))
    vision, tokens = None, dict.fromkeys(VISION_TOKENS, None)
    if composite and not text_only and top.given("vision_config"):
        vision = _vision(top.inner("vision_config"), decoder.H)
        tokens |= _tokens(top, decoder.V)
    return Qwen4ExpConfig(
        decoder, vision, **tokens, composite=composite, notes={**_notes(top), **_notes(text)}
    )


def _model_type(block: Values, known: tuple[str, ...]) -> None:
    if block.given("model_type") and block.text("model_type") not in known:
        raise block.unsupported("model_type", " or ".join(known))


def _notes(block: Values) -> dict[str, Any]:
    """Plain `mtp*` values."""
    plain = (bool, int, float, str)
    return {k: v for k, v in block.values.items() if k[:3] == "mtp" and isinstance(v, plain)}


def _text(text: Values, tied: bool) -> Text:
    H = text.size("hidden_size", most=MAX_SIZE)
    L = text.size("num_hidden_layers", most=MAX_LAYERS)
    V = text.size("vocab_size", most=MAX_SIZE)
    if text.text("hidden_act") != "silu":
        raise text.unsupported("hidden_act", "'silu'")
    nh, nkv, D, gk, gv = (
        text.size("num_attention_heads", most=MAX_HEAD),
        text.size("num_key_value_heads", most=MAX_HEAD),
        text.size("head_dim", most=MAX_HEAD),
        text.size("linear_num_key_heads", most=MAX_HEAD),
        text.size("linear_num_value_heads", most=MAX_HEAD),
    )
    if nh % nkv:
        raise text.wrong("num_attention_heads", nh, f"a multiple of {nkv}, num_key_value_heads")
    if gv % gk:
        raise text.wrong("linear_num_value_heads", gv, f"a multiple of {gk}, linear_num_key_heads")
    E = text.size("num_experts", most=MAX_EXPERTS)
    linear = tuple(layer_types(text, L))
    rd, theta, sections = _rotary(text, D)
    ple = _ple(text, L, linear, H)
    return Text(
        H=H,
        L=L,
        V=V,
        nh=nh,
        nkv=nkv,
        D=D,
        rd=rd,
        eps=text.number("rms_norm_eps", least=1e-30, most=1),
        linear=linear,
        gk=gk,
        gv=gv,
        dk=text.size("linear_key_head_dim", most=MAX_HEAD),
        dv=text.size("linear_value_head_dim", most=MAX_HEAD),
        K=text.size("linear_conv_kernel_dim", most=MAX_TAPS),
        I=text.size("moe_intermediate_size", most=MAX_SIZE),
        Is=text.size("shared_expert_intermediate_size", most=MAX_SIZE),
        E=E,
        k=text.size("num_experts_per_tok", most=E),
        renormalise=_renormalise(text),
        N=text.size("hc_count", lowest=2, most=MAX_TAPS),
        r=text.size("hc_lowrank", most=MAX_SIZE),
        **ple,
        **_indexer(text, rd, linear),
        gate=_gate(text),
        eos=_eos(text, V, bool(ple["ple"])),
        tied=tied,
        attention_bias=text.flag("attention_bias", False),
        theta=theta,
        sections=sections,
    )


def _renormalise(text: Values) -> bool:
    """Absent means true, in the release too. Null would mean it to some readers and false to
    others."""
    if "norm_topk_prob" in text.values and not text.given("norm_topk_prob"):
        raise text.wrong("norm_topk_prob", "null", "true or false")
    return text.flag("norm_topk_prob", True)


def _gate(text: Values) -> str:
    """Activation of the delta net's output gate; absent or null it is `hidden_act`, as in the
    published class."""
    gate = text.text("output_gate_type", text.text("hidden_act"))
    if gate not in ("sigmoid", "silu"):
        raise text.unsupported("output_gate_type", "'sigmoid' or 'silu'")
    return gate


def _eos(text: Values, V: int, needed: bool) -> tuple[int, ...]:
    """One number or a list of them; n-gram contexts begin with the first."""
    given = text.values.get("eos_token_id")
    many = isinstance(given, list)
    if given is None or given == []:
        if needed:
            raise text.wrong("eos_token_id", "none", "a token: n-gram contexts begin with it")
        return ()
    one = Values({"eos_token_id": given if many else [given]}, text.where)
    try:
        return one.integers("eos_token_id", most=V - 1)
    except InputError:
        expected = f"a token of the vocabulary, 0 to {V - 1}, or a list of them"
        raise text.wrong("eos_token_id", repr(given)[:40], expected) from None


def _rotary(text: Values, D: int) -> tuple[int, float, tuple[int, int, int]]:
    """Rotated width, base, and frequencies of each channel."""
    if text.given("rope_scaling"):
        raise text.unsupported("rope_scaling", "null: 'rope_parameters' say it")
    rope = text.inner("rope_parameters")
    if rope.text("rope_type", "default") != "default":
        raise rope.unsupported("rope_type", "'default'")
    if not rope.flag("mrope_interleaved", True):
        raise rope.unsupported("mrope_interleaved", "true: frequencies are always interleaved")
    rd = int(D * rope.number("partial_rotary_factor", most=1))
    sections = rope.integers("mrope_section", [11, 11, 10], most=MAX_HEAD)
    if len(sections) != 3 or 2 * sum(sections) != rd or not rd:
        expected = f"three numbers, the sum {rd / 2:g}: half of head_dim * partial_rotary_factor"
        raise rope.wrong("mrope_section", list(sections), expected)
    return rd, rope.number("rope_theta", **THETA), (sections[0], sections[1], sections[2])


def _indexer(text: Values, rd: int, linear: tuple[bool, ...]) -> dict[str, Any]:
    """Sizes of the selection of tokens."""
    absent = [name for name in INDEXER if not text.given(name)]
    if len(absent) == len(INDEXER):
        if not all(linear):
            first = linear.index(False)
            raise Unsupported(
                f"{text.where}: '{INDEXER[0]}' and the other indexer fields",
                found="none",
                expected=f"values: layer {first} has sparse attention",
            )
        return dict.fromkeys(("nx", "Dx", "budget", "R"), 0)
    if absent:
        raise text.wrong(absent[0], "none", f"a value, as the other indexer fields have: {INDEXER}")
    if text.size("indexer_kv_heads", most=MAX_HEAD) != 1:
        raise text.unsupported("indexer_kv_heads", 1)
    nx, Dx = (text.size(k, most=MAX_HEAD) for k in ("indexer_n_heads", "indexer_head_dim"))
    budget, R = (text.size(k, most=MAX_SIZE) for k in ("indexer_budget", "indexer_compress_ratio"))
    if budget % R:
        raise text.wrong("indexer_budget", budget, f"a multiple of {R}, indexer_compress_ratio")
    if rd > Dx:
        expected = f"at least {rd}, the rotated width of a head"
        raise text.wrong("indexer_head_dim", Dx, expected)
    return {"nx": nx, "Dx": Dx, "budget": budget, "R": R}


def _ple(text: Values, L: int, linear: tuple[bool, ...], H: int) -> dict[str, Any]:
    """Layers with n-gram embeddings, and their sizes."""
    ple = tuple(ple_layers(text, L))
    sizes = dict.fromkeys(("M", "kp", "n", "hp", "base", "divisible", "seed", "parts"), 0)
    for i in ple:
        if not linear[i]:
            expected = "layers of linear attention, counted from 1"
            raise text.wrong("ple_layer_ids", f"{i + 1}, of sparse attention", expected)
    if ple:
        n = text.size("ngram_size", lowest=2, most=MAX_NGRAM)
        M, count = text.size("ple_embed_dim", H, most=MAX_SIZE), heads(text)
        if count * len(ple) > MAX_HEADS:
            expected = f"at most {MAX_HEADS} n-gram heads in {len(ple)} layers"
            raise text.wrong("heads_per_ngram", f"{count * len(ple)} heads", expected)
        if M % count:
            raise text.wrong("ple_embed_dim", M, f"a multiple of {count}, the n-gram heads")
        sizes = {
            "M": M,
            "kp": text.size("ple_conv_kernel_size", most=MAX_TAPS),
            "n": n,
            "hp": text.size("heads_per_ngram"),
            "base": text.size("ngram_vocab_size_base", most=MAX_BASE),
            "divisible": text.size("make_ngram_vocab_size_divisible_by", 128),
            "seed": text.size("seed", 1234, lowest=0, most=MAX_SEED),
            "parts": text.size("split_ngram_parts", 512),
        }
    return {"ple": ple, **sizes}


def _vision(vision: Values, H: int) -> Vision:
    _model_type(vision, VISION_TYPES)
    if vision.values.get("deepstack_visual_indexes") not in (None, []):
        raise vision.unsupported("deepstack_visual_indexes", "[]")
    for key, wanted in (
        ("patch_size", 16),
        ("temporal_patch_size", 2),
        ("spatial_merge_size", 2),
        ("in_channels", 3),
    ):
        if vision.size(key) != wanted:
            raise vision.unsupported(key, wanted)
    if vision.text("hidden_act") != "gelu_pytorch_tanh":
        raise vision.unsupported("hidden_act", "'gelu_pytorch_tanh'")
    C, heads = vision.size("hidden_size", most=MAX_SIZE), vision.size("num_heads", most=MAX_HEAD)
    if C % heads or C // heads % 4:
        expected = f"a multiple of 4 for each of {heads} heads (num_heads)"
        raise vision.wrong("hidden_size", C, expected)
    positions = vision.size("num_position_embeddings", most=MAX_SIZE)
    if isqrt(positions) ** 2 != positions:
        raise vision.wrong("num_position_embeddings", positions, "a square: the table has one side")
    if vision.size("out_hidden_size", most=MAX_SIZE) != H:
        found = vision.size("out_hidden_size", most=MAX_SIZE)
        raise vision.wrong("out_hidden_size", found, f"{H}, hidden_size of text_config")
    theta = 10_000.0
    if vision.given("rope_parameters"):
        rope = vision.inner("rope_parameters")
        if rope.text("rope_type", "axial") != "axial":
            raise rope.unsupported("rope_type", "'axial'")
        theta = rope.number("rope_theta", theta, **THETA)
    return Vision(
        depth=vision.size("depth", most=MAX_LAYERS),
        C=C,
        F=vision.size("intermediate_size", most=MAX_SIZE),
        heads=heads,
        side=isqrt(positions),
        P=16,
        frames=2,
        merge=2,
        theta=theta,
    )


def _tokens(top: Values, V: int) -> dict[str, int]:
    """Ids of the tokens around and for pictures; all four are there and differ."""
    ids = {key: top.size(key, lowest=0, most=V - 1) for key in VISION_TOKENS}
    seen: dict[int, str] = {}
    for key, value in ids.items():
        if value in seen:
            raise top.wrong(key, value, f"another token than '{seen[value]}'")
        seen[value] = key
    return ids
