"""The sizes of a Qwen4-Exp decoder, read from config.json for the NumPy reference.

Written from the Qwen4-Exp specification, sections 1 and 2, and from nothing else: it is a second
reading of config.json on purpose, so that a wrong default shows as a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ngrams:
    """What the hashes of a PLE need (section 7).

    Attributes:
        V: vocabulary; n: longest n-gram; hp: heads for each order 2..n.
        base, divisible: smallest prime, and what the number of table rows is a multiple of.
        layers: PLE layers, counted from zero, ascending.
    """

    V: int
    n: int
    hp: int
    base: int
    divisible: int
    seed: int
    eos: int
    layers: tuple[int, ...]

    @property
    def heads(self) -> int:
        return (self.n - 1) * self.hp


@dataclass(frozen=True)
class Sizes:
    """Sizes of the decoder by the symbols of section 1.

    Attributes:
        linear: for each layer, whether it is a delta net (else QSA attention).
        sections: frequencies of (temporal, height, width).
        gate: activation of the delta net's output gate, `sigmoid` or `silu`.
        ngrams, M, kp: of the PLE; None, 0, 0 without one.
        nx, Dx, R, budget: of the indexer, the budget in tokens; 0 without QSA layers.
    """

    H: int
    N: int
    eps: float
    linear: tuple[bool, ...]
    nh: int
    nkv: int
    D: int
    rd: int
    theta: float
    sections: tuple[int, int, int]
    nx: int
    Dx: int
    R: int
    budget: int
    gk: int
    gv: int
    dk: int
    dv: int
    K: int
    gate: str
    k: int
    renormalise: bool
    M: int
    kp: int
    ngrams: Ngrams | None
    tied: bool

    @property
    def Tc(self) -> int:
        return 2 * self.gk * self.dk + self.gv * self.dv


LAYER_KINDS = {"linear_attention": True, "full_attention": False, "indexed_attention": False}


def read_sizes(config: Mapping[str, Any]) -> Sizes:
    """Sizes from config.json of a text-only or composite checkpoint, with the defaults of 2.1."""
    text = config.get("text_config", config)
    number = text["num_hidden_layers"]
    interval = text.get("full_attention_interval") or 4
    if text.get("layer_types") is None:
        linear = tuple((i + 1) % interval != 0 for i in range(number))
    else:
        linear = tuple(LAYER_KINDS[kind] for kind in text["layer_types"])
    rope = text["rope_parameters"]
    ngrams = read_ngrams(text) if text.get("ple_layer_ids") else None
    indexer = (text.get(f"indexer_{x}") for x in ("n_heads", "head_dim", "compress_ratio"))
    nx, Dx, R = (x or 0 for x in indexer)
    M = text.get("ple_embed_dim") or text["hidden_size"]
    return Sizes(
        H=text["hidden_size"],
        N=text["hc_count"],
        eps=text["rms_norm_eps"],
        linear=linear,
        nh=text["num_attention_heads"],
        nkv=text["num_key_value_heads"],
        D=text["head_dim"],
        rd=int(text["head_dim"] * rope["partial_rotary_factor"]),
        theta=rope["rope_theta"],
        sections=tuple(rope.get("mrope_section") or (11, 11, 10)),
        nx=nx,
        Dx=Dx,
        R=R,
        budget=text.get("indexer_budget") or 0,
        gk=text["linear_num_key_heads"],
        gv=text["linear_num_value_heads"],
        dk=text["linear_key_head_dim"],
        dv=text["linear_value_head_dim"],
        K=text["linear_conv_kernel_dim"],
        gate=text.get("output_gate_type") or text["hidden_act"],
        k=text["num_experts_per_tok"],
        renormalise=text.get("norm_topk_prob", True),
        M=M if ngrams else 0,
        kp=text["ple_conv_kernel_size"] if ngrams else 0,
        ngrams=ngrams,
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
    )


def read_ngrams(text: Mapping[str, Any]) -> Ngrams:
    """The fields of a text config from which hashes and the table's geometry follow."""
    eos = text["eos_token_id"]
    return Ngrams(
        V=text["vocab_size"],
        n=text["ngram_size"],
        hp=text["heads_per_ngram"],
        base=text["ngram_vocab_size_base"],
        divisible=text["make_ngram_vocab_size_divisible_by"],
        seed=text.get("seed", 1234),
        eos=eos[0] if isinstance(eos, list) else eos,
        layers=tuple(sorted({i - 1 for i in text["ple_layer_ids"]})),
    )
