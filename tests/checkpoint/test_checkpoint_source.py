from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint, exit_code
from ntool.lib.errors import SourceNotFound, Unsupported, UsageProblem

from .header_files import index, shard, write

ONE, TWO = "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def errors(checkpoint: Checkpoint) -> list[tuple[str, str | None, str | None]]:
    found = [p for p in checkpoint.problems if p.severity == "error"]
    return [(p.code, p.file, p.name) for p in found]


def noted(checkpoint: Checkpoint) -> dict[str, str]:
    return {p.code: p.severity for p in checkpoint.problems}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shard(tmp_path / ONE, "b", "a")
    shard(tmp_path / TWO, "c")
    index(tmp_path / INDEX, {"c": TWO, "a": ONE, "b": ONE}, total_size=48)
    return tmp_path


def test_demo() -> None:
    demo = open_checkpoint("demo:shapes")
    assert demo.problems == []
    assert len(demo.tensors) == 154
    assert demo.config["model_type"] == "neo_chat"
    name = "language_model.model.embed_tokens.weight"
    tensor = demo.tensor(name)
    assert (tensor.dtype, tensor.shape) == ("BF16", (896, 160))
    assert sum(map(len, demo.bands(tensor))) == tensor.nbytes
    with pytest.raises(SourceNotFound, match="demo:shapes"):
        open_checkpoint("demo:other")


def test_folder_with_index(model: Path) -> None:
    got = open_checkpoint(str(model))
    assert got.problems == []
    assert list(got.tensors) == ["c", "b", "a"]  # files as the index names them, then offsets
    assert list(got.files) == [TWO, ONE]
    assert got.root == str(model)
    assert os.path.getsize(got.path(ONE)) == got.files[ONE]
    assert got.tensor("a").offset == got.files[ONE] - 16


def test_index_named_itself(model: Path) -> None:
    assert open_checkpoint(str(model / INDEX)).tensors == open_checkpoint(str(model)).tensors


def test_from_inside_with_a_bare_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    assert len(open_checkpoint(".").tensors) == 3
    assert len(open_checkpoint(INDEX).tensors) == 3
    assert len(open_checkpoint(ONE).tensors) == 2


def test_one_file_is_that_file(model: Path) -> None:
    assert list(open_checkpoint(str(model / ONE)).tensors) == ["b", "a"]


def test_missing_tensor(model: Path) -> None:
    index(model / INDEX, {"a": ONE, "b": ONE, "c": TWO, "d": TWO})
    got = open_checkpoint(str(model))
    assert errors(got) == [("missing-tensor", TWO, "d")]
    assert got.missing == ["d"]
    assert exit_code(got.problems) == 1


def test_missing_shard(model: Path) -> None:
    (model / TWO).unlink()
    got = open_checkpoint(str(model))
    assert errors(got) == [("missing-shard", TWO, None)]
    assert (got.missing, got.absent) == (["c"], {TWO: ["c"]})
    assert sorted(got.tensors) == ["a", "b"]
    assert exit_code(got.problems) == 3


def test_orphans_are_listed_by_file(model: Path) -> None:
    index(model / INDEX, {"a": ONE, "c": TWO})
    got = open_checkpoint(str(model))
    assert errors(got) == []
    assert got.orphans == ["b"]
    [warning] = got.problems
    assert (warning.code, warning.severity, warning.file) == ("orphan-tensors", "warning", ONE)
    assert "b" in warning.message
    assert "b" in got.tensors


def test_orphan_beside_a_broken_tensor(model: Path) -> None:
    broken = {
        "c": {"dtype": "F9", "shape": [1], "data_offsets": [0, 4]},
        "orphan": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
    }
    write(model / TWO, broken, 8)
    got = open_checkpoint(str(model))
    assert errors(got) == [("unknown-dtype", TWO, "c")]
    assert (got.orphans, got.missing) == (["orphan"], [])


def test_unreadable_shard_is_one_problem(model: Path) -> None:
    (model / TWO).write_bytes(b"PK\x03\x04" + bytes(100))
    got = open_checkpoint(str(model))
    assert errors(got) == [("not-safetensors", TWO, None)]
    assert got.missing == []


@pytest.mark.parametrize("seed", range(40))
def test_index_and_headers_are_compared_name_by_name(tmp_path: Path, seed: int) -> None:
    """Against the definition: a name is in the file that the index names, or that is told."""
    rng = random.Random(seed)
    files = [f"{letter}.safetensors" for letter in "xyz"]
    names = list("abcdef")
    named = {n: rng.choice(files) for n in rng.sample(names, rng.randint(1, 6))}
    held = {f: rng.sample(names, rng.randint(1, 4)) for f in files}
    for n, f in named.items():  # most are where they belong
        if rng.random() < 0.7 and n not in held[f]:
            held[f].append(n)
    for f, inside in held.items():
        shard(tmp_path / f, *inside)
    index(tmp_path / INDEX, named)
    read = list(dict.fromkeys(named.values()))
    homes = {n: [f for f in read if n in held[f]] for n in names}
    kept = {n: named[n] if named.get(n) in h else h[0] for n, h in homes.items() if h}

    got = open_checkpoint(str(tmp_path))
    assert {n: t.file for n, t in got.tensors.items()} == kept
    assert sorted(got.orphans) == sorted(n for n in kept if n not in named)
    assert sorted(got.missing) == sorted(n for n in named if not homes[n])
    found: dict[str, list[str | None]] = {}
    for problem in got.problems:
        found.setdefault(problem.code, []).append(problem.name)
    assert sorted(map(str, found.get("misplaced-tensor", []))) == sorted(
        n for n in named if n in kept and kept[n] != named[n]
    )
    assert sorted(map(str, found.get("duplicate-tensor", []))) == sorted(
        n for n, h in homes.items() if len(h) > 1
    )


def test_duplicate_across_shards(model: Path) -> None:
    shard(model / TWO, "c", "a")
    got = open_checkpoint(str(model))
    assert errors(got) == [("duplicate-tensor", ONE, "a")]
    assert got.tensor("a").file == ONE  # as the index says, though the other was read first
    message = got.problems[0].message
    assert ONE in message and TWO in message


def test_misplaced(model: Path) -> None:
    index(model / INDEX, {"a": TWO, "b": ONE, "c": TWO})
    assert errors(open_checkpoint(str(model))) == [("misplaced-tensor", TWO, "a")]


def test_other_files_and_total_size(model: Path) -> None:
    shard(model / "consolidated.safetensors", "a", "z")
    index(model / INDEX, {"a": ONE, "b": ONE, "c": TWO}, total_size=47)
    got = open_checkpoint(str(model))
    assert noted(got) == {"orphan-file": "warning", "total-size": "warning"}
    assert "z" not in got.tensors
    ignored = open_checkpoint(str(model), use_index=False)
    assert "z" in ignored.tensors
    assert errors(ignored) == [("duplicate-tensor", ONE, "a")]


def test_broken_index_lists_the_folder(model: Path) -> None:
    (model / INDEX).write_text('{"metadata": {}}')
    got = open_checkpoint(str(model))
    assert errors(got) == [("bad-index", INDEX, None)]
    assert sorted(got.tensors) == ["a", "b", "c"]


def test_links_out_of_the_folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    shard(outside / "w.safetensors", "c")
    (model / TWO).unlink()
    (model / TWO).symlink_to(outside / "w.safetensors")
    (outside / "config.json").write_text('{"model_type": "secret"}')
    (model / "config.json").symlink_to(outside / "config.json")
    got = open_checkpoint(str(model))
    escapes = [("path-escape", "config.json", None), ("path-escape", TWO, None)]
    assert errors(got) == escapes
    assert got.config == {}
    assert "c" not in got.tensors
    # a link that the user names is the user's business
    assert list(open_checkpoint(str(model / TWO)).tensors) == ["c"]


def test_hub_cache_snapshot(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("0" * 40)
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    shard(blobs / "123", "a")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    got = open_checkpoint(str(snapshot))
    assert got.problems == []
    assert got.tensor("a").file == "model.safetensors"


def test_package(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    for component in ("encoder", "decoder"):
        (tmp_path / component).mkdir()
        shard(tmp_path / component / "model.safetensors", "w", component)
    (tmp_path / "tokenizer").mkdir()
    got = open_checkpoint(str(tmp_path))
    assert got.problems == []
    assert got.format == "package"
    assert sorted(got.tensors) == ["decoder/decoder", "decoder/w", "encoder/encoder", "encoder/w"]
    w = got.tensor("encoder/w")
    assert (w.name, w.component, w.file) == ("w", "encoder", "encoder/model.safetensors")
    assert got.path(w.file) == str(tmp_path / "encoder" / "model.safetensors")


@pytest.mark.parametrize(
    "text, code, severity",
    [
        ('{"a": Infinity}', "non-json-number", "warning"),
        ('{"a": NaN}', "non-json-number", "warning"),
        ('{"a": 1, "a": 2}', "duplicate-key", "error"),
        ('{"b": {"a": 1, "a": 2}}', "duplicate-key", "error"),
        ("[]", "bad-config", "error"),
        ("{", "bad-config", "error"),
        ('{"a": ' + "9" * 5000 + "}", "bad-config", "error"),
        ("\ufeff{}", "bad-config", "error"),
        ("[" * 100_000, "bad-config", "error"),
    ],
)
def test_config(text: str, code: str, severity: str, model: Path) -> None:
    (model / "config.json").write_text(text, encoding="utf-8")
    got = open_checkpoint(str(model))
    assert noted(got) == {code: severity}
    assert (got.config == {}) == (severity == "error")
    assert exit_code(got.problems) == (3 if severity == "error" else 0)


def test_generation_config(model: Path) -> None:
    (model / "generation_config.json").write_text('{"image_generation": {"cfg": 4.0}}')
    assert open_checkpoint(str(model)).generation_config == {"image_generation": {"cfg": 4.0}}


@pytest.mark.parametrize(
    "source, error",
    [
        ("absent/model.safetensors", SourceNotFound),
        ("./owner/name", SourceNotFound),
        ("/nowhere", SourceNotFound),
        ("", SourceNotFound),
        ("a\0b", SourceNotFound),
        ("owner/name", Unsupported),
        ("owner/name@main", Unsupported),
        ("hf://owner/name", Unsupported),
        ("s3://bucket/x", Unsupported),
        ("-", UsageProblem),
    ],
)
def test_other_sources(source: str, error: type[Exception], tmp_path: Path,
                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(error):
        open_checkpoint(source, local=True)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"no \.safetensors"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08")
    assert open_checkpoint(str(tmp_path)).format == "onnx"
    assert exit_code(open_checkpoint(str(tmp_path / "m.onnx")).problems) == 3


def test_several_indexes_are_ambiguous(tmp_path: Path) -> None:
    shard(tmp_path / ONE, "a")
    for name in ("a.safetensors.index.json", "b.safetensors.index.json"):
        index(tmp_path / name, {"a": ONE})
    with pytest.raises(UsageProblem, match="several"):
        open_checkpoint(str(tmp_path))
    assert len(open_checkpoint(str(tmp_path / "a.safetensors.index.json")).tensors) == 1


def test_pipe_in_the_folder_does_not_hang(model: Path) -> None:
    (model / TWO).unlink()
    os.mkfifo(model / TWO)
    assert errors(open_checkpoint(str(model))) == [("not-regular-file", TWO, None)]
