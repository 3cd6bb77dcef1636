"""Each fault in an otherwise good package fails exactly the checks that it is about."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from package_faults import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    Damage,
    edit_graph,
    edit_json,
    false_ids,
    findings,
    initializer,
    insert,
    poke,
    set_external,
    stated,
)
from safetensors import safe_open
from safetensors.numpy import save_file

from ntool.lib.package import sums
from ntool.lib.package.checks.catalogue import CHECKS
from ntool.lib.package.golden_file import Golden, open_goldens

EMBED = "language_model.model.embed_tokens.weight"
LM_HEAD = "language_model.lm_head.weight"
FAULTS: dict[str, tuple[Damage, list[str], dict[str, Any]]] = {}


def fault(*ids: str, **options: Any) -> Any:
    """Register a fault with the ids that must be false."""

    def register(damage: Damage) -> Damage:
        FAULTS[damage.__name__] = (damage, list(ids), options)
        return damage

    return register


def write_sums(root: Path) -> None:
    sums.write(str(root))


# -- layout ------------------------------------------------------------------------------------


@fault("layout.files")
def unknown_file(root: Path) -> None:
    (root / "decoder" / "left-over.bin").write_bytes(b"x")


@fault("layout.files")
def optional_tokenizer_file_outside(root: Path) -> None:
    file = root / "tokenizer" / "special_tokens_map.json"
    shutil.move(file, root.parent / file.name)
    file.symlink_to(root.parent / file.name)


@fault("data.hash")
def checksum_list_outside(root: Path) -> None:
    sums.write(str(root))
    shutil.move(root / sums.NAME, root.parent / sums.NAME)
    (root / sums.NAME).symlink_to(root.parent / sums.NAME)


@fault("layout.schema")
def interval_that_ends_before_it_begins(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["defaults"]["text-to-image"]["cfg_interval"] = [1.5, 1]


@fault("layout.schema")
def default_width_of_no_whole_tokens(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["defaults"]["text-to-image"]["width"] = 33


@fault("layout.schema")
def lone_surrogate(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["semantic_reference"]["repository"] = "\ud800"


@fault("layout.schema")
def another_mean(root: Path) -> None:
    with edit_json(root / "processor.json") as p:
        p["mean"] = [9, 9, 9]


@fault("flow.tokens")
def stop_token_of_no_tokenizer(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["workflow"]["tasks"]["chat"]["decode"]["stop_token"] = "x"


@fault("weights.complete")
def report_of_another_version(root: Path) -> None:
    with edit_json(root / "weight-loading-report.json") as r:
        r["schema"] = "x/99"


@fault("weights.complete")
def report_of_an_unknown_format(root: Path) -> None:
    with edit_json(root / "weight-loading-report.json") as r:
        r |= {"output_weight_format": 5, "native_fp8": "z"}


@fault("layout.files")
def data_file_missing(root: Path) -> None:
    (root / "embedding" / "model.safetensors").unlink()


@fault("layout.files")
def graph_missing(root: Path) -> None:
    (root / "embedding" / "model.onnx").unlink()


@fault("layout.files")
def report_missing(root: Path) -> None:
    (root / "weight-loading-report.json").unlink()


@fault("layout.files")
def processor_outside(root: Path) -> None:
    shutil.move(root / "processor.json", root.parent / "processor.json")
    with edit_json(root / "package.json") as p:
        p["processor"] = "../processor.json"


@fault("layout.files")
def component_folder_links_out(root: Path) -> None:
    shutil.rmtree(root.parent / "elsewhere", ignore_errors=True)
    shutil.move(root / "embedding", root.parent / "elsewhere")
    os.symlink(root.parent / "elsewhere", root / "embedding")


@fault("layout.files")
def tokenizer_file_is_a_pipe(root: Path) -> None:
    (root / "NOTICE").write_text("kept")
    os.mkfifo(root / "tokenizer" / "odd")


@fault("layout.schema")
def schema_of_the_future(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["schema"] = "ntool-package/2"


@fault("layout.schema")
def key_missing(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        del p["components"]["decoder"]["compute_dtype"]


@fault("layout.schema")
def family_unknown(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["family"] = "../neo_chat"


@fault("layout.schema")
def processor_disagrees(root: Path) -> None:
    with edit_json(root / "processor.json") as p:
        p["merge_size"] = 3


# -- graph -------------------------------------------------------------------------------------


@fault("graph.parse")
def opset_of_the_future(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        m.opset_import[0].version = 999


@fault("graph.parse")
def truncated_graph(root: Path) -> None:
    path = root / "decoder" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-7])


@fault("graph.parse")
def empty_graph(root: Path) -> None:
    (root / "decoder" / "model.onnx").write_bytes(b"")


@fault("graph.parse")
def unsorted_nodes(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        nodes = list(m.graph.node)
        del m.graph.node[:]
        m.graph.node.extend(reversed(nodes))


@fault("graph.parse")
def external_key_twice(root: Path) -> None:
    with edit_graph(root, "embedding") as m:
        initializer(m, EMBED).external_data.add(key="offset", value="0")


@fault("graph.checker")
def attribute_unknown(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        node = next(n for n in m.graph.node if n.op_type == "Gemm")
        node.attribute.append(helper.make_attribute("colour", 1))


@fault("graph.checker", "graph.types")
def wrong_declared_type(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        value = next(v for v in m.graph.value_info if v.type.tensor_type.elem_type == FLOAT)
        value.type.tensor_type.elem_type = TensorProto.INT64


@fault("graph.types")
def value_without_type(root: Path) -> None:
    with edit_graph(root, "vision_encoder") as m:
        m.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        insert(m, "pixel_values", ("Gelu", {"domain": "com.microsoft"}))


@fault("graph.standard", standard_only=True)
def custom_operator(root: Path) -> None:
    with edit_graph(root, "vision_encoder") as m:
        m.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        insert(m, "pixel_values", ("Gelu", {"domain": "com.microsoft"}))
        m.graph.value_info.append(helper.make_tensor_value_info("patched", FLOAT, ["patches", 768]))


@fault("graph.standard")
def custom_operator_in_a_branch_of_a_standard_package(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["components"]["vision_encoder"]["execution_provider"] = "onnx-standard"
    shape = ["patches", 768]
    branches = {}
    for name, domain in (("then_branch", ""), ("else_branch", "com.microsoft")):
        node = helper.make_node("Gelu", ["pixel_values"], [name], domain=domain)
        out = helper.make_tensor_value_info(name, FLOAT, shape)
        branches[name] = helper.make_graph([node], name, [], [out])
    with edit_graph(root, "vision_encoder") as m:
        m.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        insert(m, "pixel_values", ("If", branches))
        node = next(n for n in m.graph.node if n.op_type == "If")
        node.input[0] = "condition"
        m.graph.initializer.append(stated("condition", np.array(True)))
        m.graph.value_info.append(helper.make_tensor_value_info("patched", FLOAT, shape))


@fault("graph.names")
def port_of_another_name(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["components"]["decoder"]["outputs"][0]["name"] = "scores"


@fault("graph.names")
def port_of_another_shape(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["components"]["decoder"]["outputs"][0]["shape"][2] = 895


@fault("graph.names")
def wrong_opset_in_package_json(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["components"]["decoder"]["opset"] = 22


@fault("graph.names")
def port_that_the_family_does_not_have(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["components"]["decoder"]["outputs"][0]["name"] = "scores"
    with edit_graph(root, "decoder") as m:
        for node in m.graph.node:
            for i, name in enumerate(node.output):
                if name == "logits":
                    node.output[i] = "scores"
        m.graph.output[0].name = "scores"


@fault("graph.dead")
def unused_initializer(root: Path) -> None:
    with edit_graph(root, "decoder") as m:
        m.graph.initializer.append(stated("spare", np.zeros(3, np.int64)))


# -- data --------------------------------------------------------------------------------------


@fault("data.path")
def location_traverses(root: Path) -> None:
    with edit_graph(root, "embedding") as m:
        set_external(initializer(m, EMBED), location="../embedding/model.safetensors")


@fault("data.bounds")
def truncated_data(root: Path) -> None:
    path = root / "decoder" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


@fault("data.bounds", "weights.complete")
def two_weights_exchanged(root: Path) -> None:
    names = [f"language_model.model.layers.{i}.self_attn.k_proj.weight" for i in (0, 1)]
    with edit_graph(root, "decoder") as m:
        a, b = (initializer(m, n) for n in names)
        kept = [(e.key, e.value) for e in a.external_data]
        set_external(a, **{e.key: e.value for e in b.external_data})
        set_external(b, **dict(kept))


@fault("data.bounds")
def offset_is_no_number(root: Path) -> None:
    with edit_graph(root, "embedding") as m:
        set_external(initializer(m, EMBED), offset=" 192")
    with edit_json(root / "weight-loading-report.json") as r:
        row = next(t for t in r["tensors"] if t["name"] == EMBED)
        row["targets"][0]["offset"] = 0


@fault("data.orphans")
def appended_bytes(root: Path) -> None:
    with open(root / "decoder" / "model.safetensors", "ab") as f:
        f.write(bytes(64))


@fault("data.hash")
def weight_changed_after_hashing(root: Path) -> None:
    write_sums(root)
    poke(root, "decoder", LM_HEAD, lambda w: np.multiply(w, 2, out=w))


@fault("data.hash")
def file_added_after_hashing(root: Path) -> None:
    write_sums(root)
    (root / "README.md").write_text("hello")


@fault("data.hash")
def wrong_checksum_key(root: Path) -> None:
    with edit_graph(root, "embedding") as m:
        initializer(m, EMBED).external_data.add(key="checksum", value="0" * 40)


# -- weights and types ---------------------------------------------------------------------------


@fault("weights.complete")
def counts_do_not_add_up(root: Path) -> None:
    with edit_json(root / "weight-loading-report.json") as r:
        r["counts"]["copied"] += 1


@fault("weights.complete")
def weight_without_source(root: Path) -> None:
    with edit_json(root / "weight-loading-report.json") as r:
        row = next(t for t in r["tensors"] if t["name"] == EMBED)
        row["targets"] = [t for t in row["targets"] if t["component"] != "embedding"]
        row.update(action="excluded", reason="test")
        r["counts"].update(excluded=1, converted=r["counts"]["converted"] - 1)


@fault("weights.complete")
def constant_without_origin(root: Path) -> None:
    with edit_graph(root, "embedding") as m:
        constant = next(t for t in m.graph.initializer if t.name != EMBED)
        del constant.metadata_props[:]


@fault("weights.sane", "run.finite")
def not_a_number(root: Path) -> None:
    def change(w: np.ndarray) -> None:
        w[3, 5] = np.nan

    poke(root, "decoder", LM_HEAD, change)


@fault("weights.sane")
def matrix_of_zeros(root: Path) -> None:
    poke(
        root, "decoder", "language_model.model.layers.2.mlp.up_proj.weight", lambda w: w.fill(-0.0)
    )


@fault("weights.values", against="demo:shapes")
def one_number_changed(root: Path) -> None:
    def change(w: np.ndarray) -> None:
        w[-1] = np.nextafter(w[-1], np.float32(9))

    poke(root, "image_gen_denoiser", "language_model.model.norm_mot_gen.weight", change)


@fault("dtype.policy")
def half_precision_claimed_for_generation(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["components"]["image_gen_denoiser"]["compute_dtype"] = "float16"


@fault("dtype.policy")
def half_precision_inside_generation(root: Path) -> None:
    with edit_graph(root, "image_gen_embedding") as m:
        insert(m, "z", ("Cast", {"to": FLOAT16}), ("Cast", {"to": FLOAT}))


# -- flow ----------------------------------------------------------------------------------------


@fault("flow.ports")
def edge_of_the_cache_missing(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        edges = p["workflow"]["edges"]
        edges[:] = [e for e in edges if e["to"] != "image_gen_denoiser.past.3.value"]


@fault("flow.ports")
def edge_without_its_renames(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        edge = next(e for e in p["workflow"]["edges"] if e["to"] == "decoder.past.0.key")
        del edge["dims"]


@fault("flow.ports")
def edge_of_another_type(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        edge = next(e for e in p["workflow"]["edges"] if e["to"] == "decoder.inputs_embeds")
        edge["to"] = "decoder.logits_to_keep"


@fault("flow.ports")
def component_that_a_task_needs_is_gone(root: Path) -> None:
    shutil.rmtree(root / "image_gen_embedding")
    with edit_json(root / "package.json") as p:
        del p["components"]["image_gen_embedding"]
        edges = p["workflow"]["edges"]
        edges[:] = [e for e in edges if not e["from"].startswith("image_gen_embedding.")]
    with edit_json(root / "weight-loading-report.json") as r:
        for row in r["tensors"]:
            kept = [t for t in row["targets"] if t["component"] != "image_gen_embedding"]
            if not kept and row["targets"]:
                r["counts"][row["action"]] -= 1
                r["counts"]["excluded"] = r["counts"].get("excluded", 0) + 1
                row.update(action="excluded", reason="test")
            row["targets"] = kept


@fault("flow.tokens")
def token_ids_exchanged(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        t = p["special_tokens"]
        t["<think>"], t["</think>"] = t["</think>"], t["<think>"]


@fault("flow.tokens", "run.dynamic")
def graph_guards_another_token(root: Path) -> None:
    with edit_graph(root, "embedding") as m:
        node = next(n for n in m.graph.node if n.op_type == "Equal")
        node.input[1] = "other"
        m.graph.initializer.append(stated("other", np.array(5)))
        used = {i for n in m.graph.node for i in n.input}
        kept = [t for t in m.graph.initializer if t.name in used]
        del m.graph.initializer[:]
        m.graph.initializer.extend(kept)


@fault("flow.tokens")
def vocabulary_too_small(root: Path) -> None:
    with edit_json(root / "package.json") as p:
        p["vocab_size"] = 883


# -- runs ----------------------------------------------------------------------------------------


@fault("run.load")
def operator_without_a_kernel(root: Path) -> None:
    with edit_graph(root, "vision_encoder") as m:
        chain = [("Cast", {"to": BFLOAT16}), ("Add", {}), ("Cast", {"to": FLOAT})]
        insert(m, "pixel_values", *chain)


@fault("run.dynamic")
def batch_of_one_built_in(root: Path) -> None:
    with edit_graph(root, "image_gen_embedding") as m:
        last = next(n for n in reversed(m.graph.node) if n.op_type == "Reshape")
        last.input[1] = "fixed"
        m.graph.initializer.append(stated("fixed", np.array([1, -1, 160])))


@fault("run.finite")
def weights_that_overflow(root: Path) -> None:
    poke(root, "decoder", LM_HEAD, lambda w: w.fill(3e38))


# -- golden ------------------------------------------------------------------------------------


def golden_of_rows(root: Path) -> list[Golden]:
    """What the embedding gives for four tokens, from the weight of the sound package."""
    with safe_open(root / "embedding/model.safetensors", "np") as f:
        rows = f.get_tensor(EMBED)
    ids = np.array([[5, 6, 7, 700]])
    file = root.parent / "rows.safetensors"
    save_file({"input_ids": ids, "inputs_embeds": rows[ids]}, file)
    return open_goldens([f"embedding={file}"], ["embedding"])


@fault("golden.values", goldens=golden_of_rows)
def rows_of_the_embedding_in_another_order(root: Path) -> None:
    def turn(rows: np.ndarray) -> None:
        rows[:] = np.roll(rows, 1, axis=0)

    poke(root, "embedding", EMBED, turn)


# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_caught_by_exactly(name: str, package: Path) -> None:
    damage, ids, given = FAULTS[name]
    options = {k: v(package) if callable(v) else v for k, v in given.items()}
    damage(package)
    found = findings(package, **options)
    assert sorted(false_ids(found)) == sorted(ids), [f for _, f in found if f.ok is False]


def test_every_check_has_a_fault_of_its_own() -> None:
    alone = {ids[0] for _, ids, _ in FAULTS.values() if len(ids) == 1}
    assert alone == {c.id for c in CHECKS}


def test_no_false_alarm(good_package: Path) -> None:
    found = findings(good_package, standard_only=True, against="demo:shapes")
    unasked = ("data.hash", "golden.values")
    assert [f for i, f in found if f.ok is not True and i not in unasked] == []
    assert not any(f.warning for _, f in found)
    components = {c.name for c in (good_package).iterdir() if c.is_dir()} - {"tokenizer"}
    for check in CHECKS:
        about = {f.component for i, f in found if i == check.id}
        assert about == ({None} if check.package else components), check.id


def test_good_package_with_sums_and_readme(package: Path) -> None:
    (package / "README.md").write_text("# a model\n")
    write_sums(package)
    found = findings(package, check=("layout.*", "data.hash"))
    assert [f.ok for _, f in found] == [True, True, True]


def test_sums_are_read_by_the_standard_tool(package: Path) -> None:
    import subprocess

    write_sums(package)
    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum on this system")
    done = subprocess.run(["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=package)
    assert done.returncode == 0
    (package / "processor.json").write_text("{}")
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=package, capture_output=True, text=True
    )
    assert done.returncode != 0 and "processor.json: FAILED" in done.stdout


def test_zeros_that_the_source_has_are_sound(package: Path, tmp_path: Path) -> None:
    """A weight that training left at zero is zero in the checkpoint too."""
    from ntool.lib import demo

    source = tmp_path / "source"
    shutil.copytree(demo.path("shapes"), source)
    name = "language_model.model.layers.2.mlp.up_proj.weight"
    for shard in sorted(source.glob("*.safetensors")):
        raw = bytearray(shard.read_bytes())
        n = int.from_bytes(raw[:8], "little")
        import json

        header = json.loads(raw[8 : 8 + n])
        if name in header:
            a, b = (8 + n + o for o in header[name]["data_offsets"])
            raw[a:b] = bytes(b - a)
            shard.write_bytes(raw)
    poke(package, "decoder", name, lambda w: w.fill(0))
    check = ("weights.sane", "weights.values")
    assert false_ids(findings(package, check=check)) == ["weights.sane"]
    assert false_ids(findings(package, check=check, against=str(source))) == []
    assert false_ids(findings(package, check=check, against="demo:shapes")) == [
        "weights.values",
        "weights.sane",
    ]


def test_no_kernel_names_operator_type_and_node(package: Path) -> None:
    operator_without_a_kernel(package)
    found = findings(package, check=("run.load",))
    (finding,) = [f for _, f in found if f.ok is False]
    assert finding.reason == "no-kernel"
    assert "valid, no kernel for Add(bfloat16) at patch Add 1" in finding.message


def test_hidden_in_a_function(package: Path) -> None:
    """A custom operator inside a function that the model defines itself."""
    with edit_graph(package, "vision_encoder") as m:
        body = [helper.make_node("Gelu", ["a"], ["b"], "inner", domain="com.microsoft")]
        imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        m.functions.append(helper.make_function("own", "Soft", ["a"], ["b"], body, imports))
        m.opset_import.append(helper.make_opsetid("own", 1))
        insert(m, "pixel_values", ("Soft", {"domain": "own"}))
    found = findings(package, check=("graph.standard",), standard_only=True)
    (finding,) = [f for _, f in found if f.ok is False]
    assert "function own::Soft: node inner (Gelu): operator com.microsoft::Gelu" in finding.message


def test_a_standard_function_is_standard(package: Path) -> None:
    with edit_graph(package, "vision_encoder") as m:
        body = [helper.make_node("Gelu", ["a"], ["b"], "inner")]
        imports = [helper.make_opsetid("", 23)]
        m.functions.append(helper.make_function("own", "Soft", ["a"], ["b"], body, imports))
        m.opset_import.append(helper.make_opsetid("own", 1))
        insert(m, "pixel_values", ("Soft", {"domain": "own"}))
    found = findings(package, check=("graph.standard", "graph.parse"), standard_only=True)
    assert false_ids(found) == []


def test_model_from_another_tool(tmp_path: Path) -> None:
    """Graphs without package.json: what applies is checked, the rest says that it does not."""
    x = helper.make_tensor_value_info("x", FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", FLOAT, ["n"])
    model = helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    (tmp_path / "onnx").mkdir()
    onnx.save(model, tmp_path / "onnx" / "model.onnx")
    found = findings(tmp_path)
    assert false_ids(found) == []
    holds = {i for i, f in found if f.ok}
    assert holds == {
        "graph.parse", "graph.checker", "graph.types", "graph.dead",
        "data.path", "data.bounds", "data.orphans", "run.load",
    }  # fmt: skip
    assert {f.component for i, f in found if i == "run.load"} == {"onnx/model.onnx"}
