"""Checkpoint names of neo_chat: the one rename, head widths, and variants that are refused by
name."""

from __future__ import annotations

import re

from ...checkpoint.tensor import Checkpoint
from ...errors import InputError, SourceNotFound, Unsupported
from ...package.bindings import STACKED, Stored
from .config import NeoChatConfig

EMBED = "language_model.model.embed_tokens.weight"
LM_HEAD = "language_model.lm_head.weight"
HEAD = "fm_modules.fm_head."


BANK = re.compile(r"(.+\.experts)\.((?:gate|up|down)_proj\.weight)")
"""A bank of experts as one parameter [E, out, in]; the checkpoint has a matrix for each expert."""


def renamed(c: NeoChatConfig, name: str, shape: tuple[int, ...]) -> tuple[list[Stored], str | None]:
    """The stored tensors of a parameter, and why they differ from it.

    A tied lm_head is the embedding table. A bank of experts is stacked from its experts' matrices,
    so that one Scan can walk over them (graph/experts.py).
    """
    if c.llm.tied and name == LM_HEAD:
        return [(EMBED, shape)], "tie_word_embeddings"
    bank = BANK.fullmatch(name)
    if bank:
        return [(f"{bank[1]}.{e}.{bank[2]}", shape[1:]) for e in range(shape[0])], STACKED
    return [(name, shape)], None


def refuse_layered(checkpoint: Checkpoint, c: NeoChatConfig) -> None:
    """Refuse the layered RGBA variant, by the tensor that shows it.

    Raises:
        Unsupported: an alpha convolution, an alpha patch embedding, 256 output rows of the last
            convolution, or 4-channel patches.
    """
    tower = "fm_modules.vision_model_mot_gen.embeddings."
    signs = {
        HEAD + "alpha_conv.weight": None,
        tower + "alpha_patch_embedding.weight": None,
        HEAD + "conv2.weight": (0, 256),
        HEAD + "2.weight": (0, 4 * c.F * c.F),
        tower + "patch_embedding.weight": (1, 4),
    }
    for name, sign in signs.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            continue
        if sign is None or (len(tensor.shape) > sign[0] and tensor.shape[sign[0]] == sign[1]):
            raise Unsupported(
                f"{tensor.file}: tensor '{name}' {list(tensor.shape)}: layered RGBA variant",
                expected="an RGB checkpoint",
            )


def head_width(checkpoint: Checkpoint, c: NeoChatConfig) -> int:
    """Inner width of the pixel head, from the shape of its first tensor (no config field holds it).

    Raises:
        InputError: config and tensors disagree about the kind of head.
        SourceNotFound: there is none.
    """
    conv, mlp = HEAD + "conv1.weight", HEAD + "0.weight"
    wanted, other = (conv, mlp) if c.pixel_head else (mlp, conv)
    tensor = checkpoint.tensors.get(wanted)
    if tensor is None:
        kind = "true (ConvDecoder)" if c.pixel_head else "false (MLP head)"
        if other not in checkpoint.tensors:
            raise SourceNotFound(f"{checkpoint.source}: tensor '{wanted}' is missing")
        raise InputError(
            f"{checkpoint.source}: use_pixel_head is {kind}",
            found=f"'{other}'",
            expected=f"'{wanted}'",
        )
    width = tensor.shape[0] if tensor.shape else 0
    if width < 1 or (c.pixel_head and width % 4):
        raise InputError(
            f"{tensor.file}: tensor '{wanted}': shape",
            found=list(tensor.shape),
            expected="a first dimension that is a multiple of 4" if c.pixel_head else "[width, D]",
        )
    return width
