"""Sabotage of good packages, and the ids that it is caught by: these, and no others.

Faults of files, graphs and weights of a package of each family. Edits of JSON files are in
test_edited_packages.py, faults of single rules in test_seeded_faults.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from package_edits import EDITS
from package_faults import (
    AGAINST,
    FLOAT,
    FLOAT16,
    SOME,
    edit_graph,
    edit_json,
    false_ids,
    findings,
    initializer,
    insert,
    replace,
    set_external,
    stated,
)

from ntool.lib.package import sums

Sabotage = Callable[[Path], None]
TABLE: dict[str, tuple[str, Sabotage, list[str], dict[str, Any]]] = {}


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
