"""Faults of otherwise good packages, each with the ids of the checks that it fails: layout, data,
weights, types and flow. test_seeded_faults.py adds those of graphs and runs, and makes each.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from package_faults import (
    FLOAT,
    FLOAT16,
    Damage,
    edit_graph,
    edit_json,
    initializer,
    insert,
    poke,
    set_external,
    stated,
)

from ntool.lib.package import sums

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
