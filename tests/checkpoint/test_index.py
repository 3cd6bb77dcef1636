from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from ntool.lib.checkpoint.folder import LocalFolder
from ntool.lib.checkpoint.index import absent_numbers, read_index
from ntool.lib.checkpoint.paths import contained, path_fault

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def read(path: Path, text: str | bytes) -> tuple[dict[str, str], list[str]]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    index = read_index(LocalFolder(str(path.parent)), path.name)
    assert all(p.file == path.name for p in index.problems)
    return index.weight_map, [p.code for p in index.problems if p.severity == "error"]


def test_sound_index(tmp_path: Path) -> None:
    weights = {"b": "2.safetensors", "a": "1.safetensors", "c": "sub/3.safetensors"}
    text = json.dumps({"metadata": {"total_size": 12}, "weight_map": weights})
    path = tmp_path / "model.safetensors.index.json"
    assert read(path, text) == (weights, [])
    index = read_index(LocalFolder(str(path.parent)), path.name)
    assert index.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert index.files == ["2.safetensors", "1.safetensors", "sub/3.safetensors"]
    assert index.total_size == 12
    assert index.nbytes == len(text)


@pytest.mark.parametrize(
    "text, codes",
    [
        ("", ["bad-index"]),
        ("[]", ["bad-index"]),
        ("{}", ["bad-index"]),
        ('{"weight_map": []}', ["bad-index"]),
        ('{"weight_map": {}, "weight_map": {}}', ["duplicate-key"]),
        ('{"weight_map": {"a": "x", "a": "x"}}', ["duplicate-key"]),
        ('{"weight_map": {"a": "x", "b": 3, "c": null}}', ["bad-index", "bad-index"]),
        ('{"weight_map": {"a": "../x", "b": "../x", "c": "/y"}}', ["path-escape", "path-escape"]),
        ('{"weight_map": {}, "metadata": {"n": NaN}}', ["bad-index"]),
        ('{"weight_map": {"\\ud800": "x"}}', ["bad-index"]),
        ("\ufeff{}", ["bad-index"]),
        (b'{"weight_map": {"\xff": "x"}}', ["bad-index"]),
        ("[" * 5000, ["bad-index"]),
    ],
)
def test_faults(text: str | bytes, codes: list[str], tmp_path: Path) -> None:
    assert read(tmp_path / "i.index.json", text)[1] == codes


def test_sound_entries_stay(tmp_path: Path) -> None:
    text = '{"weight_map": {"a": "x.safetensors", "b": 3, "c": "../y"}}'
    assert read(tmp_path / "i.index.json", text)[0] == {"a": "x.safetensors"}


def test_odd_total_size_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "i.index.json"
    path.write_text('{"weight_map": {}, "metadata": {"total_size": "12"}}')
    index = read_index(LocalFolder(str(tmp_path)), path.name)
    assert index.total_size is None
    assert [(p.code, p.severity) for p in index.problems] == [("bad-total-size", "warning")]


@pytest.mark.parametrize(
    "value",
    ["", "/a", "../a", "a/../b", "./a", "a//b", "a/", "a\\b", "C:a", "a\0b", "a\nb", "a\x9bb",
     "..", ".", "a/.", "\ud800"],
)  # fmt: skip
def test_paths_refused(value: str) -> None:
    assert path_fault(value)


@pytest.mark.parametrize("value", ["a", "a/b.safetensors", "..a", "a..b", "ä b", "model-1.x"])
def test_paths_taken(value: str) -> None:
    assert path_fault(value) is None


def test_links_may_not_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "model-other").mkdir()
    (tmp_path / "model-other" / "w").write_text("x")
    root = tmp_path / "model"
    root.mkdir()
    (root / "inside").write_text("x")
    (root / "good").symlink_to("inside")
    (root / "file").symlink_to("../secret")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "parent").symlink_to("..")
    (root / "sibling").symlink_to("../model-other")  # the name begins like the folder's own
    (root / "gone").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    good, problem = contained(str(root), "good")
    assert (good, problem) == (str(root / "inside"), None)
    for name in ("file", "absolute", "parent/secret", "sibling/w"):
        problem = contained(str(root), name)[1]
        assert problem is not None and problem.code == "path-escape", name
    for name in ("gone", "loop", "absent"):
        problem = contained(str(root), name)[1]
        assert problem is not None and problem.code == "missing-shard", name
    problem = contained(str(root), "gone")[1]
    assert problem is not None and "nowhere" in problem.message


def test_hub_cache_links_lead_to_its_own_blobs_only(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / COMMIT
    other = tmp_path / "models--org--other" / "blobs"
    for folder in (snapshot, repository / "blobs", repository / "refs", other):
        folder.mkdir(parents=True)
    (repository / "blobs" / "b1").write_text("x")
    (repository / "refs" / "main").write_text("x")
    (other / "b2").write_text("x")
    (snapshot / "good").symlink_to("../../blobs/b1")
    (snapshot / "ref").symlink_to("../../refs/main")
    (snapshot / "other").symlink_to("../../../models--org--other/blobs/b2")
    assert contained(str(snapshot), "good") == (str(repository / "blobs" / "b1"), None)
    for name in ("ref", "other"):
        problem = contained(str(snapshot), name)[1]
        assert problem is not None and problem.code == "path-escape", name
    # the same links where the folder is not named by a commit
    plain = repository / "snapshots" / "main"
    os.rename(snapshot, plain)
    problem = contained(str(plain), "good")[1]
    assert problem is not None and problem.code == "path-escape"


def test_hub_cache_links_lead_to_the_common_store_of_the_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / COMMIT
    blobs, store = tmp_path / "models--org--name" / "blobs", tmp_path / "blobs"
    for folder in (snapshot, blobs, store / "ab"):
        folder.mkdir(parents=True)
    digest = "ab" * 32
    for name in (f"ab/{digest}", "secret", "ab/other"):
        (store / name).write_text("x")
    for name in (f"ab/{digest}", "secret", "ab/other"):
        blob = blobs / name.rpartition("/")[2]
        blob.symlink_to(f"../../blobs/{name}")
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    real = str(store / "ab" / digest)
    problem = contained(str(snapshot), digest)[1]
    assert problem is not None and problem.code == "path-escape"  # not marked as such a store
    (store / ".huggingface-shared-blobs").write_text("1")
    assert contained(str(snapshot), digest) == (real, None)
    for name in ("secret", "other"):
        problem = contained(str(snapshot), name)[1]
        assert problem is not None and problem.code == "path-escape", name


def test_gaps_of_a_numbering() -> None:
    files = ["model-00001-of-00004.safetensors", "model-00003-of-00004.safetensors", "x.bin"]
    assert absent_numbers(files) == [
        "model-00002-of-00004.safetensors",
        "model-00004-of-00004.safetensors",
    ]
    assert absent_numbers(["model.safetensors"]) == []
    both = ["a-00001-of-00001.safetensors", "b-00002-of-00002.safetensors"]
    assert absent_numbers(both) == ["b-00001-of-00002.safetensors"]
