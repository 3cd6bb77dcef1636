"""A package of the family whose decoder is a few sums, so that its greedy tokens are known.

Its ports have names that no exporter gives, and its state has one tensor of each kind: a runner
that knows names, shapes or first values from anywhere but package.json fails on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ntool.lib.text.tokenizer import byte_symbols

V = 300
"""Ids; those from SIZE on have no text."""
START, END, SIZE = 256, 257, 258
"""Ids of the tokens of a turn; number of tokens of the tokenizer."""
FIRST = 5
"""Every value of the context before the first token."""
STATE = (
    # layer, role, kind, input, output, type, shape, grows, initial
    (None, "position_ids", "positions", "old.where", "where.new", "int64",
     [4, "batch", "past_sequence"], 2, 0),
    (0, "key", "kv", "k!", "K!", "float32", ["batch", 1, "past_sequence", 1], 2, 0),
    (0, "ple_context", "context", "before", "after", "int64", ["batch", 2], None, FIRST),
    (3, "recurrent_state", "recurrent", "sum", "sum'", "float32", ["batch", 1, 1, 1], None, 0),
)  # fmt: skip
WORDS, SEEN, PLACES = "words", "seen", "places"
"""Ports of ids, mask and positions."""


def next_id(ids: Sequence[int]) -> int:
    """The greedy token after a row: what the graph below says."""
    ids = [int(i) for i in ids]
    context = ([FIRST, FIRST, *ids])[-3]  # two ids back
    number = 3 * ids[-1] + len(ids) + 7 * (len(ids) - 1) + 2 * sum(ids) + 11 * context
    return number % V


def greedy(ids: Sequence[int], count: int, stop: Iterable[int] = ()) -> list[int]:
    """Tokens after a row, up to a stop token."""
    row, found = list(ids), []
    for _ in range(count):
        found.append(next_id(row))
        row.append(found[-1])
        if found[-1] in stop:
            break
    return found


def write(
    folder: Path,
    *,
    tokenizer: bool = True,
    stop: Sequence[int] = (END,),
    best: float = 1.0,
    changes: dict[str, Any] | None = None,
) -> Path:
    """The package in a folder.

    Args:
        best: the logit of the greedy token, where the others are 0.
        changes: entries of package.json in place of the usual ones.
    """
    (folder / "decoder").mkdir(parents=True)
    model = _model(best)
    onnx.save(model, folder / "decoder" / "model.onnx")
    if tokenizer:
        write_tokenizer(folder / "tokenizer")
    manifest = {**_manifest(model, stop), "tokenizer": "tokenizer" if tokenizer else None}
    (folder / "package.json").write_text(json.dumps({**manifest, **(changes or {})}))
    return folder


def write_tokenizer(folder: Path) -> None:
    """A token for each byte, and those of a turn."""
    folder.mkdir()
    symbols = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    (folder / "vocab.json").write_text(json.dumps(symbols))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    added = {
        str(i): {"content": text, "special": True}
        for i, text in ((START, "<|im_start|>"), (END, "<|im_end|>"))
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


def _manifest(model: onnx.ModelProto, stop: Sequence[int]) -> dict[str, Any]:
    keys = ("layer", "role", "kind", "input", "output", "dtype", "shape", "grows", "initial")
    sizes = ("H", "L", "nh", "nkv", "D", "gk", "gv", "dk", "dv", "K", "E", "k", "I", "Is", "N")
    positions = dict.fromkeys(("image_token_id", "vision_start_token_id", "vision_end_token_id"))
    return {
        "schema": "ntool-package/1",
        "family": "qwen4_exp",
        "variant": {},
        "source": {
            "uri": "fake", "requested_revision": "unpinned", "resolved_revision": None,
            "config_hash": None, "index_hash": None, "schema_hash": "0" * 64,
        },
        "semantic_reference": {"repository": "none", "revision": None},
        "components": {
            "decoder": {
                "graph": "decoder/model.onnx", "opset": 23, "ir_version": 11,
                "execution_provider": "default", "weight_dtype": "float32",
                "compute_dtype": "float32", "inputs": _ports(model.graph.input),
                "outputs": _ports(model.graph.output), "data": [], "unsupported_token_ids": [],
            }
        },
        "cache": [dict(zip(keys, s, strict=True)) for s in STATE],
        "workflow": {
            "edges": [],
            "inputs": {
                "token_ids": [f"decoder.{WORDS}"], "attention_mask": [f"decoder.{SEEN}"],
                "position_ids": [f"decoder.{PLACES}"],
            },
            "positions": {
                "rule": "mrope", "channels": 4, "merge_size": 2, "video": False, **positions
            },
            "tasks": {
                "chat": {
                    "prefixes": {"cond": "chat"}, "once": ["decoder"],
                    "decode": {"each_token": ["decoder"], "stop_token_ids": list(stop)},
                }
            },
        },
        "special_tokens": {}, "defaults": {"chat": {}}, "processor": None, "vocab_size": V,
        "sizes": dict.fromkeys(sizes, 1),
    }  # fmt: skip


def _ports(values: Iterable[onnx.ValueInfoProto]) -> list[dict[str, Any]]:
    names = {TensorProto.FLOAT: "float32", TensorProto.INT64: "int64"}
    return [
        {
            "name": v.name,
            "dtype": names[v.type.tensor_type.elem_type],
            "shape": [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim],
        }
        for v in values
    ]


def _model(best: float = 1.0) -> onnx.ModelProto:
    """number[b, s] = 3 id + tokens so far + 7 height + sum of keys + sum of ids + 11 id two back.

    Logits are 1 at number mod V. The sums run over real tokens of the whole row, so only the last
    number of a call has a meaning.
    """
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, onnx.TensorProto] = {}

    def constant(value: Any) -> str:
        array = np.array(value, np.int64)
        name = f"c{array.tolist()}"
        constants[name] = numpy_helper.from_array(array, name)
        return name

    def op(kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        name = name or f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def cast(value: str, to: int = TensorProto.FLOAT) -> str:
        return op("Cast", value, to=to)

    def last(value: str, count: str) -> str:
        return op("Slice", value, op("Neg", count), constant([2**62]), constant([1]))

    length = op("Shape", WORDS, start=1, end=2)
    mask = last(SEEN, length)  # [B, S]
    ids = op("Where", op("Greater", mask, constant(0)), WORDS, constant(FIRST))
    context = op("Concat", "before", ids, axis=1)  # [B, 2 + S]
    op("Slice", context, constant([-2]), constant([2**62]), constant([1]), name="after")
    earlier = op("Slice", context, constant([0]), constant([-2]), constant([1]))  # [B, S]
    column = op("Unsqueeze", op("Unsqueeze", cast(WORDS), constant([1])), constant([3]))
    op("Concat", "k!", column, axis=2, name="K!")  # [B, 1, P + S, 1]
    keys = op("Mul", op("Squeeze", "K!", constant([1, 3])), cast(SEEN))
    keys = op("ReduceSum", keys, constant([1]), keepdims=1)  # [B, 1]
    own = op("ReduceSum", op("Mul", WORDS, mask), constant([1]), keepdims=1)
    own = op("Unsqueeze", op("Unsqueeze", cast(own), constant([2])), constant([3]))
    op("Add", "sum", own, name="sum'")  # [B, 1, 1, 1]
    sums = op("Squeeze", "sum'", constant([2, 3]))
    op("Concat", "old.where", PLACES, axis=2, name="where.new")
    height = op("Gather", PLACES, constant(2), axis=0)  # [B, S]
    count = op("ReduceSum", SEEN, constant([1]), keepdims=1)
    number = op("Add", op("Mul", WORDS, constant(3)), op("Mul", height, constant(7)))
    number = op("Add", op("Add", number, count), op("Mul", earlier, constant(11)))
    number = op("Add", number, cast(op("Add", keys, sums), TensorProto.INT64))
    number = op("Mod", number, constant(V))
    values = numpy_helper.from_array(np.array([0, best], np.float32), "off_on")
    op("OneHot", number, constant([V]), "off_on", axis=-1, name="logits")

    types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    inputs = [
        helper.make_tensor_value_info(WORDS, TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info(SEEN, TensorProto.INT64, ["batch", "total_sequence"]),
        helper.make_tensor_value_info(PLACES, TensorProto.INT64, [4, "batch", "sequence"]),
    ]
    outputs = [helper.make_tensor_value_info("logits", types["float32"], ["batch", "sequence", V])]
    for _, _, _, before, after, dtype, shape, _, _ in STATE:
        grown = ["total_sequence" if d == "past_sequence" else d for d in shape]
        inputs.append(helper.make_tensor_value_info(before, types[dtype], shape))
        outputs.append(helper.make_tensor_value_info(after, types[dtype], grown))
    graph = helper.make_graph(nodes, "fake", inputs, outputs, [*constants.values(), values])
    opset = [helper.make_opsetid("", 23)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    return model
