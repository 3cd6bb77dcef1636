"""export-component of a repository on a loopback Hub: the package of the folder, streamed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from ntool.lib.checkpoint.kept_open import LEAST, MOST, Growing

from ..checkpoint.loopback_hub import LoopbackHub, commit_of
from ..conftest import Ended, run_ntool
from ..fp8.checkpoints import read, write

CASES = Path(__file__).parents[1] / "data"
Run = Callable[..., Ended]


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as server:
        server.add("org/fp8", CASES / "qwen4-exp" / "text-fp8")
        server.add("org/pictures", CASES / "qwen4-exp" / "image-text")
        server.add("org/neo", CASES / "neo-chat" / "dense-conv" / "checkpoint")
        server.repositories["org/fp8"].revisions["v1"] = commit_of("v1")
        yield server


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path) -> Run:
    def run(*arguments: object) -> Ended:
        settings = {"HF_TOKEN": "", "HF_HUB_OFFLINE": ""}
        env = {**hub.environment(tmp_path / "home"), **settings}
        return run_ntool("export-component", *arguments, env=env, cwd=tmp_path, timeout=60)

    return run


def content(package: Path) -> dict[str, Any]:
    """Every file of a package; JSON and graphs without where they come from."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in package.rglob("*") if p.is_file()):
        name, raw = str(path.relative_to(package)), path.read_bytes()
        if name in ("package.json", "weight-loading-report.json"):
            value = json.loads(raw)
            del value["source"]
            found[name] = value
        elif path.suffix == ".onnx":
            model = onnx.load_from_string(raw)
            kept = [p for p in model.metadata_props if not p.key.startswith("ntool.source")]
            del model.metadata_props[:]
            model.metadata_props.extend(kept)
            found[name] = model.SerializeToString(deterministic=True)
        else:
            found[name] = raw
    return found


@pytest.mark.parametrize(
    ("name", "folder", "options"),
    [
        ("org/fp8", "qwen4-exp/text-fp8", ("--text-only",)),
        ("org/fp8", "qwen4-exp/text-fp8", ("--text-only", "--dequantize")),
        ("org/pictures", "qwen4-exp/image-text", ()),
        ("org/neo", "neo-chat/dense-conv/checkpoint", ()),
    ],
)
def test_the_package_of_the_folder(
    name: str, folder: str, options: tuple[str, ...], run: Run, hub: LoopbackHub, tmp_path: Path
) -> None:
    assert run(CASES / folder, "-o", "here", *options).code == 0
    done = run(name, "-o", "there", *options)
    assert done.code == 0, done.err
    assert content(tmp_path / "here") == content(tmp_path / "there")
    sizes = [p.stat().st_size for p in (CASES / folder).iterdir() if p.is_file()]
    assert hub.sent < 4 * sum(sizes) + 100_000
    assert not any((tmp_path / "home").rglob("*.safetensors"))
    assert {p.name for p in tmp_path.iterdir()} <= {"here", "there", "home"}


@pytest.mark.parametrize("arguments", [("org/fp8@v1",), ("org/fp8", "--revision", "v1")])
def test_a_revision_is_passed_on(arguments: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    """Q34, Q43: what was asked for, and the commit that it stands for."""
    done = run(*arguments, "-o", "pkg", "--text-only")
    assert done.code == 0, done.err
    source = json.loads((tmp_path / "pkg" / "package.json").read_text())["source"]
    assert source["requested_revision"] == "v1"
    assert source["resolved_revision"] == commit_of("v1")
    graph = onnx.load(tmp_path / "pkg" / "decoder" / "model.onnx", load_external_data=False)
    found = {p.key: p.value for p in graph.metadata_props}
    assert found["ntool.source_revision"] == "v1"
    assert found["ntool.semantic_reference_revision"] == "5.24.0"


def test_without_a_revision_it_is_the_hubs_own(run: Run, tmp_path: Path) -> None:
    """Q43."""
    assert run("org/fp8", "-o", "pkg", "--text-only").code == 0
    source = json.loads((tmp_path / "pkg" / "package.json").read_text())["source"]
    assert source["requested_revision"] == "unpinned"
    assert source["resolved_revision"] == commit_of("main")


@pytest.mark.parametrize("options", [(), ("--dequantize",)])
def test_a_scale_that_is_no_number_ends_it(
    options: tuple[str, ...], run: Run, hub: LoopbackHub, tmp_path: Path
) -> None:
    """Q39: nothing is left."""
    case = CASES / "qwen4-exp" / "text-fp8"
    files, config = read(case), json.loads((case / "config.json").read_text())
    name = "model.language_model.layers.2.mlp.experts.1.up_proj.weight_scale_inv"
    tensors = next(t for t in files.values() if name in t)
    tensors[name] = ("BF16", np.full((2, 2), np.nan, ml_dtypes.bfloat16))
    hub.add("org/nan", write(tmp_path / "source", files, config))
    done = run("org/nan", "-o", "pkg", "--text-only", *options)
    assert done.code == 3 and name in done.err and "finite" in done.err
    shutil.rmtree(tmp_path / "source")
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == []


class Counted:
    """A remote file of known bytes that counts its requests."""

    def __init__(self, nbytes: int) -> None:
        self.raw = np.random.default_rng(0).bytes(nbytes)
        self.nbytes, self.bytes_read, self.asked = nbytes, 0, list[int]()

    def read(self, offset: int, count: int) -> bytes:
        self.asked.append(count)
        return self.raw[offset : offset + count]

    def unchanged(self) -> bool:
        return True


def test_reading_on_fetches_more_at_once() -> None:
    remote = Counted(40 << 20)
    file = Growing(remote, [])
    step = 1 << 18
    read_back = b"".join(file.read(at, step) for at in range(0, remote.nbytes, step))
    assert read_back == remote.raw
    assert remote.asked[0] == LEAST and max(remote.asked) == MOST
    assert sum(remote.asked) == remote.nbytes and len(remote.asked) < 12


def test_two_places_read_in_turn_are_fetched_once_each() -> None:
    remote = Counted(16 << 20)
    file = Growing(remote, [])
    for i in range(64):
        assert file.read(200 * i, 200) == remote.raw[200 * i : 200 * (i + 1)]
        at = (8 << 20) + 4096 * i
        assert file.read(at, 4096) == remote.raw[at : at + 4096]
    assert remote.asked == [LEAST, LEAST]


def test_few_places_are_kept_however_many_files_there_are() -> None:
    pieces: list[Any] = []
    files = [Growing(Counted(1 << 20), pieces) for _ in range(40)]
    for file in files:
        file.read(0, 100)
    assert len(pieces) == 8
