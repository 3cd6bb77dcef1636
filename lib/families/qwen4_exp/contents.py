"""What a checkpoint has to hold: every tensor that a config demands, with its shape. Standard
library only.

Names are those of inventory.py, which counts them without knowing any size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping

from ...checkpoint.tensor import Problem, Tensor
from .config import Qwen4ExpConfig, Text, Vision
from .inventory import ATTENTION, HYPER, LINEAR, PLE, ROLES, SPARSE, start_of
from .ngram_table import hash_buffers, rows_of, shard_rows

BLOCK = (128, 128)
"""Rows and columns that share a scale in an FP8 checkpoint."""
BUFFERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
"""Of `ple_embedding`; they may be absent."""
EXCLUDED = ("mtp.", "model.visual.")
"""Families that need not be loaded: the second is one of them in a package of text alone."""
DTYPES = frozenset(("BF16", "F16", "F32"))
"""Of weights that are not FP8."""
MOST_MISSING = 10_000
"""Missing tensors after which looking for more ends: a config may demand any number."""

Wanted = tuple[str, tuple[int, ...], bool]
"""(name, shape, whether it must be there)."""
Shape = tuple[int, ...]


def excluded(c: Qwen4ExpConfig, text_only: bool) -> tuple[str, ...]:
    """What the names begin with that are counted, and not judged."""
    return EXCLUDED if text_only else EXCLUDED[:1]


def expected(
    c: Qwen4ExpConfig, names: Collection[str], *, fp8: bool = False, text_only: bool = False
) -> Iterator[Wanted]:
    """Every tensor of the text model and, unless `text_only`, of the vision tower.

    Names follow the checkpoint's own prefix, and the layout of experts that each layer has.

    Args:
        names: of the checkpoint's tensors.
        fp8: with the scales of experts and n-gram tables.
    """
    t, start = c.text, start_of(names)
    yield f"{start}embed_tokens.weight", (t.V, t.H), True
    yield "lm_head.weight", (t.V, t.H), not t.tied
    for part, shape in _hyper(t):
        yield f"{start}hyper_connection_mixer.{part}.weight", shape, True
    parts = {True: list(_layer(t, linear=True)), False: list(_layer(t, linear=False))}
    for i, linear in enumerate(t.linear):
        at = f"{start}layers.{i}."
        for name, shape in parts[linear]:
            yield at + name, shape, True
    for place, i in enumerate(t.ple):
        yield from _ngrams(t, f"{start}layers.{i}.ple", place, fp8)
    if c.vision is not None and not text_only:
        for name, shape in _visual(c.vision, t.H):
            yield name, shape, True
    for i in range(t.L):
        yield from _experts(t, f"{start}layers.{i}.mlp.experts", names, fp8)


def _hyper(t: Text) -> Iterator[tuple[str, Shape]]:
    streams = t.N * t.H
    return iter(zip(HYPER, ((streams,), (t.r, streams), (streams, t.r)), strict=True))


def _layer(t: Text, *, linear: bool) -> Iterator[tuple[str, Shape]]:
    """All of a layer but its routed experts and n-gram embedding."""
    for block in ("attn_hyper_connection", "mlp_hyper_connection"):
        for part, shape in _hyper(t):
            yield f"{block}.{part}.weight", shape
        yield f"{block}.block_inject_weight.weight", (t.N, t.N * t.H)
    if linear:
        for name, shape in zip(LINEAR, _delta_net(t), strict=True):
            yield f"linear_attn.{name}", shape
    else:
        for name, shape in zip(SPARSE, _sparse_attention(t), strict=True):
            yield f"self_attn.{name}.weight", shape
            if t.attention_bias and name in ATTENTION:
                yield f"self_attn.{name}.bias", shape[:1]
    yield "mlp.gate.weight", (t.E, t.H)
    yield "mlp.shared_expert_gate.weight", (1, t.H)
    for role, shape in zip(ROLES, ((t.Is, t.H), (t.Is, t.H), (t.H, t.Is)), strict=True):
        yield f"mlp.shared_expert.{role}.weight", shape


def _delta_net(t: Text) -> tuple[Shape, ...]:
    """Shapes of LINEAR."""
    inner = t.gv * t.dv
    return (
        *((t.Tc, t.H), (inner, t.H), (t.gv, t.H), (t.gv, t.H)),  # in_proj_qkv, z, b, a
        *((t.Tc, 1, t.K), (t.gv,), (t.gv,)),  # conv1d, dt_bias, A_log
        *((t.dv,), (t.H, inner)),  # norm, out_proj
    )


def _sparse_attention(t: Text) -> tuple[Shape, ...]:
    """Shapes of SPARSE."""
    return (
        (t.nh * 2 * t.D, t.H),  # q_proj: of each head D rows of the query, then D of its gate
        *((t.nkv * t.D, t.H), (t.nkv * t.D, t.H), (t.H, t.nh * t.D)),  # k, v, o
        *((t.D,), (t.D,)),  # q_norm, k_norm
        *(((t.nx + 1) * t.Dx, t.H), (t.Dx,), (t.Dx,)),  # indexer
    )


def _ngrams(t: Text, at: str, place: int, fp8: bool) -> Iterator[Wanted]:
    """The n-gram embedding of the place-th layer that has one."""
    streams, norm = t.N * t.H, (t.N * t.H,)
    shapes: tuple[Shape, ...] = (
        *((streams, t.M), (t.H, t.M)),  # key_proj, value_proj
        *(norm, norm, norm, (streams, 1, t.kp)),  # norm_key, norm_query, norm_conv, conv1d
    )
    for name, shape in zip(PLE, shapes, strict=True):
        yield f"{at}.{name}.weight", shape, True
    for name, length in zip(BUFFERS, (t.n, t.heads, t.heads), strict=True):
        yield f"{at}.ple_embedding.{name}", (length,), False
    table = f"{at}.ple_embedding.ngram_embedding"
    for j, height in enumerate(shard_rows(rows_of(t, place), t.parts)):
        yield f"{table}.shard_{j}.weight", (height, t.W), True
    if fp8:
        yield f"{table}.weight_scale", (1,), True


def _experts(t: Text, at: str, names: Collection[str], fp8: bool) -> Iterator[Wanted]:
    """The routed experts of a layer, in the layout that it has."""
    if f"{at}.gate_up_proj" in names:
        for name, rows, columns in (("gate_up_proj", 2 * t.I, t.H), ("down_proj", t.H, t.I)):
            yield f"{at}.{name}", (t.E, rows, columns), True
            if fp8:
                yield f"{at}.{name}_scale_inv", (t.E, *grid(rows, columns)), True
        return
    into, out = (t.I, t.H), (t.H, t.I)
    roles = [
        (role, shape, grid(*shape)) for role, shape in zip(ROLES, (into, into, out), strict=True)
    ]
    for e in range(t.E):
        for role, shape, scales in roles:
            name = f"{at}.{e}.{role}.weight"
            yield name, shape, True
            if fp8:
                yield f"{name}_scale_inv", scales, True


def grid(rows: int, columns: int) -> tuple[int, int]:
    """Scales of a matrix: the last block of a row or a column may be a partial one."""
    return -(-rows // BLOCK[0]), -(-columns // BLOCK[1])


def _visual(v: Vision, H: int) -> Iterator[tuple[str, Shape]]:
    """The vision tower and the merger behind it."""
    C, merged = v.C, v.C * v.merge**2

    def both(name: str, rows: int, *rest: int) -> Iterator[tuple[str, Shape]]:
        yield f"model.visual.{name}.weight", (rows, *rest)
        yield f"model.visual.{name}.bias", (rows,)

    yield from both("patch_embed.proj", C, 3, v.frames, v.P, v.P)
    yield "model.visual.pos_embed.weight", (v.side**2, C)
    for i in range(v.depth):
        at = f"blocks.{i}"
        yield from both(f"{at}.norm1", C)
        yield from both(f"{at}.norm2", C)
        yield from both(f"{at}.attn.qkv", 3 * C, C)
        yield from both(f"{at}.attn.proj", C, C)
        yield from both(f"{at}.mlp.linear_fc1", v.F, C)
        yield from both(f"{at}.mlp.linear_fc2", C, v.F)
    yield from both("merger.norm", C)
    yield from both("merger.linear_fc1", merged, merged)
    yield from both("merger.linear_fc2", H, merged)


def problems(
    c: Qwen4ExpConfig,
    tensors: Mapping[str, Tensor],
    *,
    fp8: bool = False,
    text_only: bool = False,
) -> list[Problem]:
    """Tensors that are missing, of another shape or type, or not of this family, as errors.

    Args:
        fp8: with scales; types of FP8 weights are judged by fp8_contract.py.
    """
    left = dict(tensors)
    missing, found = [], []
    for name, shape, needed in expected(c, tensors, fp8=fp8, text_only=text_only):
        t = left.pop(name, None)
        if t is None:
            if needed:
                message = f"the config demands it, and it is not there: expected {list(shape)}"
                missing.append(Problem("missing-tensor", message, name=name))
                if len(missing) == MOST_MISSING:
                    return missing
        elif t[2] != shape and not (t[2] == () and name.endswith(".weight_scale")):
            message = f"shape: found {list(t.shape)}, expected {list(shape)} from config.json"
            found.append(Problem("wrong-shape", message, file=t.file, name=name))
        elif (t[1] not in DTYPES or not needed) and (problem := _dtype(t, fp8)):
            found.append(problem)
    families = excluded(c, text_only)
    unknown = [t for name, t in left.items() if not name.startswith(families)]
    message = "not a tensor of the family that the config demands"
    found += [Problem("unknown-tensor", message, file=t.file, name=t.name) for t in unknown]
    return [*found, *missing]


def _dtype(t: Tensor, fp8: bool) -> Problem | None:
    """The finding that a tensor's type is, if it is one."""
    if t.name.endswith(BUFFERS):
        sound, expected = t.dtype == "I64", "I64"
    else:
        sound = t.dtype in DTYPES or (fp8 and t.dtype.startswith("F8_"))
        expected = "BF16, F16 or F32"
    if sound:
        return None
    message = f"dtype: found {t.dtype}, expected {expected}"
    return Problem("wrong-dtype", message, file=t.file, name=t.name)


def buffer_problems(
    c: Qwen4ExpConfig, tensors: Mapping[str, Tensor], read: Callable[[Tensor], bytes]
) -> Iterator[Problem]:
    """Stored buffers of the n-gram hash that are not what the config gives.

    Their shapes and types must have been judged: their payloads are read whole.
    """
    start = start_of(tensors)
    for place, i in enumerate(c.text.ple):
        derived = hash_buffers(c.text, place)
        for buffer in BUFFERS:
            t = tensors.get(f"{start}layers.{i}.ple.ple_embedding.{buffer}")
            if t is None:
                continue
            wanted = derived[buffer]
            raw = read(t)
            if len(raw) != 8 * len(wanted):
                message = f"payload: found {len(raw)} bytes, expected {8 * len(wanted)}"
                yield Problem("hash-buffer", message, file=t.file, name=t.name)
                continue
            stored = struct.unpack(f"<{len(wanted)}q", raw)
            for j, (found, value) in enumerate(zip(stored, wanted, strict=True)):
                if found != value:
                    message = f"entry {j}: found {found}, expected {value}, derived from the config"
                    yield Problem("hash-buffer", message, file=t.file, name=t.name)
                    break
