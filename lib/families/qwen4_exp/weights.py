"""A checkpoint of qwen4_exp against its config, before any graph is built, and the stored tensors
of a graph's parameters. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import zip_longest
from typing import Any

from ...checkpoint.tensor import Checkpoint, Problem, Tensor, first_of
from ...errors import InputError, SourceNotFound, Unsupported
from ...fp8.pairs import FP8, Pairs, pair
from ...fp8.settings import QUANTIZATION, read_settings
from ...progress import BYTES, tracked
from ..values import Values
from . import fp8_contract
from .config import Qwen4ExpConfig
from .contents import BLOCK, MOST_MISSING, buffer_problems, excluded, problems
from .inventory import ALONE, start_of, text_of, tied
from .ngram_table import shard_rows

HEAD = "lm_head.weight"
EMBED = "embed_tokens.weight"
VISUAL = "model.visual."
FMT = "e4m3"
"""`fmt` of a config whose codes are F8_E4M3."""
TIED = "tie_word_embeddings"
COMPOSITE = "the text model of a composite checkpoint"
EXPERTS = "one matrix for each expert in the checkpoint, in a bank here"
SHARDS = "the shards of the table, one after the other"
"""Reasons of names that differ."""
_GATE_UP, _DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"
_INVERSE = "_scale_inv"
_TABLE = ".ngram_embedding.weight"

Stored = tuple[str, tuple[int, ...]]
"""(name of a tensor of the checkpoint, the shape that it must have)."""
Rename = Callable[[str, tuple[int, ...]], tuple[list[Stored], str | None]]
"""The exporter's type of that name, without what importing it would load."""


def check(checkpoint: Checkpoint, c: Qwen4ExpConfig, text_only: bool) -> Pairs | None:
    """Refuse a checkpoint that is not, to the last tensor, what its config demands.

    In this order: headers and index; types, names and shapes; payloads that are cut off; the hash
    buffers and the scales of n-gram tables, whose values are known beforehand. Only these few
    hundred bytes of payload are read.

    Args:
        text_only: the vision tower is not loaded. MTP never is.
    Returns:
        Codes and scales of what is loaded, or None of a checkpoint without FP8.
    Raises:
        InputError: unknown, misshapen, of another type, or with another value than the config
            gives; the message names the first and how many more there are.
        SourceNotFound: a tensor or a file is missing.
        Unsupported: another quantisation than FP8; FP8 with pictures.
    """
    checkpoint.refuse_if_broken(headers_only=True)
    if checkpoint.orphans:
        _refuse(checkpoint, [_orphan(checkpoint, name) for name in checkpoint.orphans])
    tensors: Mapping[str, Tensor] = checkpoint.tensors
    if checkpoint.cut:
        tensors = {**tensors, **checkpoint.cut}
    pairs = _pairs(checkpoint, c, tensors, text_only)
    found: list[Problem] = []
    if pairs is not None:
        found += fp8_contract.header_problems(tensors, pairs)
        # a scale that is not there is told below, by the one name that it has in this family
        errors = (p for p in pairs.problems if p.severity == "error")
        found += [p for p in errors if p.code != "missing-scale"]
    found += problems(c, tensors, fp8=pairs is not None, text_only=text_only)
    _refuse(checkpoint, found)
    if pairs is not None:
        _refuse_shared_blocks(checkpoint, c, tensors)
    checkpoint.refuse_if_broken()

    def read(t: Tensor) -> bytes:
        return b"".join(checkpoint.bands(t))

    if pairs is not None:
        found += fp8_contract.payload_problems(pairs, read)
    found += buffer_problems(c, tensors, read)
    _refuse(checkpoint, found)
    return pairs


def _refuse(checkpoint: Checkpoint, found: list[Problem]) -> None:
    """Raise the first problem, if there is one; two of one tensor count once."""
    once = {p.name or p.message: p for p in reversed(found)}
    ordered = list(reversed(once.values()))
    message = first_of(ordered, "error", checkpoint.source)
    if message is None:
        return
    if len(ordered) >= MOST_MISSING:
        message = message.replace(" (and ", " (and at least ", 1)
    kind = SourceNotFound if ordered[0].code == "missing-tensor" else InputError
    raise kind(message)


def _orphan(checkpoint: Checkpoint, name: str) -> Problem:
    t = checkpoint.tensors.get(name)
    message = "in the file, and not named by the index"
    return Problem("orphan-tensors", message, file=t.file if t else None, name=name)


def _pairs(
    checkpoint: Checkpoint, c: Qwen4ExpConfig, tensors: Mapping[str, Tensor], text_only: bool
) -> Pairs | None:
    """Codes and scales of what is loaded, or None of a checkpoint without FP8.

    Raises:
        InputError: a quantisation that is no object.
        Unsupported: another quantisation, another kind of codes; FP8 with pictures.
    """
    settings = read_settings(checkpoint.config)
    where = f"{checkpoint.source}: config.json"
    for p in settings.problems:
        if p.code == "bad-quantization":
            raise InputError(f"{where}: {p.message}")
    given = [checkpoint.config.get(key) for key in QUANTIZATION]
    for values in given:
        if isinstance(values, dict) and (name := _method(values)):
            raise Unsupported(f"{where}: quantization_config", found=name, expected="'fp8'")
    if settings.method not in (None, "fp8"):
        found = repr(settings.method)
        raise Unsupported(f"{where}: quant_method", found=found, expected="'fp8'")
    families = excluded(c, text_only)
    kept = [t for name, t in tensors.items() if not name.startswith(families)]
    if settings.method is None and not any(t[1] in FP8 for t in kept):
        return None
    if settings.fmt not in (None, FMT):
        found = repr(settings.fmt)
        raise Unsupported(f"{where}: quantization_config: fmt", found=found, expected=f"'{FMT}'")
    if c.vision is not None and not text_only:
        raise Unsupported(
            f"{where}: FP8 weights together with pictures",
            expected="--text-only, the text model alone",
            hint="or make them dense first: ntool convert-fp8 SOURCE -o DIR --to bf16",
        )
    return pair(kept, settings)


def _method(values: dict[str, Any]) -> str | None:
    """What a block of settings calls itself, where that is not FP8."""
    names = [values.get(key) for key in ("quant_method", "quant_algo", "format")]
    said = [n for n in names if isinstance(n, str)]
    return ", ".join(said) if any("fp4" in n.lower() for n in said) else None


def _refuse_shared_blocks(
    checkpoint: Checkpoint, c: Qwen4ExpConfig, tensors: Mapping[str, Tensor]
) -> None:
    """Refuse a fused bank in which a block of scales lies over the gate and the up rows."""
    if c.text.I % BLOCK[0] == 0:
        return
    start = start_of(tensors)
    for name in (f"{start}layers.{i}{_GATE_UP}" for i in range(c.text.L)):
        if name in tensors:
            raise Unsupported(
                f"{checkpoint.source}: tensor '{name}': gate and up rows share a block of scales",
                found=f"moe_intermediate_size {c.text.I}",
                expected=f"a multiple of {BLOCK[0]}, or experts that are split",
            )


def check_tied(checkpoint: Checkpoint) -> None:
    """Refuse a tied output head that is stored and is not the embedding, to the byte.

    Reads both payloads, in bands; of a checkpoint that is not tied or has one of them, nothing.

    Raises:
        InputError: another type, shape or value; the first byte that differs is named.
    """
    config = checkpoint.config
    head = checkpoint.tensors.get(HEAD)
    embed = checkpoint.tensors.get(f"{start_of(checkpoint.tensors)}{EMBED}")
    if head is None or embed is None:
        return
    if not tied(config, text_of(Values(config, f"{checkpoint.source}: config.json"))):
        return
    what = f"{checkpoint.source}: {head.file}: tensor '{HEAD}', tied to '{embed.name}'"
    for part, found, wanted in (
        ("dtype", head.dtype, embed.dtype),
        ("shape", list(head.shape), list(embed.shape)),
    ):
        if found != wanted:
            raise InputError(f"{what}: {part}", found=found, expected=wanted)
    at = 0
    bands = zip_longest(checkpoint.bands(head), checkpoint.bands(embed), fillvalue=b"")
    comparing = tracked(bands, head.nbytes, "comparing tied weights", BYTES, lambda b: len(b[0]))
    for ours, theirs in comparing:
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            inside = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
            row = (at + inside) // max(1, head.nbytes // max(1, head.shape[0]))
            raise InputError(
                f"{what}: byte {at + inside}, in row {row}",
                found=ours[inside : inside + 1].hex() or "the end",
                expected=theirs[inside : inside + 1].hex() or "the end",
            )
        at += len(ours)


def renamed(c: Qwen4ExpConfig, names: Collection[str]) -> Rename:
    """For a graph's parameter the stored tensors that it is made of, and why their names differ.

    Parameters are called as in a checkpoint of the text model alone (`model.layers.3...`), the
    vision tower's `model.visual...`. The bytes of several tensors come one after the other:

    - `...mlp.experts.gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I] are the stored banks, or
      gate_0, up_0, gate_1, ... and down_0, down_1, ...; so are the scales of FP8 experts,
      `gate_up_proj_scale_inv` [E, 2 ceil(I/128), ceil(H/128)] and `down_proj_scale_inv`;
    - `...ngram_embedding.weight` [rows, W] are the shards in the order of their numbers.

    Args:
        names: of the checkpoint's tensors; a mapping to tensors also tells whether the scale of an
            n-gram table is stored as [] or as [1].
    """
    start, parts = start_of(names), c.text.parts
    prefixed = None if start == ALONE else COMPOSITE

    def rename(name: str, shape: tuple[int, ...]) -> tuple[list[Stored], str | None]:
        if name == HEAD:
            return ([(f"{start}{EMBED}", shape)], TIED) if c.text.tied else ([(name, shape)], None)
        if name.startswith(VISUAL) or not name.startswith(ALONE):
            return [(name, shape)], None
        stored = start + name.removeprefix(ALONE)
        bank = stored.removesuffix(_INVERSE)
        if bank.endswith((_GATE_UP, _DOWN)) and stored not in names:
            return _matrices(bank, stored[len(bank) :], shape), EXPERTS
        if stored.endswith(_TABLE):
            table = stored.removesuffix(".weight")
            heights = shard_rows(shape[0], parts)
            return [
                (f"{table}.shard_{j}.weight", (rows, *shape[1:])) for j, rows in enumerate(heights)
            ], SHARDS
        if stored.endswith(".weight_scale") and isinstance(names, Mapping):
            scale = names.get(stored)
            if scale is not None and scale.params == 1 and len(scale.shape) < 2:
                shape = scale.shape
        return [(stored, shape)], prefixed

    return rename


def _matrices(bank: str, suffix: str, shape: tuple[int, ...]) -> list[Stored]:
    """The split experts' matrices of a bank, or their scales, in the order of its bytes."""
    experts, rows, columns = shape
    at, role = bank.rsplit(".", 1)
    if role == "down_proj":
        return [(f"{at}.{e}.{role}.weight{suffix}", (rows, columns)) for e in range(experts)]
    each = (rows // 2, columns)
    return [
        (f"{at}.{e}.{half}.weight{suffix}", each)
        for e in range(experts)
        for half in ("gate_proj", "up_proj")
    ]
