from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import run_ntool
from .header_files import index, shard

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A rewritten index that has forgotten the tensors of `mtp`."""
    folder = tmp_path / "model"
    folder.mkdir()
    shard(folder / ONE, "b", "a")
    shard(folder / TWO, "mtp.fc", "c")
    index(folder / INDEX, {"a": ONE, "b": ONE, "c": TWO}, total_size=48)
    return folder


def test_orphans_are_in_the_new_index_and_still_told(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.json"
    done = run_ntool("census", model, "--repair-index", out)
    assert done.code == 0
    assert [p["code"] for p in done.of("problem")] == ["orphan-tensors", "total-size"]
    assert "mtp.fc" in done.of("problem")[0]["message"]
    assert json.loads(out.read_text()) == {
        "metadata": {"total_size": 64},
        "weight_map": {"a": ONE, "b": ONE, "c": TWO, "mtp.fc": TWO},
    }
    [file] = done.of("file")
    assert (file["path"], file["nbytes"]) == (str(out), out.stat().st_size)
    out.replace(model / INDEX)
    again = run_ntool("census", model)
    assert (again.code, again.of("problem")) == (0, [])


def test_a_folder_without_an_index_gets_one(model: Path) -> None:
    (model / INDEX).unlink()
    assert run_ntool("census", model, "--repair-index", model / INDEX).code == 0
    assert len(json.loads((model / INDEX).read_text())["weight_map"]) == 4


def test_over_the_old_one_with_force_alone(model: Path) -> None:
    before = (model / INDEX).read_text()
    refused = run_ntool("census", model, "--repair-index", model / INDEX)
    assert refused.code == 2 and (model / INDEX).read_text() == before
    assert run_ntool("census", model, "--repair-index", model / INDEX, "--force").code == 0
    assert "mtp.fc" in (model / INDEX).read_text()


def test_nothing_is_written_from_what_is_not_known(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.json"
    shard(model / "twice.safetensors", "a")
    done = run_ntool("census", model, "--repair-index", out)
    assert (done.code == 1 and "'a'" in done.err) or "a: in 2 files" in done.err
    (model / "twice.safetensors").write_bytes(b"GGUF" + bytes(100))
    done = run_ntool("census", model, "--repair-index", out)
    assert done.code == 3 and "twice.safetensors" in done.err
    assert not out.exists() and list(tmp_path.glob(".*")) == []


def test_records_have_no_index(model: Path, tmp_path: Path) -> None:
    done = run_ntool("census", "-", "--repair-index", tmp_path / "x", stdin="")
    assert done.code == 2 and "--repair-index" in done.err


def test_a_missing_shard_is_not_repaired_away(model: Path, tmp_path: Path) -> None:
    (model / TWO).unlink()
    out = tmp_path / "new.json"
    done = run_ntool("census", model, "--repair-index", out)
    assert done.code == 3 and TWO in done.err and not out.exists()
