"""What exported packages of the tiny Qwen4-Exp checkpoints say of themselves, and their tokenizers.

Numbers like Q32 are those of docs/qwen4-exp.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ntool.lib.text import tokenizer

from ..conftest import Ended
from ..families.qwen4_exp.package_runs import golden
from .test_export_qwen4_exp import CASES, FP8, Export, exported, manifest_of

assert exported  # a fixture
Run = Callable[..., Ended]
KEPT, DENSE = FP8, (*FP8, "--dequantize")


def graph_of(package: Path, component: str) -> onnx.ModelProto:
    return onnx.load(package / component / "model.onnx", load_external_data=False)


def properties(package: Path, component: str) -> dict[str, str]:
    return {p.key: p.value for p in graph_of(package, component).metadata_props}


# -- package.json and metadata --------------------------------------------------------------------


@pytest.mark.parametrize(("case", "step"), [("text", "prefill"), ("image-text", "prefill")])
def test_the_state_is_that_of_the_goldens(case: str, step: str, exported: Export) -> None:
    """Q32: names, shapes and types; recurrent state float32, contexts begin with eos."""
    manifest = manifest_of(exported(case, "--dtype", "bf16"))
    wanted = {k: v for k, v in golden(case, step).items() if k.startswith("present")}
    entries = {e["output"]: e for e in manifest["cache"]}
    assert entries.keys() == wanted.keys()
    for name, array in wanted.items():
        e = entries[name]
        lengths = {"batch": 1, "past_sequence": wanted["present_position_ids"].shape[-1]}
        assert [lengths.get(d, d) for d in e["shape"]] == list(array.shape), name
        whole = array.dtype == np.int64
        wide = "int64" if whole else "float32" if e["role"] == "recurrent_state" else "bfloat16"
        assert e["dtype"] == wide, name
        grows = [i for i, d in enumerate(e["shape"]) if d == "past_sequence"]
        assert [e["grows"]] == (grows or [None]), name
        eos = json.loads((CASES / case / "config.json").read_text())
        eos = eos.get("text_config", eos)["eos_token_id"]
        first = eos[0] if isinstance(eos, list) else eos
        assert e["initial"] == (first if e["role"] == "ple_context" else 0), name
        if e["layer"] is None:
            assert e["input"] == "past_position_ids"
        else:
            assert e["input"] == f"past_key_values.{e['layer']}.{e['role']}"


def test_inputs_of_both_decoders(exported: Export) -> None:
    """Q32."""

    def ports(*made: str) -> dict[str, Any]:
        entry = manifest_of(exported(*made))["components"]["decoder"]
        state = ("past_",)
        return {p["name"]: (p["dtype"], p["shape"]) for p in entry["inputs"]
                if not p["name"].startswith(state)}  # fmt: skip

    ids = ("int64", ["batch", "sequence"])
    rest = {
        "attention_mask": ("int64", ["batch", "total_sequence"]),
        "position_ids": ("int64", [4, "batch", "sequence"]),
    }
    assert ports("text") == {"input_ids": ids, **rest}
    embeds = ("float32", ["batch", "sequence", 48])
    assert ports("image-text") == {"inputs_embeds": embeds, "ple_input_ids": ids, **rest}
    assert ports("image-text", "--text-only") == {"input_ids": ids, **rest}


def test_each_graph_tells_its_origin_and_state(exported: Export) -> None:
    """Q34: semantic reference and source apart; the state manifest starts a context."""
    package = exported("text")
    found = properties(package, "decoder")
    assert found["ntool.semantic_reference_revision"] == "5.24.0"
    assert found["ntool.source_revision"] == "unpinned"
    state = json.loads(found["ntool.state_manifest"])
    layers = {role: entry["layers"] for role, entry in state["roles"].items()}
    linear = [0, 1, 2, 4, 5, 6]
    assert layers == {
        "position_ids": [], "conv_state": linear, "recurrent_state": linear, "key": [3, 7],
        "value": [3, 7], "index_key": [3, 7], "ple_conv_state": [1, 5], "ple_context": [1, 5],
    }  # fmt: skip
    assert state["roles"]["recurrent_state"]["dtype"] == "float32"
    assert state["roles"]["recurrent_state"]["shape"] == ["batch", 4, 8, 12]
    eos = golden("text", "short_prefill")["present.1.ple_context"][0, 0]
    assert state["ple"]["initial_context"] == state["eos_token_ids"][0] == eos
    assert state["ple"]["context"] == 2 and state["ple"]["layers"] == [1, 5]
    assert manifest_of(package)["semantic_reference"]["revision"] == "5.24.0"


def test_the_token_of_videos_is_named_and_nothing_else_of_them(exported: Export) -> None:
    """Q5, Q30."""
    package = exported("image-text")
    config = json.loads((CASES / "image-text" / "config.json").read_text())
    video, manifest = config["video_token_id"], manifest_of(package)
    assert json.loads(properties(package, "embedding")["ntool.unsupported_token_ids"]) == [video]
    assert manifest["components"]["embedding"]["unsupported_token_ids"] == [video]
    assert manifest["workflow"]["positions"]["video"] is False
    assert video not in manifest["workflow"]["positions"].values()
    assert manifest["workflow"]["positions"]["image_token_id"] == config["image_token_id"]


def test_no_metadata_of_another_runtime(exported: Export) -> None:
    """Q35: the schema of GenAI runtimes has no words for n-gram ids, four axes of positions and
    states of several kinds, so no file of theirs is written, whole or in part."""
    package = exported("image-text")
    components = {f"{c}/{n}" for c in manifest_of(package)["components"]
                  for n in ("model.onnx", "model.safetensors")}  # fmt: skip
    beside = {"package.json", "processor.json", "weight-loading-report.json"}
    files = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}
    assert files == components | beside
    for name in beside:
        assert "genai" not in (package / name).read_text().lower()


def test_packages_without_tokenizer_and_processor(exported: Export) -> None:
    manifest = manifest_of(exported("text"))
    assert manifest["tokenizer"] is None and manifest["processor"] is None
    assert manifest["special_tokens"] == {}
    package = exported("image-text")
    assert manifest_of(package)["processor"] == "processor.json"
    assert json.loads((package / "processor.json").read_text())["frames"] == 2


TOKENIZER = CASES.parent / "neo-chat" / "dense-conv" / "checkpoint"
THREE = ("vocab.json", "merges.txt", "tokenizer_config.json")


def with_files(case: str, folder: Path, files: dict[str, str]) -> Path:
    """A case's checkpoint with further files."""
    shutil.copytree(CASES / case, folder, ignore=shutil.ignore_patterns("golden"))
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("one_file", [True, False])
def test_a_tokenizer_is_taken_along_as_it_is(one_file: bool, tmp_path: Path, ntool: Run) -> None:
    """And verify-package knows its files."""
    given = {name: (TOKENIZER / name).read_text() for name in THREE}
    given["chat_template.jinja"] = "{{ messages }}"
    if one_file:
        given["tokenizer.json"] = tokenizer.load(TOKENIZER)._backend.to_str()
        del given["vocab.json"], given["merges.txt"]
    source = with_files("text", tmp_path / "checkpoint", given | {"notes.txt": "no"})
    package = tmp_path / "pkg"
    ntool("export-component", source, "-o", package)
    assert {p.name: p.read_text() for p in (package / "tokenizer").iterdir()} == given
    assert manifest_of(package)["tokenizer"] == "tokenizer"
    ntool("verify-package", package, "--check", "layout.*", "--check", "flow.*")


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ({"tokenizer.json": "{"}, 3, "tokenizer.json"),
        ({"tokenizer.json": "{}"}, 5, "expected BPE and ByteLevel"),
        ({"vocab.json": "[]", "merges.txt": ""}, 3, "vocab.json"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_not_exported(
    files: dict[str, str], code: int, words: str, tmp_path: Path, ntool: Run
) -> None:
    source = with_files("text", tmp_path / "checkpoint", files)
    done = ntool("export-component", source, "-o", tmp_path / "pkg", code=code)
    assert words in done.err and not (tmp_path / "pkg").exists()


def test_files_without_a_vocabulary_are_no_tokenizer(tmp_path: Path, ntool: Run) -> None:
    files = {"tokenizer_config.json": "{}", "chat_template.jinja": "{{ messages }}"}
    source, package = with_files("text", tmp_path / "checkpoint", files), tmp_path / "pkg"
    ntool("export-component", source, "-o", package)
    assert manifest_of(package)["tokenizer"] is None and not (package / "tokenizer").exists()
    ntool("run-prefill", package, "--tokens", "1,2")


@pytest.mark.parametrize(
    ("given", "stop"),
    [({"eos_token_id": [7, 59, 7]}, [7, 59]), ({"eos_token_id": 59}, [59]),
     ({"eos_token_id": None}, [7]), ({"do_sample": True}, [7])],
)  # fmt: skip
def test_what_ends_a_text(
    given: dict[str, Any], stop: list[int], tmp_path: Path, ntool: Run
) -> None:
    """Q36: the ids of generation_config.json, as the published loop takes them; the hash of n-grams
    keeps the first of config.json."""
    source = with_files(
        "text", tmp_path / "checkpoint", {"generation_config.json": json.dumps(given)}
    )
    ntool("export-component", source, "-o", tmp_path / "pkg")
    manifest = manifest_of(tmp_path / "pkg")
    assert manifest["workflow"]["tasks"]["chat"]["decode"]["stop_token_ids"] == stop
    assert {e["initial"] for e in manifest["cache"] if e["role"] == "ple_context"} == {7}


@pytest.mark.parametrize("value", ["x", -1, 128, True, [7, 1e3]])
def test_ids_that_end_no_text(value: object, tmp_path: Path, ntool: Run) -> None:
    text = json.dumps({"eos_token_id": value})
    source = with_files("text", tmp_path / "checkpoint", {"generation_config.json": text})
    done = ntool("export-component", source, "-o", tmp_path / "pkg", code=3)
    assert "generation_config.json: 'eos_token_id': found" in done.err


def test_pictures_without_an_image_token(tmp_path: Path, ntool: Run, exported: Export) -> None:
    package = tmp_path / "pkg"
    shutil.copytree(exported("image-text"), package)
    manifest = manifest_of(package)
    manifest["workflow"]["positions"]["image_token_id"] = None
    (package / "package.json").write_text(json.dumps(manifest))
    done = ntool("verify-package", package, code=1)
    assert "Traceback" not in done.err
    assert "flow.tokens" in [r["id"] for r in done.of("check") if r["ok"] is False]


def test_two_exports_are_equal(tmp_path: Path, ntool: Run, exported: Export) -> None:
    for i, key in enumerate([("image-text",), KEPT]):
        again = tmp_path / str(i)
        ntool("export-component", CASES / key[0], "-o", again, *key[1:])
        first = exported(*key)
        files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
        assert files == sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
        assert [f for f in files if (first / f).read_bytes() != (again / f).read_bytes()] == []
