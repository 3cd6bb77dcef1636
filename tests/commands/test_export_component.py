"""export-component: what it writes, that it writes it once and whole, and what it refuses."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors import safe_open

from ..conftest import DATA, run_ntool

CHECKPOINT = DATA / "neo-chat" / "dense-conv" / "checkpoint"
COMPONENTS = [
    "vision_encoder",
    "embedding",
    "decoder",
    "image_gen_embedding",
    "image_gen_denoiser",
]


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def copy_checkpoint(tmp_path: Path, **config: object) -> Path:
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, folder)
    if config:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        for key, value in config.items():
            inner = values
            *scopes, last = key.split("__")
            for scope in scopes:
                inner = inner[scope]
            inner[last] = value
        path.write_text(json.dumps(values))
    return folder


def rewrite(folder: Path, change) -> None:
    """Rewrite the shard of a tensor with `change(tensors)` applied, dtypes kept; index
    untouched."""
    import ml_dtypes

    types = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}
    for shard in sorted(folder.glob("*.safetensors")):
        raw = shard.read_bytes()
        n = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + n])
        header.pop("__metadata__", None)
        tensors = {}
        for name, t in header.items():
            b, e = t["data_offsets"]
            data = np.frombuffer(raw[8 + n + b : 8 + n + e], types[t["dtype"]])
            tensors[name] = (t["dtype"], data.reshape(t["shape"]))
        changed = change(dict(tensors))
        at, head, payload = 0, {}, b""
        for name, (dtype, data) in changed.items():
            head[name] = {
                "dtype": dtype,
                "shape": list(data.shape),
                "data_offsets": [at, at + data.nbytes],
            }
            at += data.nbytes
            payload += data.tobytes()
        text = json.dumps(head).encode()
        shard.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    index = folder / "model.safetensors.index.json"
    index.unlink()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "pkg"
    done = run_ntool("export-component", CHECKPOINT, "-o", folder)
    assert done.code == 0, done.err
    return folder


def test_all_five_components_and_their_assets(package: Path) -> None:
    expected = ["package.json", "processor.json", "weight-loading-report.json"]
    expected += [f"{c}/{f}" for c in COMPONENTS for f in ("model.onnx", "model.safetensors")]
    expected += [f"tokenizer/{p.name}" for p in CHECKPOINT.iterdir() if p.name in TOKENIZER]
    assert files_of(package) == sorted(expected)
    for name in TOKENIZER:
        assert filecmp.cmp(CHECKPOINT / name, package / "tokenizer" / name, shallow=False)


TOKENIZER = {
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
}


def test_the_report_accounts_for_every_source_tensor(package: Path) -> None:
    report = json.loads((package / "weight-loading-report.json").read_text())
    weight_map = json.loads((CHECKPOINT / "model.safetensors.index.json").read_text())["weight_map"]
    assert sorted(t["name"] for t in report["tensors"]) == sorted(weight_map)
    counts = report["counts"]
    assert counts["source_tensors"] == len(weight_map) == counts["copied"] + counts["converted"]
    for t in report["tensors"]:
        assert t["targets"] and t["source"]["file"] == weight_map[t["name"]]


def test_weights_are_the_checkpoints_own_names_and_values(package: Path) -> None:
    import ml_dtypes

    report = json.loads((package / "weight-loading-report.json").read_text())
    types = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}
    for t in report["tensors"]:
        source = t["source"]
        raw = (CHECKPOINT / source["file"]).read_bytes()
        stored = np.frombuffer(
            raw[source["offset"] : source["offset"] + source["nbytes"]], types[source["dtype"]]
        ).astype(np.float32)
        for target in t["targets"]:
            assert target["offset"] % 64 == 0  # every size here is a multiple of 64
            with safe_open(package / target["file"], "np") as f:
                np.testing.assert_array_equal(f.get_tensor(target["name"]).reshape(-1), stored)


def test_linear_layers_are_gemm_on_the_stored_matrix(package: Path) -> None:
    model = onnx.load(package / "decoder" / "model.onnx", load_external_data=False)
    external = {t.name: list(t.dims) for t in model.graph.initializer if t.external_data}
    linear = {n for n in external if n.endswith(("_proj.weight", "lm_head.weight"))}
    used = {
        n.input[1]
        for n in model.graph.node
        if n.op_type == "Gemm" and any(a.name == "transB" and a.i == 1 for a in n.attribute)
    }
    assert linear <= used
    assert external["language_model.model.layers.0.self_attn.q_proj.weight"] == [128, 64]
    assert {e.op_type for e in model.graph.node if "Transpose" in e.op_type} == {"Transpose"}


def test_graphs_pass_the_official_checker_and_explain_themselves(package: Path) -> None:
    for name in COMPONENTS:
        path = package / name / "model.onnx"
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(path, load_external_data=False)
        words = {p.key: p.value for p in model.metadata_props}
        assert words["ntool.component"] == name and words["ntool.family"] == "neo_chat"
        for t in model.graph.initializer:
            if not t.external_data:
                assert t.metadata_props[0].key == "ntool.origin"


def test_two_exports_are_byte_identical(package: Path, tmp_path: Path, ntool) -> None:
    elsewhere = tmp_path / "other" / "checkpoint"
    shutil.copytree(CHECKPOINT, elsewhere)
    ntool("export-component", elsewhere, "-o", tmp_path / "again")
    assert files_of(package) == files_of(tmp_path / "again")
    for name in files_of(package):
        assert filecmp.cmp(package / name, tmp_path / "again" / name, shallow=False), name


def test_a_subset_says_what_is_left_out(tmp_path: Path, ntool) -> None:
    ntool("export-component", CHECKPOINT, "decoder", "embedding", "-o", tmp_path / "pkg")
    manifest = json.loads((tmp_path / "pkg" / "package.json").read_text())
    assert list(manifest["components"]) == ["embedding", "decoder"]
    assert {e["to"].split(".")[0] for e in manifest["workflow"]["edges"]} == {"decoder"}
    report = json.loads((tmp_path / "pkg" / "weight-loading-report.json").read_text())
    counts = report["counts"]
    assert counts["excluded"] > 0
    assert counts["source_tensors"] == sum(v for k, v in counts.items() if k != "source_tensors")
    left = [t for t in report["tensors"] if t["action"] == "excluded"]
    assert all("not exported" in t["reason"] for t in left)


def test_shards(tmp_path: Path, ntool) -> None:
    ntool("export-component", CHECKPOINT, "decoder", "-o", tmp_path / "p", "--shard-size", "200KB")
    files = sorted((tmp_path / "p" / "decoder").glob("*.safetensors"))
    assert len(files) > 2 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    onnx.checker.check_model(str(tmp_path / "p" / "decoder" / "model.onnx"), full_check=True)
    whole = onnx.load(tmp_path / "p" / "decoder" / "model.onnx")
    assert all(t.raw_data for t in whole.graph.initializer)


def test_dry_run_writes_nothing(tmp_path: Path, ntool) -> None:
    done = ntool("export-component", CHECKPOINT, "--dry-run", "-o", tmp_path / "pkg")
    (summary,) = done.of("summary")
    assert summary["dry_run"] and summary["bytes_written"] == 0 and summary["bytes_planned"] > 0
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_kept(package: Path, tmp_path: Path, ntool) -> None:
    target = tmp_path / "pkg"
    ntool("export-component", CHECKPOINT, "embedding", "-o", target)
    before = (target / "package.json").read_bytes()
    done = ntool("export-component", CHECKPOINT, "-o", target, code=2)
    assert "exists" in done.err and "--force" in done.err
    assert (target / "package.json").read_bytes() == before
    ntool("export-component", CHECKPOINT, "-o", target, "--force")
    assert files_of(target) == files_of(package)


def test_force_does_not_delete_what_is_no_package(tmp_path: Path, ntool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters.txt").write_text("dear")
    done = ntool("export-component", CHECKPOINT, "-o", home, "--force", code=2)
    assert "holds no package.json" in done.err
    assert (home / "letters.txt").read_text() == "dear"


@pytest.mark.parametrize("where", ["", "inside/pkg", ".."])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_the_source_is_never_an_output(tmp_path: Path, ntool, where: str, force: list[str]) -> None:
    folder = copy_checkpoint(tmp_path / "here")
    before = {n: (folder / n).read_bytes() for n in files_of(folder)}
    done = ntool("export-component", folder, "-o", folder / where, *force, code=2)
    assert "one is or holds the other" in done.err
    assert {n: (folder / n).read_bytes() for n in files_of(folder)} == before


def test_the_source_through_a_link_is_never_an_output(tmp_path: Path, ntool) -> None:
    folder = copy_checkpoint(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(folder)
    ntool("export-component", folder, "-o", link, "--force", code=2)
    assert (folder / "config.json").exists() and link.is_symlink()


SLOW = """
import time, ntool.lib.checkpoint.writer as w, ntool.lib.package.export as e
def slow(folder, data, progress):
    done(folder, data, progress)
    print("written", flush=True)
    time.sleep(30)
done = w.write_file
e.write_file = slow
from ntool.guard import run
import sys
sys.exit(run(sys.argv[1:]))
"""


def half_done(out: Path) -> subprocess.Popen[str]:
    """An export that has written its first file."""
    command = [sys.executable, "-c", SLOW, "export-component", str(CHECKPOINT)]
    process = subprocess.Popen(
        [*command, "-o", str(out), "--format", "jsonl"],
        stdout=subprocess.PIPE,
        text=True,
        # what starts the tests may ignore it
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "written":
            break
    time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_an_interrupted_export_leaves_no_package(tmp_path: Path, signum: int, code: int) -> None:
    process = half_done(tmp_path / "pkg")
    os.kill(process.pid, signum)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert not (tmp_path / "pkg").exists()
    if signum != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_goes_with_the_next_one(tmp_path: Path, ntool) -> None:
    """But not what a process that is at work holds, nor what another output's left."""
    out = tmp_path / "pkg"
    killed, working = half_done(out), half_done(out)
    other = tmp_path / ".pkg2.ntool-1.tmp"
    other.mkdir()
    try:
        killed.kill()
        killed.communicate(timeout=20)
        left = {p.name for p in tmp_path.iterdir()} - {other.name}
        assert left == {f".pkg.ntool-{p.pid}.tmp" for p in (killed, working)}
        ntool("export-component", CHECKPOINT, "-o", out)
        kept = {f".pkg.ntool-{working.pid}.tmp", other.name}
        assert {p.name for p in tmp_path.iterdir()} == {"pkg", *kept}
    finally:
        working.kill()
        working.communicate(timeout=20)


def test_a_full_disk_is_told_before_the_first_byte(tmp_path: Path, ntool, monkeypatch) -> None:
    full = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1000)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    done = ntool("export-component", CHECKPOINT, "-o", tmp_path / "pkg", code=6)
    assert "not enough disk space" in done.err and "1000" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, ntool, monkeypatch) -> None:
    import errno

    from ntool.lib.package import export

    def full(folder, data, progress):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / data.name))

    monkeypatch.setattr(export, "write_file", full)
    done = ntool("export-component", CHECKPOINT, "-o", tmp_path / "pkg", code=6)
    assert "No space left" in done.err
    assert list(tmp_path.iterdir()) == []


REFUSED = [
    ({"template": "neo2"}, 5, ["template", "neo2", "neo1_0"]),
    ({"fm_head_layers": 3}, 5, ["fm_head_layers", "3"]),
    ({"concat_time_token_num": 1}, 5, ["concat_time_token_num"]),
    ({"use_pixel_head": False}, 3, ["use_pixel_head", "fm_head.conv1.weight", "fm_head.0.weight"]),
    ({"model_type": "llama"}, 5, ["model_type", "llama", "neo_chat"]),
    ({"llm_config__num_hidden_layers": -1}, 3, ["num_hidden_layers", "-1"]),
    ({"llm_config__num_hidden_layers": True}, 3, ["num_hidden_layers", "True"]),
    ({"llm_config__num_hidden_layers": 4}, 4, ["layers.3.", "missing"]),
    ({"llm_config__num_hidden_layers": 2}, 5, ["layers.2.", "belongs to no component"]),
    ({"llm_config__head_dim": 15}, 3, ["head_dim", "15", "multiple of 8"]),
    ({"llm_config__hidden_act": "gelu"}, 5, ["hidden_act", "gelu", "silu"]),
    ({"llm_config__rope_scaling": {"type": "yarn"}}, 5, ["rope_scaling", "yarn"]),
    ({"llm_config__num_key_value_heads": 3}, 3, ["num_attention_heads", "num_key_value_heads"]),
    ({"llm_config__intermediate_size": 97}, 3, ["gate_proj", "96, 64", "97, 64"]),
    ({"llm_config__vocab_size": 700}, 3, ["token", "vocab_size 700"]),
    ({"vision_config__num_channels": 4}, 5, ["num_channels", "4"]),
    ({"noise_scale": "1"}, 3, ["noise_scale", "'1'"]),
    ({"add_noise_scale_embedding": False}, 5, ["noise_scale_embedder", "belongs to no component"]),
]


@pytest.mark.parametrize(("config", "code", "words"), REFUSED, ids=lambda x: str(x)[:50])
def test_configs_that_are_refused(tmp_path: Path, ntool, config, code: int, words) -> None:
    folder = copy_checkpoint(tmp_path, **config)
    done = ntool("export-component", folder, "-o", tmp_path / "pkg", code=code)
    for word in words:
        assert word in done.err, (word, done.err)
    assert done.err.count("\n") <= 2 and done.records[-1]["kind"] == "error"
    assert not (tmp_path / "pkg").exists()


def test_a_missing_config_field_is_named(tmp_path: Path, ntool) -> None:
    folder = copy_checkpoint(tmp_path)
    values = json.loads((folder / "config.json").read_text())
    del values["noise_scale_max_value"]
    (folder / "config.json").write_text(json.dumps(values))
    done = ntool("export-component", folder, "-o", tmp_path / "pkg", code=3)
    assert "'noise_scale_max_value' is missing" in done.err


ALPHA = "fm_modules.vision_model_mot_gen.embeddings.alpha_patch_embedding.weight"


@pytest.mark.parametrize("kind", ["alpha_conv", "alpha_patch", "rows256", "unknown", "missing"])
def test_tensors_that_are_refused(tmp_path: Path, ntool, kind: str) -> None:
    folder = copy_checkpoint(tmp_path)
    conv2 = "fm_modules.fm_head.conv2.weight"

    def change(tensors):
        if conv2 not in tensors:
            return tensors
        dtype, data = tensors[conv2]
        if kind == "alpha_conv":
            tensors["fm_modules.fm_head.alpha_conv.weight"] = (dtype, data[:64])
        elif kind == "alpha_patch":
            tensors[ALPHA] = ("F32", np.zeros((32, 1, 16, 16), np.float32))
        elif kind == "rows256":
            tensors[conv2] = (dtype, np.concatenate([data, data[:64]]))
        elif kind == "unknown":
            tensors["fm_modules.adapter.weight"] = ("F32", np.zeros((2, 2), np.float32))
        else:
            del tensors[conv2]
        return tensors

    rewrite(folder, change)
    expected = {
        "alpha_conv": (5, "alpha_conv.weight", "layered RGBA"),
        "alpha_patch": (5, "alpha_patch_embedding.weight", "layered RGBA"),
        "rows256": (5, "conv2.weight", "layered RGBA"),
        "unknown": (5, "fm_modules.adapter.weight", "belongs to no component"),
        "missing": (4, "conv2.weight", "missing"),
    }
    code, *words = expected[kind]
    done = ntool("export-component", folder, "-o", tmp_path / "pkg", code=code)
    assert all(w in done.err for w in words), done.err


def test_tied_embeddings_give_the_head_the_table(tmp_path: Path, ntool) -> None:
    folder = copy_checkpoint(tmp_path, llm_config__tie_word_embeddings=True)
    head, table = "language_model.lm_head.weight", "language_model.model.embed_tokens.weight"
    rewrite(folder, lambda tensors: {k: v for k, v in tensors.items() if k != head})
    ntool("export-component", folder, "-o", tmp_path / "pkg")
    report = json.loads((tmp_path / "pkg" / "weight-loading-report.json").read_text())
    (row,) = [t for t in report["tensors"] if t["name"] == table]
    assert {t["component"]: t["name"] for t in row["targets"]} == {
        "embedding": table,
        "decoder": head,
    }
    assert row["targets"][1]["renamed"] == "tie_word_embeddings"


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_a_missing_tokenizer_file_is_named(tmp_path: Path, ntool, name: str) -> None:
    folder = copy_checkpoint(tmp_path)
    (folder / name).unlink()
    done = ntool("export-component", folder, "-o", tmp_path / "pkg", code=4)
    assert name in done.err


def test_wrong_use(tmp_path: Path, ntool) -> None:
    assert (
        "one of vision_encoder"
        in ntool("export-component", CHECKPOINT, "brain", "-o", tmp_path / "p", code=4).err
    )
    ntool("export-component", CHECKPOINT, code=2)
    ntool("export-component", CHECKPOINT, "-o", tmp_path / "p", "--shard-size", "big", code=2)
    ntool("export-component", tmp_path / "nowhere", "-o", tmp_path / "p", code=4)
    ntool("export-component", CHECKPOINT, "-o", tmp_path / "p", "--data", "teleport", code=2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"width": 33}, "text-to-image.width: found 33, expected a multiple of 32"),
        ({"cfg_interval": [0.5, 0.25]}, "cfg_interval: found [0.5, 0.25], expected LO <= HI"),
        ({"steps": "x"}, "steps"),
    ],
)
def test_defaults_that_no_run_could_use_are_refused_before_anything_is_written(
    tmp_path: Path, ntool, values: dict[str, object], words: str
) -> None:
    folder = copy_checkpoint(tmp_path)
    own = {"image_generation": {"text-to-image": values}}
    (folder / "generation_config.json").write_text(json.dumps(own))
    for more in ([], ["--dry-run"]):
        done = ntool("export-component", folder, "-o", tmp_path / "pkg", *more, code=3)
        assert words in done.err
    assert not (tmp_path / "pkg").exists()


FAT_PARENT = """
import subprocess, sys
held = b"x" * (400 << 20)
sys.exit(subprocess.run([sys.executable, "-m", "ntool", *sys.argv[1:]]).returncode)
"""


def test_peak_memory_is_not_that_of_the_program_that_started_it() -> None:
    command = [sys.executable, "-c", FAT_PARENT, "export-component", "demo:shapes", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    (summary,) = [r for r in rows if r["kind"] == "summary"]
    assert 10e6 < summary["peak_rss"] < 300e6


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--dtype", "fp16"], "--dtype: found fp16, expected auto or f32 or f16 or bf16", "f16"),
        (["--dtype", "bf6"], "--dtype: found bf6, expected auto", "bf16"),
        (["--set", "decoder=float32"], "--set decoder=float32: found float32", "f32"),
        (["--dtype", "int4"], "--dtype: found int4", None),
    ],
)
def test_a_dtype_that_is_none(
    tmp_path: Path, options: list[str], message: str, hint: str | None
) -> None:
    done = run_ntool("export-component", "demo:shapes", "-o", tmp_path / "pkg", *options)
    assert done.code == 2 and f"ntool export-component: {message}" in done.err
    assert (f"hint: did you mean '{hint}'?" in done.err) if hint else ("hint" not in done.err)
