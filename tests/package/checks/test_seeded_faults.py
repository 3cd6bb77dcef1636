"""Each fault in an otherwise good package fails exactly the checks that it is about.

Faults of graphs, of runs and of what golden files say are here, the others in seeded_faults.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from package_faults import (
    BFLOAT16,
    FLOAT,
    edit_graph,
    edit_json,
    false_ids,
    findings,
    initializer,
    insert,
    poke,
    stated,
)
from safetensors import safe_open
from safetensors.numpy import save_file
from seeded_faults import EMBED, FAULTS, LM_HEAD, fault, write_sums

from ntool.lib.package.checks.catalogue import CHECKS
from ntool.lib.package.golden_file import Golden, open_goldens

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


# -- runs ----------------------------------------------------------------------------------------


@fault("run.load")
def attribute_that_the_runtime_refuses(root: Path) -> None:
    with edit_graph(root, "vision_encoder") as m:
        insert(m, "pixel_values", ("LpNormalization", {"p": 7}))


@fault("run.load", "run.support")
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
    # a node without a kernel fails run.load too; run.placement needs a GPU
    assert alone == {c.id for c in CHECKS} - {"run.support", "run.placement"}


def test_no_false_alarm(good_package: Path) -> None:
    found = findings(good_package, standard_only=True, against="demo:shapes")
    unasked = ("data.hash", "golden.values", "run.placement")
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
        "data.path", "data.bounds", "data.orphans", "weights.sane", "run.load", "run.support",
    }  # fmt: skip
    assert {f.component for i, f in found if i == "run.load"} == {"onnx/model.onnx"}
