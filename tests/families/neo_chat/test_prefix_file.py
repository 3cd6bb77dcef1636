"""Prefix files that somebody changed: refused by name before anything is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ntool.lib.errors import InputError
from ntool.lib.families.neo_chat.prefix_file import check_positions


@pytest.fixture(scope="module")
def made(demo_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ...conftest import run_ntool

    path = tmp_path_factory.mktemp("prefix") / "cond"
    options = ["--task", "text-to-image", "--prompt", "a circle", "-o", path]
    done = run_ntool("run-prefill", demo_package, *options)
    assert done.code == 0, done.err
    return path


def changed(made: Path, target: Path, arrays: dict[str, Any], words: dict[str, Any]) -> Path:
    """The file with some tensors (None: left out) and metadata fields in place of its own."""
    with safe_open(made, "np") as f:
        old = json.loads(f.metadata()["ntool"])
    tensors = {k: v for k, v in {**load_file(made), **arrays}.items() if v is not None}
    kept = {k: v for k, v in {**old, **words}.items() if v != "LEFT OUT"}
    save_file(tensors, target, metadata={"ntool": json.dumps(kept)})
    return target


def first(array: np.ndarray, value: Any, at: tuple[int, ...] = (0, 0)) -> np.ndarray:
    out = array.copy()
    out[at] = value
    return out


TENSORS = [
    ("position_ids", lambda a: first(a, 2**63 - 1, (0, -1)), "2^31-1"),
    ("position_ids", lambda a: first(a, -(2**63), (0, -1)), "2^31-1"),
    ("position_ids", lambda a: first(a, -1, (1, 2)), "2^31-1"),
    ("position_ids", lambda a: first(a, 2**31 - 1, (0, -1)), "time of token"),
    ("position_ids", lambda a: first(a, 7, (0, 0)), "time of the first token"),
    ("position_ids", lambda a: a[:, ::-1].copy(), "time of"),
    ("position_ids", lambda a: first(a, 3, (2, 1)), "row and column of token 1"),
    ("position_ids", lambda a: a.astype(np.int32), "expected I64 [3, "),
    ("position_ids", lambda a: a[:2], "expected I64 [3, "),
    ("position_ids", lambda a: None, "'position_ids' is missing"),
    ("token_ids", lambda a: first(a, -1), "tensor 'token_ids': found -1, expected 0.."),
    ("token_ids", lambda a: first(a, 10**6), "found 1000000"),
    ("token_ids", lambda a: a[0], "expected I64 [1, S]"),
    ("token_ids", lambda a: a[:, :0], "expected I64 [1, S]"),
    ("token_ids", lambda a: a.astype(np.float32), "expected I64 [1, S]"),
    ("past.0.key", lambda a: first(a, np.nan, (0, 0, 0, 0)), "1 of "),
    ("past.1.value", lambda a: first(a, np.inf, (0, 0, 0, 0)), "1 of "),
    ("past.1.value", lambda a: a[:, :, 1:], "expected F32 [1, "),
    ("past.0.key", lambda a: a.astype(np.float16), "found F16"),
    ("past.0.key", lambda a: None, "'past.0.key' is missing"),
]


@pytest.mark.parametrize(("name", "change", "words"), TENSORS)
def test_changed_tensors(demo_package, made, tmp_path, ntool, name, change, words: str) -> None:
    path = changed(made, tmp_path / "p", {name: change(load_file(made)[name])}, {})
    done = refused(ntool, demo_package, path, tmp_path)
    assert name in done and words in done, done


ODD = [None, True, 3, -1, 1.5, "", "x", [], ["x"], {}, [[1]], [[0, 1]], "\ud800", 2**70]
FINE = {
    "task": [],
    "prompt": ["", "x"],
    "query": ["", "x", None],
    "think": [True],
    "text_length": [],
    "sizes": [[]],
    "package": [],
    "thought": ["", "x"],
}


@pytest.mark.parametrize("key", FINE)
def test_changed_metadata(demo_package, made, tmp_path, ntool, key: str) -> None:
    required = [] if key == "thought" else ["LEFT OUT"]
    for value in [*ODD, *required]:
        if any(value == v and type(value) is type(v) for v in FINE[key]):
            continue
        path = changed(made, tmp_path / "p", {}, {key: value})
        done = refused(ntool, demo_package, path, tmp_path)
        assert f"{path}: " in done and key in done, (value, done)


def test_an_edit_needs_the_size_of_its_picture(demo_package, made, tmp_path, ntool) -> None:
    path = changed(made, tmp_path / "p", {}, {"task": "image-edit"})
    assert "sizes" in refused(ntool, demo_package, path, tmp_path)


def test_extra_tensors_are_never_read(demo_package, made, tmp_path, ntool) -> None:
    path = changed(made, tmp_path / "p", {"extra": np.zeros((2**40, 0, 2**22), np.int8)}, {})
    out = tmp_path / "p.png"
    options = ["--prefix", path, "--cfg", 1, "--steps", 1, "--size", "32x32", "-o", out]
    ntool("sample-image", demo_package, *options)
    assert out.exists()


def refused(ntool, package: Path, prefix: Path, tmp_path: Path) -> str:
    options = ["--prefix", prefix, "--cfg", 1, "-o", tmp_path / "p.png", "--quiet"]
    done = ntool("sample-image", package, *options, code=3)
    assert not done.of("step") and not (tmp_path / "p.png").exists()
    assert done.err.count("\n") == 1
    return done.err


def test_positions_of_pictures() -> None:
    """Context tokens share a time; what follows `<img>` is two later."""
    context = np.array([False, False, True, True, False])
    p = np.array([[0, 1, 2, 2, 3], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
    check_positions(p, context, "f")
    p[0, 2:] += 1
    check_positions(p, context, "f")
    for at, value in (((0, 4), 3), ((0, 1), 0), ((0, 3), 2), ((1, 4), 1)):
        with pytest.raises(InputError, match="position_ids"):
            check_positions(first(p, value, at), context, "f")
