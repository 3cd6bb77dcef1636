"""What the decoder's graph is made of: interface, operators, their types, and how it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.families.qwen4_exp.config import read_config
from ntool.lib.families.qwen4_exp.decoder import decoder, states
from ntool.lib.families.qwen4_exp.weights import renamed
from ntool.lib.graph.builder import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    INT64,
    MOVES,
    NARROW,
    OPSET,
    Graph,
)

from ...sparse_files import CENSUS, fp8_listing
from .decoder_cases import config_of
from .decoder_variants import SMALL, Names, config

FP8 = TensorProto.FLOAT8E4M3FN
TYPES = {"f32": FLOAT, "f16": FLOAT16, "bf16": BFLOAT16}
HOW: dict[str, dict[str, Any]] = {
    "dense": {},
    "fp8": {"fp8": True},
    "fp8-bf16": {"fp8": True, "reading": "bf16"},
    "rounded": {"rounded": True},
    "fused": {"route": "fused"},
}
Types = dict[str, tuple[int, tuple[int | str | None, ...]]]


def graph(values: dict[str, Any], dtype: int = FLOAT, **how: Any) -> Graph:
    return decoder(read_config(values).text, Names(), dtype, **{"text_only": True, **how})


def model(values: dict[str, Any], dtype: int = FLOAT, **how: Any) -> onnx.ModelProto:
    """The model, its parameters said to be in a file that does not exist."""
    m = onnx.ModelProto()
    m.ParseFromString(serialized(json.dumps(values), dtype, **how))
    return m


@cache
def serialized(values: str, dtype: int, **how: Any) -> bytes:
    return graph(json.loads(values), dtype, **how).model().SerializeToString()


def embedded(text_only: bool) -> dict[str, Any]:
    return {} if text_only else {"text_only": False}


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g


def walk(g: onnx.GraphProto, outer: Types | None = None) -> Iterator[tuple[onnx.NodeProto, Types]]:
    """Every node, those of bodies too, and the types of what it can see and makes."""
    types: Types = dict(outer or {})
    types |= {t.name: (t.data_type, tuple(t.dims)) for t in g.initializer}
    for v in (*g.input, *g.output, *g.value_info):
        dims = v.type.tensor_type.shape.dim
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims)
        types[v.name] = v.type.tensor_type.elem_type, shape
    for node in g.node:
        yield node, types
        for body in bodies(node):
            yield from walk(body, types)


def count(g: onnx.GraphProto) -> int:
    return sum(1 for _ in walk(g))


def expert_scans(m: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.GraphProto]]:
    """Nodes that walk over experts, with their bodies."""
    scans = [n for n in m.graph.node if n.op_type == "Scan" and ".mlp.experts." in n.name]
    return [(n, next(bodies(n))) for n in scans]


# --- validity (Q25, Q45) --------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("text_only", [True, False], ids=["ids", "embeddings"])
def test_checker_and_strict_inference(how: str, dtype: str, text_only: bool) -> None:
    """Q45."""
    m = model(SMALL, TYPES[dtype], **embedded(text_only), **HOW[how])
    inline(m)
    onnx.checker.check_model(m, full_check=True)
    onnx.shape_inference.infer_shapes(m, check_type=True, strict_mode=True, data_prop=True)


def inline(m: onnx.ModelProto) -> None:
    """Parameters without a file: zeros of their sizes."""
    for t in m.graph.initializer:
        if t.external_data:
            del t.external_data[:]
            t.data_location = TensorProto.DEFAULT
            size = np.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
            t.raw_data = bytes(int(size))


@pytest.mark.parametrize("name", ["text", "image-text", "text-half", "text-fp8"])
@pytest.mark.parametrize("dtype", TYPES)
def test_standard_operators_alone(name: str, dtype: str) -> None:
    """Q25, on what the builder makes."""
    m = model(config_of(name), TYPES[dtype], fp8=name == "text-fp8", text_only=name != "image-text")
    assert [(o.domain, o.version) for o in m.opset_import] == [("", OPSET)]
    assert not m.functions
    known = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    for node, _ in walk(m.graph):
        assert node.domain == "" and node.op_type in known
        schema = onnx.defs.get_schema(node.op_type, OPSET, "")
        assert not schema.deprecated


def test_the_fused_route_has_one_operator_of_another_domain() -> None:
    m = model(SMALL, route="fused")
    others = [(n.domain, n.op_type) for n, _ in walk(m.graph) if n.domain]
    assert others == [("com.microsoft", "MoE")] * SMALL["num_hidden_layers"]
    assert {o.domain for o in m.opset_import} == {"", "com.microsoft"}
    assert not expert_scans(m)
    kept = model(SMALL, route="fused", fp8=True)  # FP8 banks stay as they are, so not fused
    assert not [n for n, _ in walk(kept.graph) if n.domain]


# --- the experts (Q16 to Q22) ---------------------------------------------------------------------


@pytest.mark.parametrize("fp8", [False, True], ids=["dense", "fp8"])
@pytest.mark.parametrize("dtype", TYPES)
def test_nodes_do_not_grow_with_experts(fp8: bool, dtype: str) -> None:
    """Q22: the same number for 2 and for 512, counted in bodies too."""
    few, many = (
        model(config(num_experts=E, num_experts_per_tok=2), TYPES[dtype], fp8=fp8).graph
        for E in (2, 512)
    )
    assert count(few) == count(many) > len(few.node)
    assert [n.op_type for n, _ in walk(few)] == [n.op_type for n, _ in walk(many)]
    assert len(few.initializer) == len(many.initializer)


@pytest.mark.parametrize("how", ["dense", "fp8", "fp8-bf16"])
@pytest.mark.parametrize("dtype", TYPES)
def test_one_scan_over_experts(how: str, dtype: str) -> None:
    """Q17, Q18, Q19 (its matrices are views of the banks, not copies that a Gather makes), Q20 to
    Q22: it carries the accumulator [rows, H] in T alone and has no scan
    outputs; an If skips experts without rows; exactly two products, in T."""
    T, H = TYPES[dtype], SMALL["hidden_size"]
    m = model(SMALL, T, **HOW[how])
    scans = expert_scans(m)
    assert len(scans) == SMALL["num_hidden_layers"]
    for node, body in scans:
        assert len(node.output) == len(body.output) == 1
        (scanned,) = (a.i for a in node.attribute if a.name == "num_scan_inputs")
        assert len(body.input) - scanned == 1
        kinds = [v.type.tensor_type for v in (body.input[0], body.output[0])]
        for kind in kinds:
            dims = [d.dim_value or d.dim_param for d in kind.shape.dim]
            assert (kind.elem_type, dims) == (T, ["rows", H])
        assert not any(a.name.endswith("directions") for a in node.attribute)  # ascending
        inside = list(walk(body))
        ops = [n.op_type for n, _ in inside]
        assert ops.count("MatMul") == 2
        assert not {"Gemm", "Einsum", "Scan", "Loop"} & set(ops)
        assert all(t[n.input[0]][0] == T for n, t in inside if n.op_type == "MatMul")
        # Q20: gate / (1 + exp(-gate)) in float32, not by the sigmoid
        assert {"Exp", "Div"} <= set(ops) and "Sigmoid" not in ops
        (quotient,) = ((n, t) for n, t in inside if n.op_type == "Div")
        assert {quotient[1][i][0] for i in quotient[0].input} == {FLOAT}
        outer = [n.op_type for n in body.node]
        assert outer.count("If") == outer.count("NonZero") == 1 and "MatMul" not in outer
        (choice,) = (n for n in body.node if n.op_type == "If")
        branch = {a.name: a.g for a in choice.attribute}
        assert [n.op_type for n in branch["else_branch"].node if n.op_type != "Identity"] == []
        assert "MatMul" in {n.op_type for n in branch["then_branch"].node}
        (adding,) = (n for n in branch["then_branch"].node if n.op_type == "ScatterND")
        assert not adding.attribute, "rows are replaced, not added to"


@pytest.mark.parametrize("dtype", TYPES)
def test_top_k_takes_float32_and_a_k_of_one_element(dtype: str) -> None:
    """Q16, and the same for the choice of blocks."""
    m = model(SMALL, TYPES[dtype])
    found = [(n, t) for n, t in walk(m.graph) if n.op_type == "TopK"]
    values = {t.name: t for t in m.graph.initializer}
    k = []
    for node, types in found:
        assert types[node.input[0]][0] == FLOAT
        assert (values[node.input[1]].data_type, list(values[node.input[1]].dims)) == (INT64, [1])
        k.append(int(numpy_helper.to_array(values[node.input[1]])[0]))
    blocks = SMALL["indexer_budget"] // SMALL["indexer_compress_ratio"]
    wanted = {"mlp": SMALL["num_experts_per_tok"], "indexer": blocks}
    assert len(k) == SMALL["num_hidden_layers"] + 1
    for (node, _), size in zip(found, k, strict=True):
        assert size == wanted["indexer" if ".indexer." in node.name else "mlp"]


@pytest.mark.parametrize("how", ["dense", "fp8"])
def test_no_value_holds_all_experts_of_a_token(how: str) -> None:
    """Q22: neither [tokens, k, H, I] nor [tokens, E, I]; sizes that occur nowhere else tell."""
    E, k, H, I = 11, 5, 26, 19  # noqa: E741 (the symbol of the equations)
    values = config(
        num_experts=E, num_experts_per_tok=k, moe_intermediate_size=I, hidden_size=H,
        ple_embed_dim=12,
    )  # fmt: skip
    m = model(values, **HOW[how])
    inline(m)
    m = onnx.shape_inference.infer_shapes(m, strict_mode=True, data_prop=True)
    made = {o: t[o][1] for n, t in walk(m.graph) for o in n.output}
    assert {d for s in made.values() for d in s} >= {E, I, 2 * I, H, "rows"}
    for name, shape in made.items():
        widths = {I, 2 * I} & set(shape)
        assert not (widths and {E, k} & set(shape)), (name, shape)
        assert not (widths and len(shape) > 2), (name, shape)


def test_fp8_banks_are_parameters_that_only_the_scan_reads() -> None:
    """No node unpacks or copies a bank as a whole."""
    m = model(SMALL, fp8=True)
    codes = {t.name for t in m.graph.initializer if t.data_type == FP8}
    banks = {n for n in codes if ".experts." in n}
    assert len(banks) == 2 * SMALL["num_hidden_layers"]
    readers = [(n.op_type, i) for n, _ in walk(m.graph) for i in n.input if i in banks]
    assert sorted(readers) == sorted(("Scan", b) for b in banks)
    scans = {b: n for n, _ in expert_scans(m) for b in n.input if b.endswith("_scale_inv")}
    assert {s.removesuffix("_scale_inv") for s in scans} == banks


# --- types of operators (Q11, Q13) ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("how", HOW)
def test_means_norms_and_comparisons_are_not_in_16_bits(dtype: str, how: str) -> None:
    """Q11: no ReduceMean in T; Q13: nothing is compared in T; softmax, norms in float32."""
    m = model(SMALL, TYPES[dtype], **HOW[how])
    wide = {
        *("ReduceMean", "ReduceSum", "Softmax", "RMSNormalization", "TopK", "CumSum", "Exp"),
        *("ReduceSumSquare", "Softplus", "Where", "Equal", "Less", "Greater", "LessOrEqual"),
        *("GreaterOrEqual",),
    }
    seen = set()
    for node, types in walk(m.graph):
        if node.op_type in wide:
            seen.add(node.op_type)
            kinds = {types[i][0] for i in node.input if i}
            assert not kinds & set(NARROW), (node.name, kinds)
    assert {"ReduceMean", "Softmax", "RMSNormalization", "Equal"} <= seen


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounded_arithmetic_has_16_bits_nowhere_but_in_moves(dtype: str) -> None:
    def narrow(m: onnx.ModelProto) -> set[str]:
        return {
            n.op_type for n, t in walk(m.graph)
            if n.op_type not in MOVES and {t[i][0] for i in n.input if i} & set(NARROW)
        }  # fmt: skip

    assert narrow(model(SMALL, TYPES[dtype])) >= {"MatMul", "Gemm", "Mul", "Add", "Sigmoid"}
    assert narrow(model(SMALL, TYPES[dtype], rounded=True)) == set()
    f32 = [n.op_type for n, _ in walk(model(SMALL).graph)]
    assert [n.op_type for n, _ in walk(model(SMALL, rounded=True).graph)] == f32


# --- FP8 shards of the n-gram table (Q46) ---------------------------------------------------------


def test_one_dense_shard_at_a_time() -> None:
    """Q46: each shard's DequantizeLinear depends on the gather from the one before."""
    g = model(SMALL, fp8=True).graph
    maker = {o: n for n in g.node for o in n.output}
    users: dict[str, list[onnx.NodeProto]] = {}
    for n in g.node:
        for i in n.input:
            users.setdefault(i, []).append(n)

    def ancestors(node: onnx.NodeProto) -> set[str]:
        seen: set[str] = set()
        pending = list(node.input)
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += maker[name].input if name in maker else []
        return seen

    table = "model.layers.0.ple.ple_embedding.ngram_embedding"
    dense = [n for n in g.node if n.op_type == "DequantizeLinear" and table in n.input[0]]
    parts = SMALL["split_ngram_parts"]
    assert [n.input[0] for n in dense] == [f"{table}.shard_{j}.weight" for j in range(parts)]
    gathers = []
    for n in dense:
        (gather,) = users[n.output[0]]  # token-sized from here on
        assert (gather.op_type, gather.input[0]) == ("Gather", n.output[0])
        gathers.append(gather)
    assert "input_ids" in ancestors(dense[0]), "not a constant that is folded at load"
    for before, after in zip(gathers, dense[1:], strict=False):
        assert before.output[0] in ancestors(after)
    assert not any(t.name == f"{table}.weight" for t in g.initializer)


# --- interface (Q32) ------------------------------------------------------------------------------

B, S, P, ALL = "batch", "sequence", "past_sequence", "total_sequence"
I64 = "INT64"


def interface(T: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Names, types and shapes of SMALL's state, spelled out: inputs and outputs."""
    delta = {"conv_state": (T, [B, 56, 4]), "recurrent_state": ("FLOAT", [B, 4, 8, 6])}
    ngram = {"ple_conv_state": (T, [B, 96, 9]), "ple_context": (I64, [B, 2])}

    def sparse(length: str) -> dict[str, Any]:
        return {
            "key": (T, [B, 2, length, 16]), "value": (T, [B, 2, length, 16]),
            "index_key": (T, [B, length, 12]),
        }  # fmt: skip

    def named(start: str, length: str) -> dict[str, Any]:
        layers = [{**delta, **ngram}, sparse(length), delta]
        return {f"{start}.{i}.{r}": v for i, of in enumerate(layers) for r, v in of.items()}

    inputs = {
        "attention_mask": (I64, [B, ALL]), "position_ids": (I64, [4, B, S]),
        "past_position_ids": (I64, [4, B, P]), **named("past_key_values", P),
    }  # fmt: skip
    outputs = {
        "logits": (T, [B, S, 61]), "present_position_ids": (I64, [4, B, ALL]),
        **named("present", ALL),
    }  # fmt: skip
    return inputs, outputs


def ports(values: Any) -> dict[str, Any]:
    found = {}
    for v in values:
        kind = v.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim]
        found[v.name] = TensorProto.DataType.Name(kind.elem_type), dims
    return found


@pytest.mark.parametrize("text_only", [True, False], ids=["ids", "embeddings"])
@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("how", HOW)
def test_interface(dtype: str, text_only: bool, how: str) -> None:
    """Q32: names, shapes and types."""
    m = model(SMALL, TensorProto.DataType.Value(dtype), **embedded(text_only), **HOW[how])
    inputs, outputs = interface(dtype)
    tokens: dict[str, Any] = {"input_ids": (I64, [B, S])}
    if not text_only:
        tokens = {"inputs_embeds": (dtype, [B, S, 24]), "ple_input_ids": (I64, [B, S])}
    assert ports(m.graph.input) == tokens | inputs
    assert ports(m.graph.output) == outputs


def test_states_tell_of_the_interface() -> None:
    c = read_config(SMALL).text
    inputs, outputs = interface("FLOAT")
    described = {s.input: s for s in states(c)}
    assert described.keys() == inputs.keys() - {"attention_mask", "position_ids"}
    assert {s.output for s in described.values()} == outputs.keys() - {"logits"}
    grows = {"position_ids": 2, "key": 2, "value": 2, "index_key": 1}
    kinds = {
        "position_ids": "positions", "key": "kv", "value": "kv", "index_key": "index",
        "conv_state": "conv", "ple_conv_state": "conv", "recurrent_state": "recurrent",
        "ple_context": "context",
    }  # fmt: skip
    for name, s in described.items():
        dtype, shape = inputs[name]
        assert list(s.shape) == shape
        assert dtype == ("FLOAT" if s.dtype is None else TensorProto.DataType.Name(s.dtype))
        assert (s.grows, s.kind) == (grows.get(s.role), kinds[s.role])
        assert s.initial == (7 if s.role == "ple_context" else 0)
        assert s.layer == (None if s.role == "position_ids" else int(name.split(".")[1]))


def test_parameters_are_called_as_in_a_checkpoint_of_text_alone() -> None:
    names = Names()
    decoder(read_config(SMALL).text, names, FLOAT, text_only=True)
    assert all(n.startswith("model.") or n == "lm_head.weight" for n in names.claims)
    assert "model.embed_tokens.weight" in names.claims
    names = Names()
    decoder(read_config(SMALL).text, names, FLOAT, text_only=False)
    assert "model.embed_tokens.weight" not in names.claims


# --- at the published size ------------------------------------------------------------------------


def test_the_published_decoder() -> None:
    """Every text tensor of the release is taken once, in its type and shape; only the hash buffers,
    which are derived, are not. 48 layers of 512 experts are 4 MB of graph."""
    values = json.loads((CENSUS / "fp8-full.config.json").read_text())
    c = read_config(values, text_only=True)
    names = Names()
    g = decoder(c.text, names, BFLOAT16, text_only=True, fp8=True)
    listing = {n: Tensor(n, d, tuple(s), "", 0, 0) for n, d, s, _ in fp8_listing()}
    rename = renamed(c, listing)
    taken = []
    for name, (shape, dtype) in names.claims.items():
        kind = {BFLOAT16: "BF16", FP8: "F8_E4M3"}[dtype]
        for stored, part in rename(name, shape)[0]:
            found = listing[stored]
            assert (found.dtype, found.shape or (1,)) == (kind, part or (1,)), stored
            taken.append(stored)
    others = ("mtp.", "model.visual.")
    text = {n for n in listing if not n.startswith(others)}
    assert len(taken) == len(set(taken)) == 148_652
    assert {n.rpartition(".")[2] for n in text - set(taken)} == {
        *("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"),
    }  # fmt: skip
    assert g.model().ByteSize() < 5_000_000
