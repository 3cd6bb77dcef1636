"""package.json, weight-loading-report.json and the metadata inside each graph.

No times, host names or absolute paths: two exports of one checkpoint are byte-identical. Seconds
and memory of a run are in the `summary` record of the command instead.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from onnx import TensorProto

from ..census import schema_hash
from ..checkpoint.onnx_types import type_name
from ..graph.builder import IR_VERSION, OPSET, Value
from . import layout
from .beside import tokenizer_names
from .bindings import DTYPES

if TYPE_CHECKING:
    from ..checkpoint.tensor import Checkpoint
    from .export import Component, Plan

NAMES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
}
NUMBERS = {name: number for number, name in DTYPES.items()}
"""safetensors name -> ONNX element type."""
FLOATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def package(plan: Plan) -> dict[str, Any]:
    """Content of package.json."""
    model = plan.model
    names = [c.name for c in plan.components]
    inputs = {v.name for c in plan.components for v in c.graph.inputs}
    workflow = model.workflow()
    workflow["edges"] = [
        _cast(e, plan)
        for e in workflow["edges"]
        if e["from"].split(".")[0] in names and e["to"].split(".")[0] in names
    ]
    workflow["tasks"] = {
        task: value for task, value in workflow["tasks"].items() if _needs(value) <= set(names)
    }
    if "inputs" in workflow:
        workflow["inputs"] = {
            what: [p for p in ports if p.split(".")[0] in names]
            for what, ports in workflow["inputs"].items()
        }
    tokenizer = bool(tokenizer_names(plan.checkpoint, plan.family))
    made = {
        "schema": layout.SCHEMA,
        "family": plan.family.NAME,
        "variant": model.variant(),
        "source": source(plan),
        "semantic_reference": plan.family.SEMANTIC_REFERENCE,
        "components": {c.name: component(c, plan) for c in plan.components},
        # of every component that reads it: a denoiser does without its decoder too
        "cache": [e for e in model.cache(cache_dtype(plan)) if e["input"] in inputs],
        "workflow": workflow,
        "special_tokens": plan.tokens,
        "defaults": model.defaults(),
        "processor": None if model.processor() is None else layout.PROCESSOR,
        "tokenizer": layout.TOKENIZER if tokenizer else None,
        "vocab_size": model.vocab_size,
        "sizes": model.sizes(),
    }
    if model.quantization is not None:
        made["quantization"] = model.quantization
    return made


def _cast(edge: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The edge, with the type that its values are cast to where the two components differ."""
    dtypes = {c.name: FLOATS[c.dtype] for c in plan.components}
    start, end = dtypes[edge["from"].split(".")[0]], dtypes[edge["to"].split(".")[0]]
    return edge if start == end else {**edge, "cast": end}


def _needs(task: dict[str, Any]) -> set[str]:
    """Components without which a task does not work; a chat works without pictures."""
    loop = task.get("loop", {})
    needed = {*task["once"], *loop.get("each_step", []), *loop.get("each_step_and_branch", [])}
    return needed if "img_cond" in task["prefixes"] else needed - {"vision_encoder"}


def source(plan: Plan) -> dict[str, Any]:
    """Where the weights come from."""
    return source_of(plan.checkpoint)


def source_of(c: Checkpoint) -> dict[str, Any]:
    """A checkpoint, as a package names it. A local folder is named by its last part: paths are
    nobody's business."""
    local = not c.source.startswith(("demo:", "hf://")) and os.path.exists(c.source)
    return {
        "uri": os.path.basename(os.path.realpath(c.source)) if local else c.source,
        "requested_revision": c.requested_revision or "unpinned",
        "resolved_revision": c.revision,
        "config_hash": c.config_hash,
        "index_hash": c.index_hash,
        "schema_hash": schema_hash(c.tensors.values()),
    }


def cache_dtype(plan: Plan) -> str:
    """Element type of the key/value cache: the decoder's, else that of its reader."""
    by_name = {c.name: c for c in plan.components}
    c = by_name.get("decoder") or by_name.get("image_gen_denoiser")
    return FLOATS[c.dtype] if c else "float32"


def component(c: Component, plan: Plan) -> dict[str, Any]:
    """One entry of `components`."""
    kinds = stored_floats(c)
    entry: dict[str, Any] = {
        "graph": c.graph_file,
        "opset": OPSET,
        "ir_version": IR_VERSION,
        "execution_provider": plan.provider,
        "weight_dtype": kinds[0] if kinds else FLOATS[c.dtype],
        "compute_dtype": FLOATS[c.dtype],
        "inputs": [_port(v) for v in c.graph.inputs],
        "outputs": [_port(v) for v in c.graph.outputs],
        "data": [path for path, _ in c.data],
        "unsupported_token_ids": plan.model.unsupported_token_ids(c.name),
    }
    if len(kinds) > 1:
        entry["weight_dtypes"] = kinds
    if c.forced:
        entry["forced_f16"] = True
    if c.is_linked:
        entry["data_form"] = c.form
        entry["data_nbytes"] = c.nbytes
    return entry


def stored_floats(c: Component) -> list[str]:
    """Floating-point types of a component's weights; the one with most bytes first."""
    nbytes: dict[str, int] = {}
    for b in c.bindings.values():
        name = type_name(NUMBERS[b.dtype])
        if "float" in name:
            nbytes[name] = nbytes.get(name, 0) + b.nbytes
    return sorted(nbytes, key=lambda n: (-nbytes[n], n))


def _port(v: Value) -> dict[str, Any]:
    return {"name": v.name, "dtype": NAMES[v.dtype], "shape": list(v.shape)}


def graph_metadata(plan: Plan, c: Component) -> dict[str, str]:
    """`ntool.*` properties that let a lone .onnx explain itself."""
    s = source(plan)
    return {
        "ntool.schema": layout.SCHEMA,
        "ntool.family": plan.family.NAME,
        "ntool.component": c.name,
        "ntool.variant": "/".join(plan.model.variant().values()),
        "ntool.weight_dtype": FLOATS[c.dtype],
        "ntool.source": s["uri"],
        "ntool.source_revision": s["resolved_revision"] or "",
        "ntool.source_schema_hash": s["schema_hash"],
        **plan.model.metadata(c.name, FLOATS[c.dtype]),
    }


def weight_report(plan: Plan) -> dict[str, Any]:
    """Content of weight-loading-report.json: what became of every source tensor."""
    written = {c.name: c for c in plan.components}
    sources = plan.checkpoint.tensors
    targets: dict[str, list[dict[str, Any]]] = {}
    needed: dict[str, list[str]] = {}
    actions: dict[str, str] = {}
    for name, bound in plan.all_bindings.items():
        for b in bound.values():
            done = 0
            for tensor in b.sources:
                share, before = b.share(tensor), done
                done += share
                needed.setdefault(tensor.name, []).append(name)
                if name not in written:
                    continue
                placed = written[name].placed[b.name]
                entry = {
                    "component": name,
                    "name": b.name,
                    "dtype": b.dtype,
                    "file": written[name].data_file(placed.file),
                    "offset": placed.offset + before,
                    "nbytes": share,
                }
                if b.reason:
                    entry["renamed"] = b.reason
                tally = written[name].tallies.get(tensor.name)
                if tally is not None:
                    entry["range"] = tally.fields()
                targets.setdefault(tensor.name, []).append(entry)
                same = sources[tensor.name].dtype == b.dtype
                actions[tensor.name] = "copied" if same else "converted"
    rows = []
    for t in plan.checkpoint.tensors.values():
        row: dict[str, Any] = {
            "name": t.name,
            "action": actions.get(t.name, "excluded"),
            "targets": targets.get(t.name, []),
            "source": {"file": t.file, "offset": t.offset, "nbytes": t.nbytes, "dtype": t.dtype},
        }
        if t.name not in needed:
            left = plan.model.left(t)
            assert left is not None, f"{t.name}: refused when the export was planned"
            row["action"], row["reason"] = left
        elif row["action"] == "excluded":
            row["reason"] = f"belongs to {', '.join(dict.fromkeys(needed[t.name]))}, not exported"
        rows.append(row)
    counts = Counter(r["action"] for r in rows)
    return {
        "schema": layout.REPORT_SCHEMA,
        "source": source(plan),
        "output_weight_format": "dense",
        "storage_preserving": counts["converted"] == 0,
        "native_fp8": False,
        "counts": {"source_tensors": len(rows), **dict(sorted(counts.items()))},
        "tensors": rows,
        "excluded_families": {},
        **plan.model.report(rows),
    }
