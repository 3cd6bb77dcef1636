"""The tensors that a qwen4exp GGUF model must have, and why its payload is not converted.

Names are those of the public converter; dimensions follow from the metadata. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...checkpoint.gguf_set import GgufFacts
from ...checkpoint.tensor import Problem, Tensor
from . import gguf_indexer
from .gguf_geometry import Geometry, geometry

TABLE = "per_layer_token_embd.weight"
"""The n-gram table: all shards of the other formats in one tensor."""
GATE_UP, DOWN = "GGUF:IQ1_S", "GGUF:IQ4_NL"
"""Types of the expert banks of the published set, and IQ4_NL of its n-gram table."""
MAX_DEQUANTISED = 1 << 32
"""Bytes of the largest tensor that would be dequantised: what fits into memory beside a model."""
PUBLISHED_TABLE = 2 * 160 * 320_001_536
"""Bytes of the published n-gram table as BF16."""

Dims = tuple[int, ...]
"""As in the file: innermost dimension first."""


class Reason(NamedTuple):
    """Why the payload of a set is not converted.

    Attributes:
        code: stable, lower case with dashes.
        message: one line.
    """

    code: str
    message: str


def expected(g: Geometry) -> dict[str, Dims]:
    """{name: dims} of all tensors; the rows of the n-gram table are the least that it must have."""
    streams = g.N * g.H
    out: dict[str, Dims] = {
        "token_embd.weight": (g.H, g.V),
        "output.weight": (g.H, g.V),
        "output_hc_norm.weight": (streams,),
        "output_hc_down.weight": (streams, g.r),
        "output_hc_up.weight": (g.r, streams),
    }
    if g.ple:
        out[TABLE] = (g.width, g.rows)
    for i in range(g.L):
        parts = [_streams(g), _sparse_attention(g) if g.sparse[i] else _delta_net(g), _experts(g)]
        if i in g.ple:
            parts.append(_ngrams(g))
        for rows in parts:
            out |= {f"blk.{i}.{name}": dims for name, dims in rows}
    return out


Rows = Iterator[tuple[str, Dims]]


def _streams(g: Geometry) -> Rows:
    streams = g.N * g.H
    for place in ("attn", "ffn"):
        yield f"hc_{place}_norm.weight", (streams,)
        yield f"hc_{place}_down.weight", (streams, g.r)
        yield f"hc_{place}_up.weight", (g.r, streams)
        yield f"hc_{place}_inject.weight", (streams, g.N)


def _delta_net(g: Geometry) -> Rows:
    inner = g.gv * g.dv
    channels = 2 * g.gk * g.dk + inner
    yield "attn_qkv.weight", (g.H, channels)
    yield "attn_gate.weight", (g.H, inner)
    yield "ssm_beta.weight", (g.H, g.gv)
    yield "ssm_alpha.weight", (g.H, g.gv)
    yield "ssm_conv1d.weight", (g.K, channels)
    yield "ssm_dt.bias", (g.gv,)
    yield "ssm_a", (g.gv,)
    yield "ssm_norm.weight", (g.dv,)
    yield "ssm_out.weight", (inner, g.H)


def _sparse_attention(g: Geometry) -> Rows:
    yield "attn_q.weight", (g.H, g.nh * 2 * g.D)  # for each head its query, then its gate
    yield "attn_k.weight", (g.H, g.nkv * g.D)
    yield "attn_v.weight", (g.H, g.nkv * g.Dv)
    yield "attn_output.weight", (g.nh * g.Dv, g.H)
    yield "attn_q_norm.weight", (g.D,)
    yield "attn_k_norm.weight", (g.D,)
    for name, (rows, columns) in gguf_indexer.halves(g):
        yield name, (columns, rows)
    yield "indexer.q_norm.weight", (g.Dx,)
    yield "indexer.k_norm.weight", (g.Dx,)


def _experts(g: Geometry) -> Rows:
    yield "ffn_gate_inp.weight", (g.H, g.E)
    yield "ffn_gate_inp_shexp.weight", (g.H,)
    yield "ffn_gate_exps.weight", (g.H, g.I, g.E)
    yield "ffn_up_exps.weight", (g.H, g.I, g.E)
    yield "ffn_down_exps.weight", (g.I, g.H, g.E)
    yield "ffn_gate_shexp.weight", (g.H, g.Is)
    yield "ffn_up_shexp.weight", (g.H, g.Is)
    yield "ffn_down_shexp.weight", (g.Is, g.H)


def _ngrams(g: Geometry) -> Rows:
    streams, gathered = g.N * g.H, g.width * (g.n - 1) * g.hp
    yield "ple_key.weight", (gathered, streams)
    yield "ple_value.weight", (gathered, g.H)
    yield "ple_norm_key.weight", (streams,)
    yield "ple_norm_query.weight", (streams,)
    yield "ple_norm_conv.weight", (streams,)
    yield "ple_conv1d.weight", (g.kp, streams)


def check(facts: GgufFacts, tensors: Mapping[str, Tensor]) -> tuple[Geometry | None, list[Problem]]:
    """The geometry, and everything in which a set breaks the contract.

    Without a geometry (metadata missing or impossible) only the metadata is judged. Tensors are
    called missing only if all parts of the set could be read.
    """
    g, problems = geometry(facts.values, facts.file)
    if g is None:
        return None, problems
    wanted = expected(g)
    for name, dims in wanted.items():
        tensor = tensors.get(name)
        if tensor is not None:
            problems += _shape(tensor, dims)
        elif facts.complete and name not in facts.unsound:
            message = f"missing: expected dims {list(dims)} (innermost first)"
            problems.append(Problem("missing-tensor", message, name=name))
    for name, tensor in tensors.items():
        if name not in wanted:
            message = "unknown: the metadata demands no tensor of this name"
            problems.append(Problem("unknown-tensor", message, file=tensor.file, name=name))
    return g, [*problems, *_types(tensors), *gguf_indexer.type_problems(g, tensors)]


def _shape(tensor: Tensor, dims: Dims) -> list[Problem]:
    found = tensor.shape[::-1]
    if found == dims:
        return []
    at_least = tensor.name == TABLE
    if at_least and len(found) == 2 and found[0] == dims[0] and found[1] >= dims[1]:
        return []  # padded to a multiple that the metadata does not give
    message = f"dims (innermost first): found {list(found)}, expected {list(dims)}"
    message += ", or more rows" if at_least else ""
    return [Problem("misshapen-tensor", message, file=tensor.file, name=tensor.name)]


def _banks(tensors: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """The expert banks by the type that the published set gives them."""
    out: dict[str, list[Tensor]] = {GATE_UP: [], DOWN: []}
    for name, tensor in tensors.items():
        if name.endswith(("ffn_gate_exps.weight", "ffn_up_exps.weight")):
            out[GATE_UP].append(tensor)
        elif name.endswith("ffn_down_exps.weight"):
            out[DOWN].append(tensor)
    return out


def _types(tensors: Mapping[str, Tensor]) -> list[Problem]:
    """Banks of one kind have one type in all blocks; another than the published one is told."""
    problems = []
    for published, banks in _banks(tensors).items():
        counts = Counter(t.dtype for t in banks)
        if not counts:
            continue
        dtype = published if published in counts else counts.most_common(1)[0][0]
        for t in banks:
            if t.dtype != dtype:
                message = f"type: found {t.dtype}, expected {dtype} as in the other expert banks"
                problems.append(Problem("mixed-types", message, file=t.file, name=t.name))
        if dtype != published:
            message = f"expert banks like this have type {dtype}, in the published set {published}"
            problems.append(
                Problem("other-types", message, "warning", file=banks[0].file, name=banks[0].name)
            )
    return problems


def reasons(tensors: Mapping[str, Tensor]) -> list[Reason]:
    """Why the payload is not converted; there is always at least one."""
    out = []
    table = tensors.get(TABLE)
    if table is not None and table.dtype.startswith("GGUF:"):
        message = (
            f"the n-gram table '{TABLE}' is one embedding of type {table.dtype}, and no standard "
            "operator gathers rows of that type"
        )
        out.append(Reason("quantised-embedding", message))
    quantised = {
        t.dtype: None
        for banks in _banks(tensors).values()
        for t in banks
        if t.dtype.startswith("GGUF:")
    }
    if quantised:
        message = (
            f"the experts are banks of rank 3 of types {' and '.join(quantised)}: no operator runs "
            "a sparse mixture of experts of such formats, and nothing shows that one was executed"
        )
        out.append(Reason("quantised-experts", message))
    if table is not None and table.dtype.startswith("GGUF:"):
        nbytes = 2 * table.params
        where = "here"
        if nbytes <= MAX_DEQUANTISED:
            nbytes, where = PUBLISHED_TABLE, "in the published set"
        message = (
            "dequantising is refused: the n-gram table alone would have "
            f"{nbytes} bytes as BF16 {where}, more than the {MAX_DEQUANTISED} that a single "
            "dequantised tensor may have"
        )
        out.append(Reason("dequantised-size", message))
    message = (
        "no route from GGUF payloads is implemented: norms hold 1 + w, and the value heads of the "
        "delta net are regrouped; affine 4-bit matrices are no substitute for these types"
    )
    out.append(Reason("no-payload-route", message))
    return out
