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
from ..values import Values
from .inventory import ALONE, COMPOSITE, PLE, ROLES, ple_layers, text_of, tied, wanted_text
from .ngram_table import shards, table_rows

BLOCK = (128, 128)
PLE_SCALE_BITS = 0x3951
"""The BF16 scale of the published table, 0.00019931793212890625."""
EXCLUDED = (
    ("mtp", "mtp.*", "no authoritative forward and no cache interface exist for it"),
    ("visual", "model.visual.*", "belongs to the multimodal package"),
)
"""(family, pattern, reason) of what a package of FP8 weights leaves out unless it is asked for."""
BUFFERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
"""Of `ple_embedding`; they may be absent."""
_OTHERS = ("mtp.", "model.visual.")
_EXPERT = re.compile(
    r"\.mlp\.experts\.(?:\d+\.(?:gate|up|down)_proj\.weight|gate_up_proj|down_proj)$"
)
_SHARD = re.compile(r"\.ngram_embedding\.shard_\d+\.weight$")
_SCALE = "_scale_inv"
_MAX = 100


def problems(
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    pairs: Pairs,
    read: Callable[[Tensor], bytes],
) -> Iterator[Problem]:
    """Everything that is wrong with the names, pairs and settings, as errors.

    Args:
        read: the payload of a small tensor.
    Raises:
        InputError: a value of the config is missing or impossible.
    """
    if pairs.settings.block != BLOCK:
        found = pairs.settings.block
        message = f"weight_block_size: found {list(found) if found else None}, expected [128, 128]"
        yield Problem("bad-block", message, file="config.json")
    yield from _storage(tensors, pairs)
    yield from _scalars(pairs, read)
    yield from _skip_list(tensors, pairs)
    yield from _names(config, tensors)


def _storage(tensors: Mapping[str, Tensor], pairs: Pairs) -> Iterator[Problem]:
    """Experts and shards are FP8 with BF16 scales, and nothing else is."""
    for name, t in tensors.items():
        expert = _EXPERT.search(name) is not None
        if not expert and not _SHARD.search(name):
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
        if s is None:
            continue  # pairing says so
        if s.dtype != "BF16":
            message = f"dtype of a scale: found {s.dtype}, expected BF16"
            yield Problem("scale-dtype", message, file=s.file, name=s.name)
        want = (-(-t.shape[-2] // BLOCK[0]), -(-t.shape[-1] // BLOCK[1]))
        if expert and s.shape[-2:] != want:
            message = f"scale grid: found {list(s.shape)}, expected {[*t.shape[:-2], *want]}"
            yield Problem("scale-grid", message, file=s.file, name=s.name)


def _scalars(pairs: Pairs, read: Callable[[Tensor], bytes]) -> Iterator[Problem]:
    """One scale for a table, and the published one."""
    names = {s: w for w, s in pairs.scale_of.items() if _SHARD.search(w)}
    for name, weight in names.items():
        s = pairs.scales[name]
        if s.params != 1 or weight.rsplit(".shard_", 1)[0] != name.rsplit(".weight_scale", 1)[0]:
            message = (
                f"scale of an n-gram table: found {list(s.shape)}, expected one for all shards"
            )
            yield Problem("table-scale", message, file=s.file, name=name)
        elif s.dtype == "BF16" and (bits := int.from_bytes(read(s), "little")) != PLE_SCALE_BITS:
            message = f"scale of an n-gram table, bits: found {bits:#06x}, expected 0x3951"
            yield Problem("table-scale", message, file=s.file, name=name)


def _skip_list(tensors: Mapping[str, Tensor], pairs: Pairs) -> Iterator[Problem]:
    """Each name of modules_to_not_convert is a module stored in BF16."""
    for name in pairs.settings.skip:
        t = tensors.get(f"{name}.weight")
        if t is None or t.dtype != "BF16":
            found = f"stored as {t.dtype}" if t else "no such tensor"
            message = f"modules_to_not_convert: '{name}': found {found}, expected a BF16 weight"
            yield Problem("skip-unresolved", message, file="config.json", name=name)


def _names(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[Problem]:
    """Every tensor of the text model that the config demands, and no other."""
    top = Values(config, "config.json")
    text = text_of(top)
    start = COMPOSITE if f"{COMPOSITE}embed_tokens.weight" in tensors else ALONE
    layers, experts = text.size("num_hidden_layers"), text.size("num_experts")
    known = set(wanted_text(text, start, tied(config, text)))
    optional = {"lm_head.weight"}
    for place, i in enumerate(ple_layers(text, layers)):
        at = f"{start}layers.{i}.ple"
        known.update(f"{at}.{name}.weight" for name in PLE)
        optional.update(f"{at}.ple_embedding.{name}" for name in BUFFERS)
        table = f"{at}.ple_embedding.ngram_embedding"
        count = shards(table_rows(text, place), text.size("split_ngram_parts", 512))
        known.update(f"{table}.shard_{j}.weight" for j in range(count))
        known.add(f"{table}.weight_scale")
    expected = 0
    missing = [n for n in known if n not in tensors]
    for i in range(layers):
        at = f"{start}layers.{i}.mlp.experts"
        fused = f"{at}.gate_up_proj" in tensors
        names = (
            (f"{at}.gate_up_proj", f"{at}.down_proj")
            if fused
            else (f"{at}.{e}.{role}.weight" for e in range(experts) for role in ROLES)
        )
        for name in names:
            for wanted in (name, name + _SCALE):
                expected += 1
                if wanted not in tensors and len(missing) < _MAX:
                    missing.append(wanted)
    for name in sorted(missing)[:_MAX]:
        yield Problem("missing-tensor", "the config demands it, and it is not there", name=name)
    others = [
        n for n in tensors if n not in known and n not in optional and not n.startswith(_OTHERS)
    ]
    if not missing and len(others) == expected:
        return
    last = f"{start}layers."
    for name in others:
        base = name.removesuffix(_SCALE)
        number = base.removeprefix(last).split(".", 1)[0] if base.startswith(last) else ""
        sound = _EXPERT.search(base) and number.isdigit() and int(number) < layers
        if sound and ".mlp.experts." in base:
            part = base.rsplit(".mlp.experts.", 1)[1].split(".")[0]
            sound = not part.isdigit() or int(part) < experts
        if not sound:
            t = tensors[name]
            yield Problem("unknown-tensor", "not a tensor of the family", file=t.file, name=name)
