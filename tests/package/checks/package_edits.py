"""Edits of the JSON files of a good package, each with the id that it is caught by, and no other.

The graphs stay, so nothing needs to run.
"""

from __future__ import annotations

from typing import Any

GONE = object()
P, R, C = "package.json", "weight-loading-report.json", "processor.json"
SCHEMA, FILES, NAMES = "layout.schema", "layout.files", "graph.names"
COMPLETE, POLICY, PORTS, TOKENS = "weights.complete", "dtype.policy", "flow.ports", "flow.tokens"
EDITS: list[tuple[str, str, Any, str]] = [
    (P, "schema", "ntool-package/2", SCHEMA),
    (P, "family", "qwen4_exp", SCHEMA),
    (P, "family", None, SCHEMA),
    (P, "variant", GONE, SCHEMA),
    (P, "variant/backbone", "moe", NAMES),
    (P, "variant/head", "mlp", NAMES),
    (P, "vocab_size", 895, TOKENS),
    (P, "vocab_size", 896.5, SCHEMA),
    (P, "source/config_hash", "0" * 64, COMPLETE),
    (P, "source/schema_hash", "2" * 64, COMPLETE),
    (P, "source/resolved_revision", "main", COMPLETE),
    (P, "source/uri", 5, SCHEMA),
    (P, "components/decoder/graph", "../x.onnx", FILES),
    (P, "components/decoder/graph", "decoder/other.onnx", FILES),
    (P, "components/decoder/data", ["decoder/model.safetensors"] * 2, SCHEMA),
    (P, "components/decoder/opset", 22, NAMES),
    (P, "components/decoder/ir_version", 10, NAMES),
    (P, "components/decoder/execution_provider", "tpu", SCHEMA),
    (P, "components/decoder/weight_dtype", "float16", POLICY),
    (P, "components/decoder/weight_dtype", "int3", POLICY),
    (P, "components/decoder/compute_dtype", "bfloat16", POLICY),
    (P, "components/image_gen_denoiser/compute_dtype", "float16", POLICY),
    (P, "components/image_gen_denoiser/weight_dtype", "float16", POLICY),
    (P, "components/decoder/unsupported_token_ids", [5], TOKENS),
    (P, "components/decoder/unsupported_token_ids", [-1], SCHEMA),
    (P, "components/decoder/inputs/0/dtype", "float16", NAMES),
    (P, "components/decoder/inputs/0/shape", ["batch", "sequence", 161], NAMES),
    (P, "components/decoder/outputs/1/name", "present.0.k", NAMES),
    (P, "cache", [], NAMES),
    (P, "cache/0", GONE, NAMES),
    (P, "cache/0/layer", 7, PORTS),
    (P, "cache/0/role", "value", PORTS),
    (P, "cache/0/kind", "conv", SCHEMA),
    (P, "cache/0/grows", 1, NAMES),
    (P, "cache/0/initial", "zeros", SCHEMA),
    (P, "workflow/edges", [], PORTS),
    (P, "workflow/edges/0/from", "vision_encoder.nothing", PORTS),
    (P, "workflow/edges/0/to", "embedding.input_ids", PORTS),
    (P, "workflow/edges/1/cast", "float16", PORTS),
    (P, "workflow/edges/1/dims", {"sequence": "x"}, PORTS),
    (P, "workflow/positions/rule", "none", SCHEMA),
    (P, "workflow/positions/context_token", "<think>", SCHEMA),
    (P, "workflow/positions/token_pixels", 16, SCHEMA),
    (P, "workflow/noise_scale/scale", -1, SCHEMA),
    (P, "workflow/tasks/chat/once", ["nobody"], PORTS),
    (P, "workflow/tasks/chat/decode/stop_token", "<nope>", TOKENS),
    (P, "workflow/tasks/chat/decode/stop_token", "<img>", TOKENS),
    (P, "workflow/tasks/interleave/decode/picture_token", "</img>", TOKENS),
    (P, "workflow/tasks/text-to-image/loop/velocity", "x0", PORTS),
    (P, "workflow/tasks/text-to-image/loop/each_step", ["decoder"], PORTS),
    (P, "workflow/tasks/text-to-image/prefixes/uncond", "chat", PORTS),
    (P, "workflow/tasks/text-to-image/guidance/0/v", "cond", PORTS),
    (P, "workflow/tasks/text-to-image/guidance", [], SCHEMA),
    (P, "workflow/tasks/paint", {"once": ["decoder"], "prefixes": {}}, PORTS),
    (P, "special_tokens/<|im_end|>", 856, TOKENS),
    (P, "special_tokens/<nope>", 5, TOKENS),
    (P, "special_tokens/<img>", "882", SCHEMA),
    (P, "defaults/text-to-image/steps", 0, SCHEMA),
    (P, "defaults/text-to-image/cfg_norm", "odd", SCHEMA),
    (P, "defaults/text-to-image/seed", -1, SCHEMA),
    (P, "defaults/chat/max_new_tokens", 0, SCHEMA),
    (P, "processor", "processor2.json", FILES),
    (P, "kind", "weights", SCHEMA),
    (C, "patch_size", 8, SCHEMA),
    (C, "mean", [0.5, 0.5, 0.5], SCHEMA),
    (C, "rescale", 1, SCHEMA),
    (C, "resize/resample", "nearest", SCHEMA),
    (C, "resize/rule", "crop", SCHEMA),
    (C, "limits/chat/min_pixels", 10**9, SCHEMA),
    (C, "color/mode", "BGR", SCHEMA),
    (C, "row_order", "row, column, channel", SCHEMA),
    (R, "counts", {}, COMPLETE),
    (R, "tensors", [], COMPLETE),
    (R, "tensors/0", GONE, COMPLETE),
    (R, "tensors/0/action", "dropped", COMPLETE),
    (R, "tensors/0/targets", [], COMPLETE),
    (R, "tensors/0/source/nbytes", 3, COMPLETE),
    (R, "tensors/0/source/offset", -1, COMPLETE),
    (R, "tensors/0/targets/0/offset", 0, COMPLETE),
    (R, "output_weight_format", "fp8_qdq", COMPLETE),
    ("tokenizer/vocab.json", "the", 3, TOKENS),
    ("tokenizer/tokenizer_config.json", "added_tokens_decoder/857/content", "<|end|>", TOKENS),
    ("tokenizer/tokenizer_config.json", "tokenizer_class", "LlamaTokenizer", TOKENS),
]  # fmt: skip


def put(value: Any, path: str, new: Any) -> None:
    """Set what stands at a path of a JSON value, or remove it."""
    *folders, last = path.split("/")
    for key in folders:
        value = value[int(key)] if isinstance(value, list) else value[key]
    place: Any = int(last) if isinstance(value, list) else last
    if new is GONE:
        del value[place]
    else:
        value[place] = new
