"""What an FP8 checkpoint of qwen4_exp has to be before its codes are kept. Standard library only.

Routed experts and the shards of n-gram tables are FP8, all of them and nothing else; experts have
BF16 scales on blocks of 128 x 128, a table one BF16 scalar. Tensors of `mtp` and `visual` are not
judged by name: they are not executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...checkpoint.tensor import Problem, Tensor
from ...fp8.pairs import FP8, Pairs
from .config import read_config
from .contents import BLOCK, buffer_problems
from .contents import problems as content_problems

PLE_SCALE_BITS = 0x3951
"""The BF16 scale of the published table, 0.00019931793212890625."""
EXCLUDED = (
    ("mtp", "mtp.*", "no authoritative forward and no cache interface exist for it"),
    ("visual", "model.visual.*", "belongs to the multimodal package"),
)
"""(family, pattern, reason) of what a package of FP8 weights leaves out unless it is asked for."""
_EXPERT = re.compile(
    r"\.mlp\.experts\.(?:\d+\.(?:gate|up|down)_proj\.weight|gate_up_proj|down_proj)$"
)
_SHARD = re.compile(r"\.ngram_embedding\.shard_\d+\.weight$")


def problems(
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    pairs: Pairs,
    read: Callable[[Tensor], bytes],
) -> Iterator[Problem]:
    """Everything that is wrong with the names, shapes, pairs and settings, as errors; without any,
    what is wrong with the few values that are known beforehand.

    Args:
        read: the payload of a small tensor.
    Raises:
        InputError: a value of the config is missing or impossible.
        Unsupported: a value of the config that nothing is built for.
    """
    c = read_config(config, text_only=True)
    sound = True
    for problem in (
        *header_problems(tensors, pairs),
        *content_problems(c, tensors, fp8=True, text_only=True),
    ):
        sound = False
        yield problem
    if sound:
        yield from payload_problems(pairs, read)
        yield from buffer_problems(c, tensors, read)


def header_problems(tensors: Mapping[str, Tensor], pairs: Pairs) -> Iterator[Problem]:
    """What is wrong with types, scales and settings, as errors; contents.py judges what there is.

    Args:
        tensors: all of the checkpoint.
        pairs: of those that are loaded at least.
    """
    if pairs.settings.block != BLOCK:
        found = pairs.settings.block
        message = f"weight_block_size: found {list(found) if found else None}, expected [128, 128]"
        yield Problem("bad-block", message, file="config.json")
    yield from _storage(tensors, pairs)
    yield from _scalars(pairs)
    yield from _skip_list(tensors, pairs)


def _storage(tensors: Mapping[str, Tensor], pairs: Pairs) -> Iterator[Problem]:
    """Experts and shards are FP8 with BF16 scales, and nothing else is."""
    for name, t in tensors.items():
        expert = ".mlp.experts." in name and _EXPERT.search(name) is not None
        if not expert and not (".shard_" in name and _SHARD.search(name)):
            if t.dtype in FP8:
                message = f"{t.dtype} outside of the routed experts and the n-gram table"
                yield Problem("fp8-place", message, file=t.file, name=name)
            continue
        if t.dtype != "F8_E4M3":
            what = "a routed expert" if expert else "a shard of the n-gram table"
            message = f"dtype of {what}: found {t.dtype}, expected F8_E4M3"
            yield Problem("fp8-dtype", message, file=t.file, name=name)
            continue
        s = pairs.scales.get(pairs.scale_of.get(name, ""))
        if s is None or len(t.shape) < 2:
            continue  # pairing says so, or the inventory
        if s.dtype != "BF16":
            message = f"dtype of a scale: found {s.dtype}, expected BF16"
            yield Problem("scale-dtype", message, file=s.file, name=s.name)
        want = (-(-t.shape[-2] // BLOCK[0]), -(-t.shape[-1] // BLOCK[1]))
        if expert and s.shape[-2:] != want:
            message = f"scale grid: found {list(s.shape)}, expected {[*t.shape[:-2], *want]}"
            yield Problem("scale-grid", message, file=s.file, name=s.name)


def _scalars(pairs: Pairs) -> Iterator[Problem]:
    """One scale for a table."""
    for s, weight in _table_scales(pairs):
        if s.params != 1 or weight.rsplit(".shard_", 1)[0] != s.name.rsplit(".weight_scale", 1)[0]:
            message = (
                f"scale of an n-gram table: found {list(s.shape)}, expected one for all shards"
            )
            yield Problem("table-scale", message, file=s.file, name=s.name)
        elif s.dtype != "BF16":
            message = f"dtype of the scale of an n-gram table: found {s.dtype}, expected BF16"
            yield Problem("scale-dtype", message, file=s.file, name=s.name)


def payload_problems(pairs: Pairs, read: Callable[[Tensor], bytes]) -> Iterator[Problem]:
    """Scales of n-gram tables that are not the published one; `header_problems` found nothing."""
    for s, _ in _table_scales(pairs):
        bits = int.from_bytes(read(s), "little")
        if bits != PLE_SCALE_BITS:
            message = f"scale of an n-gram table, bits: found {bits:#06x}, expected 0x3951"
            yield Problem("table-scale", message, file=s.file, name=s.name)


def _table_scales(pairs: Pairs) -> Iterator[tuple[Tensor, str]]:
    """(scale, one of the shards that it is for)."""
    of = {s: w for w, s in pairs.scale_of.items() if ".shard_" in w and _SHARD.search(w)}
    return ((pairs.scales[s], w) for s, w in of.items())


def _skip_list(tensors: Mapping[str, Tensor], pairs: Pairs) -> Iterator[Problem]:
    """Each name of modules_to_not_convert is a module stored in BF16."""
    for name in pairs.settings.skip:
        t = tensors.get(f"{name}.weight")
        if t is None or t.dtype != "BF16":
            found = f"stored as {t.dtype}" if t else "no such tensor"
            message = f"modules_to_not_convert: '{name}': found {found}, expected a BF16 weight"
            yield Problem("skip-unresolved", message, file="config.json", name=name)
