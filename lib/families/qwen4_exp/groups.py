"""How tensors of qwen4_exp are counted: (key, regular expression), the first match wins.

No expression looks at a digit: names that differ in their numbers alone are judged once. The groups
are the families of a weight-loading report (docs/qwen4-exp.md), so both can be compared line by
line.
"""

from __future__ import annotations

from collections.abc import Collection

GROUPS: tuple[tuple[str, str], ...] = (
    ("mtp", r"^mtp\."),
    ("visual", r"^model\.visual\."),
    ("routed_expert_scales", r"\.mlp\.experts\..*_scale"),
    ("routed_experts", r"\.mlp\.experts\."),
    ("ple_scale", r"\.ngram_embedding\..*_scale"),
    ("ple_shards", r"\.ngram_embedding\."),
    ("hash_buffers", r"\.ple_embedding\.(?:layer_multipliers|ngram_heads_)"),
    ("text_dense", r"^model\.|^lm_head\."),
)

COMPONENTS: tuple[tuple[str, str], ...] = (
    ("mtp", r"^mtp\."),
    ("visual", r"^model\.visual\."),
    ("scales", r"_scale(?:_inv)?$"),
    ("experts", r"\.mlp\.experts\."),
    ("ple", r"\.ple\."),
    ("text", r"^model\.|^lm_head\."),
)

GGUF_GROUPS: tuple[tuple[str, str], ...] = (
    ("routed_experts", r"_exps\."),
    ("ple_shards", r"^per_layer_token_embd"),
    ("text_dense", r"^blk\.|^token_embd|^output"),
)
"""The same families by the names of its GGUF sets, which hold the text model alone."""

SIGNATURE: tuple[str, ...] = (
    "hyper_connection_mixer.hc_norm.weight",
    "hyper_connection_mixer.input_mix_weight_down.weight",
)
"""Names that every checkpoint of the family has, after the start of its text model."""


def signed(names: Collection[str]) -> bool:
    """Whether the names are those of this family."""
    starts = ("model.language_model.", "model.")
    return any(all(f"{start}{name}" in names for name in SIGNATURE) for start in starts)
