"""How tensors of neo_chat are counted: (key, regular expression), the first match wins.

The groups are those of the published parameter table of SenseNova-U1.5. It counts the generation
tower (`fm_modules.vision_model_mot_gen`) with the generation branch and the text embedding and
output head with the understanding branch; other tables of the same model do not.
"""

from __future__ import annotations

from collections.abc import Collection

GROUPS: tuple[tuple[str, str], ...] = (
    ("generation", r"_mot_gen"),
    ("fm_modules", r"^fm_modules\."),
    ("vision_model", r"^vision_model\."),
    ("understanding", r"^language_model\."),
)

COMPONENTS: tuple[tuple[str, str], ...] = (
    ("vision_encoder", r"^vision_model\."),
    ("embedding", r"^language_model\.model\.embed_tokens\."),
    ("image_gen_denoiser", r"^language_model\..*_mot_gen|^fm_modules\.fm_head\."),
    ("image_gen_embedding", r"^fm_modules\."),
    ("decoder", r"^language_model\."),
)

SIGNATURE: tuple[str, ...] = (
    "fm_modules.vision_model_mot_gen.embeddings.patch_embedding.weight",
    "language_model.model.norm_mot_gen.weight",
)
"""Names that every checkpoint of the family has and no other known one."""


def signed(names: Collection[str]) -> bool:
    """Whether the names are those of this family."""
    return all(name in names for name in SIGNATURE)
