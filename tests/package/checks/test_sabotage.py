"""Sabotage of good packages, and the ids that it is caught by: these, and no others.

A table of edits of the JSON files (the graphs stay, so nothing needs to run), and faults of files,
graphs and weights of a package of each family. Faults of single rules are in test_seeded_faults.py.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from package_faults import (
    FLOAT,
    FLOAT16,
    edit_graph,
    edit_json,
    false_ids,
    findings,
    initializer,
    insert,
    set_external,
    stated,
)

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import export, sums
from ntool.lib.package.checks.parse import Reading, read_model

DATA = Path(__file__).parents[2] / "data"
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


def replace(path: Path, raw: bytes) -> None:
    """Give a file other bytes; other names of the old ones keep them."""
    path.unlink(missing_ok=True)
    path.write_bytes(raw)


@pytest.fixture(scope="module")
def linkable(good_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that others may share files with: other tests count its names."""
    out = tmp_path_factory.mktemp("linkable") / "pkg"
    shutil.copytree(good_package, out)
    return out


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """Graphs of equal bytes are parsed once: the edits leave them alone."""
    known: dict[tuple[str, bytes], Reading] = {}

    def read(path: str, file: str) -> Reading:
        key = (file, Path(path).read_bytes())
        if key not in known:
            known[key] = read_model(path, file)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ntool.lib.package.checks.parse.read_model", read)
        yield


EDITED = (
    *("layout.*", "graph.parse", "graph.names", "data.path", "data.bounds", "weights.complete"),
    *("dtype.policy", "flow.*"),
)
"""Checks that read the JSON files; the others are about graphs and bytes alone."""


@pytest.mark.parametrize(
    ("file", "path", "value", "id"), EDITS, ids=[f"{e[0]}:{e[1]}={e[2]!r:.20}" for e in EDITS]
)
def test_an_edit_is_caught_by(
    file: str, path: str, value: Any, id: str, linkable: Path, tmp_path: Path, read_once: None
) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(linkable, root, copy_function=os.link)
    content = json.loads((root / file).read_text())
    put(content, path, value)
    replace(root / file, json.dumps(content).encode())
    found = findings(root, check=EDITED)
    assert false_ids(found) == [id], [f for _, f in found if f.ok is False]


# -- a package of qwen4_exp, and faults of both ---------------------------------------------------

TEXT = DATA / "qwen4-exp" / "text"
Sabotage = Callable[[Path], None]
TABLE: dict[str, tuple[str, Sabotage, list[str], dict[str, Any]]] = {}
AGAINST = {"neo": "demo:shapes", "qwen": str(TEXT)}


@pytest.fixture(scope="module")
def good(linkable: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good package of each family."""
    out = tmp_path_factory.mktemp("qwen") / "pkg"
    export.write(export.plan(open_checkpoint(str(TEXT))), out)
    return {"neo": linkable, "qwen": out}


def sabotage(family: str, *ids: str, **options: Any) -> Callable[[Sabotage], Sabotage]:
    """Add a row to the table."""

    def register(change: Sabotage) -> Sabotage:
        TABLE[f"{family}:{change.__name__}"] = (family, change, list(ids), options)
        return change

    return register


def weights_of(root: Path, component: str) -> list[tuple[onnx.TensorProto, int, int]]:
    """(tensor, offset, bytes) of the external tensors of a component."""
    model = onnx.load(root / component / "model.onnx", load_external_data=False)
    rows = []
    for t in model.graph.initializer:
        if t.external_data:
            found = {e.key: e.value for e in t.external_data}
            rows.append((t, int(found["offset"]), int(found["length"])))
    return rows


def two_of_a_shape(root: Path) -> list[tuple[onnx.TensorProto, int, int]]:
    """Two matrices of the decoder that have one shape."""
    shapes: dict[tuple[int, ...], list[tuple[onnx.TensorProto, int, int]]] = {}
    for row in weights_of(root, "decoder"):
        shapes.setdefault(tuple(row[0].dims), []).append(row)
    return next(rows[:2] for shape, rows in shapes.items() if len(rows) > 1 and len(shape) > 1)


def swap(root: Path) -> None:
    """Exchange the bytes of two weights of one shape."""
    (_, a, n), (_, b, _) = two_of_a_shape(root)
    path = root / "decoder" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[a : a + n], raw[b : b + n] = raw[b : b + n], raw[a : a + n]
    replace(path, bytes(raw))


def flip(root: Path) -> None:
    """Flip the lowest bit of one byte of a weight."""
    _, at, n = weights_of(root, "decoder")[-1]
    path = root / "decoder" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[at + n // 2 // 4 * 4] ^= 1
    replace(path, bytes(raw))


for name in ("neo", "qwen"):
    for change in (swap, flip):
        TABLE[f"{name}:{change.__name__}"] = (
            name,
            change,
            ["weights.values"],
            {"against": AGAINST[name]},
        )


@sabotage("qwen", "data.hash")
def flipped_after_hashing(root: Path) -> None:
    sums.write(str(root))
    flip(root)


@sabotage("neo", "data.hash")
def swapped_after_hashing(root: Path) -> None:
    sums.write(str(root))
    swap(root)


@sabotage("qwen", "data.hash")
def a_line_of_the_sums_is_gone(root: Path) -> None:
    sums.write(str(root))
    lines = (root / sums.NAME).read_text().splitlines(keepends=True)
    replace(root / sums.NAME, "".join(lines[1:]).encode())


@sabotage("qwen", "data.hash")
def a_digit_of_the_sums(root: Path) -> None:
    sums.write(str(root))
    text = (root / sums.NAME).read_text()
    replace(root / sums.NAME, (("1" if text[0] == "0" else "0") + text[1:]).encode())


@sabotage("qwen", "data.hash")
def sums_of_no_file(root: Path) -> None:
    replace(root / sums.NAME, b"")


@sabotage("qwen", "layout.files")
def an_extra_file(root: Path) -> None:
    (root / "decoder" / "model.onnx.bak").write_bytes(b"x")


@sabotage("qwen", "layout.files")
def an_extra_folder_that_is_a_link(root: Path) -> None:
    (root / "more").symlink_to("/")


@sabotage("neo", "layout.files")
def a_file_name_in_capitals(root: Path) -> None:
    (root / "tokenizer" / "vocab.json").rename(root / "tokenizer" / "Vocab.json")


@sabotage("qwen", "layout.files")
def data_in_capitals(root: Path) -> None:
    (root / "decoder" / "model.safetensors").rename(root / "decoder" / "Model.safetensors")


@sabotage("qwen", "layout.files", "data.path")
def data_behind_a_link_that_leads_out(root: Path) -> None:
    data = root / "decoder" / "model.safetensors"
    shutil.move(data, root.parent / "elsewhere.safetensors")
    data.symlink_to(root.parent / "elsewhere.safetensors")


@sabotage("qwen", "layout.files")
def graph_behind_a_link_that_leads_out(root: Path) -> None:
    graph = root / "decoder" / "model.onnx"
    shutil.move(graph, root.parent / "elsewhere.onnx")
    graph.symlink_to(root.parent / "elsewhere.onnx")


@sabotage("neo", "data.hash")
def an_edited_template(root: Path) -> None:
    sums.write(str(root))
    with edit_json(root / "tokenizer" / "tokenizer_config.json") as c:
        c["chat_template"] = "{{ messages }}"


@sabotage("qwen", "data.bounds", "weights.complete")
def an_offset_by_one(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        first = min((t for t in m.graph.initializer if t.external_data), key=offset_of)
        set_external(first, offset=str(offset_of(first) + 1))


@sabotage("qwen", "data.bounds")
def a_length_by_one(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        first = next(t for t in m.graph.initializer if t.external_data)
        length = next(e.value for e in first.external_data if e.key == "length")
        set_external(first, length=str(int(length) - 1))


def offset_of(tensor: onnx.TensorProto) -> int:
    return next(int(e.value) for e in tensor.external_data if e.key == "offset")


@sabotage("qwen", "data.orphans")
def appended_bytes(root: Path) -> None:
    with open(root / "decoder" / "model.safetensors", "ab") as f:
        f.write(b"\0")


@sabotage("qwen", "data.bounds")
def data_cut_by_one_byte(root: Path) -> None:
    path = root / "decoder" / "model.safetensors"
    replace(path, path.read_bytes()[:-1])


@sabotage("qwen", "graph.parse")
def opset_999(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        m.opset_import[0].version = 999


@sabotage("qwen", "graph.parse")
def a_cut_graph(root: Path) -> None:
    path = root / "decoder" / "model.onnx"
    replace(path, path.read_bytes()[:-1000])


@sabotage("qwen", "graph.names", "flow.ports")
def a_cache_output_of_another_name(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        old = next(v.name for v in m.graph.output if v.name.endswith(".key"))
        rename(m, old, f"{old}s")


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for value in (*model.graph.output, *model.graph.value_info):
        value.name = new if value.name == old else value.name
    for node in model.graph.node:
        node.input[:] = [new if n == old else n for n in node.input]
        node.output[:] = [new if n == old else n for n in node.output]


@sabotage("neo", "graph.names")
def a_graph_of_another_component(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        next(p for p in m.metadata_props if p.key == "ntool.component").value = "image_gen_denoiser"


@sabotage("neo", "graph.standard")
def custom_domain_in_an_if_in_a_function(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["components"]["vision_encoder"]["execution_provider"] = "onnx-standard"
    shape = ["patches", 768]
    inner = {}
    for key, domain in (("then_branch", "com.microsoft"), ("else_branch", "")):
        node = helper.make_node("Gelu", ["a"], [key], f"hidden {key}", domain=domain)
        out = helper.make_tensor_value_info(key, FLOAT, shape)
        inner[key] = helper.make_graph([node], key, [], [out])
    true = numpy_helper.from_array(np.array(True), "")
    body = [
        helper.make_node("Constant", [], ["c"], "always", value=true),
        helper.make_node("If", ["c"], ["b"], "choice", **inner),
    ]
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    with edit_graph(root, "vision_encoder") as m:
        m.functions.append(helper.make_function("own", "Soft", ["a"], ["b"], body, imports))
        m.opset_import.extend(
            [helper.make_opsetid("own", 1), helper.make_opsetid("com.microsoft", 1)]
        )
        insert(m, "pixel_values", ("Soft", {"domain": "own"}))
        m.graph.value_info.append(helper.make_tensor_value_info("patched", FLOAT, shape))


@sabotage("neo", "dtype.policy")
def a_denoiser_in_half_precision(root: Path) -> None:
    with edit_graph(root, "image_gen_denoiser") as m:
        insert(m, "inputs_embeds", ("Cast", {"to": FLOAT16}), ("Cast", {"to": FLOAT}))


def bytes_of(root: Path, change: Callable[[np.ndarray], None]) -> None:
    """Change the numbers of a matrix of the decoder (float32)."""
    _, at, n = max(two_of_a_shape(root), key=lambda row: row[1])
    path = root / "decoder" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    values = np.frombuffer(bytes(raw[at : at + n]), np.float32).copy()
    change(values)
    raw[at : at + n] = values.tobytes()
    replace(path, bytes(raw))


@sabotage("qwen", "weights.sane")
def a_matrix_of_zeros(root: Path) -> None:
    bytes_of(root, lambda w: w.fill(0))


@sabotage("qwen", "weights.sane")
def one_infinity(root: Path) -> None:
    bytes_of(root, lambda w: w.__setitem__(-1, np.inf))


@sabotage("qwen", "weights.complete")
def an_initializer_of_no_source(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        t = next(t for t in m.graph.initializer if not t.external_data and t.metadata_props)
        del t.metadata_props[:]


@sabotage("qwen", "graph.dead")
def an_initializer_of_no_use(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        m.graph.initializer.append(stated("spare", np.zeros(3, np.int64)))


@sabotage("neo", "weights.complete", "flow.ports")
def the_decoder_is_gone(root: Path) -> None:
    shutil.rmtree(root / "decoder")
    with edit_json(root / "package.json") as p:
        del p["components"]["decoder"]


@sabotage("neo", "data.bounds")
def two_tensors_share_bytes(root: Path) -> None:
    rows = two_of_a_shape(root)
    with edit_graph(root, "decoder") as m:
        set_external(initializer(m, rows[0][0].name), offset=str(rows[1][1]))
    with edit_json(root / "weight-loading-report.json") as r:
        for t in (t for row in r["tensors"] for t in row["targets"]):
            if (t["component"], t["name"]) == ("decoder", rows[0][0].name):
                t["offset"] = rows[1][1]


SOME = ("layout.*", "graph.*", "data.*", "weights.*", "dtype.*", "flow.*")


@pytest.mark.parametrize("name", TABLE)
def test_sabotage_is_caught_by(name: str, good: dict[str, Path], tmp_path: Path) -> None:
    family, change, ids, options = TABLE[name]
    root = tmp_path / "pkg"
    shutil.copytree(good[family], root)
    change(root)
    found = findings(root, check=SOME, **options)
    assert sorted(false_ids(found)) == sorted(ids), [f for _, f in found if f.ok is False]


def test_the_table_is_long_enough() -> None:
    assert len(EDITS) + len(TABLE) > 100
    caught = {i for *_, i in EDITS} | {i for _, _, ids, _ in TABLE.values() for i in ids}
    assert len(caught) >= 15


# -- forms in which a good package comes -----------------------------------------------------------


def as_snapshot(package: Path, cache: Path) -> Path:
    """The package as the Hub's cache holds it: links into the blobs of its repository."""
    blobs = cache / "models--org--m" / "blobs"
    snapshot = cache / "models--org--m" / "snapshots" / ("41cc25fe" * 5)
    blobs.mkdir(parents=True)
    for path in sorted(p for p in package.rglob("*") if p.is_file()):
        link = snapshot / path.relative_to(package)
        blob = blobs / sums.digest(str(package), path.relative_to(package).as_posix())
        link.parent.mkdir(parents=True, exist_ok=True)
        if not blob.exists():
            os.link(path, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


@pytest.mark.parametrize("family", AGAINST)
def test_a_snapshot_of_the_hub_passes(family: str, good: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(good[family], root)
    sums.write(str(root))
    found = findings(as_snapshot(root, tmp_path / "hub"), against=AGAINST[family])
    assert false_ids(found) == []
    assert {i for i, f in found if f.ok is None} <= {
        "graph.standard",
        "run.placement",
        "golden.values",
    }
    assert {f.reason for _, f in found if f.warning} <= {"symlink", "hard-link"}


def test_a_snapshot_that_leads_elsewhere_does_not(good: dict[str, Path], tmp_path: Path) -> None:
    root = as_snapshot(good["qwen"], tmp_path / "hub")
    other = tmp_path / "hub" / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    data = root / "decoder" / "model.safetensors"
    shutil.copy(data, other / "x")
    data.unlink()
    data.symlink_to(os.path.relpath(other / "x", data.parent))
    assert false_ids(findings(root, check=("layout.*", "data.*"))) == [
        "layout.files",
        "data.path",
    ]


@pytest.mark.parametrize("family", AGAINST)
def test_hard_links_only_warn(family: str, good: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(good[family], root, copy_function=os.link)
    found = findings(root, check=("layout.*", "graph.*", "data.*"))
    assert false_ids(found) == []
    warned = [f for _, f in found if f.warning]
    assert warned and {f.reason for f in warned} == {"hard-link"}


@pytest.mark.parametrize(("plain", "others"), [("f16", {}), ("bf16", {"decoder": "f32"})])
def test_mixed_types_pass(plain: str, others: dict[str, str], tmp_path: Path) -> None:
    """Components of neo_chat in types of their own; those of pictures stay float32."""
    dtypes = dict.fromkeys(("vision_encoder", "embedding", "decoder"), plain) | others
    plan = export.plan(open_checkpoint("demo:shapes"), dtypes=dtypes)
    export.write(plan, tmp_path / "pkg")
    found = findings(tmp_path / "pkg", check=SOME, against="demo:shapes")
    assert false_ids(found) == []
    assert not any(f.warning for _, f in found)


QWEN_EDITS: tuple[tuple[str, object], ...] = (
    ("workflow/inputs/token_ids", ["decoder.attention_mask"]),
    ("workflow/inputs/token_ids", []),
    ("workflow/inputs/other", []),
    ("workflow/tasks", {}),
    ("workflow/tasks/chat/once", []),
    ("workflow/tasks/chat/prefixes", {"cond": "zz"}),
    ("workflow/tasks/chat/decode/each_token", []),
    ("workflow/tasks/chat/decode/stop_token_ids", []),
    ("workflow/tasks/chat/decode/stop_token_ids", [10**6]),
    ("workflow/positions/image_token_id", 5),
    ("workflow/positions/video", True),
    ("components/decoder/unsupported_token_ids", [9]),
    ("cache/0/initial", 5),
    ("cache/1/initial", 1),
)


@pytest.mark.parametrize(("place", "value"), QWEN_EDITS)
def test_a_workflow_that_is_not_the_family_s(
    place: str, value: object, good: dict[str, Path], tmp_path: Path
) -> None:
    """What a run would do otherwise, or not at all, is told by the workflow or by the graph."""
    root = tmp_path / "pkg"
    shutil.copytree(good["qwen"], root)
    manifest = json.loads((root / "package.json").read_text())
    at: Any = manifest
    *path, last = place.split("/")
    for key in path:
        at = at[int(key)] if isinstance(at, list) else at[key]
    assert (at[last] if not isinstance(at, list) and last in at else None) != value
    at[last] = value
    (root / "package.json").write_text(json.dumps(manifest))
    false = {i for i, f in findings(root) if f.ok is False}
    assert false and false <= {"flow.ports", "flow.tokens", "graph.names", "layout.schema"}


def test_the_context_begins_as_the_graph_says(good: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(good["qwen"], root)
    manifest = json.loads((root / "package.json").read_text())
    (entry, *_) = [e for e in manifest["cache"] if e["role"] == "ple_context"]
    entry["initial"] += 1
    (root / "package.json").write_text(json.dumps(manifest))
    assert [i for i, f in findings(root) if f.ok is False] == ["graph.names"]
