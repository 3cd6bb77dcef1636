"""Words and paths that were meant."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ntool.lib.suggestions import did_you_mean, near_path, nearest

WORDS = ["decoder", "embedding", "vision_encoder", "image_gen_denoiser"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("decodr", "decoder"),
        ("decoderr", "decoder"),
        ("deocder", "decoder"),
        ("DECODER", "decoder"),
        ("embeddings", "embedding"),
        ("image-gen-denoiser", "image_gen_denoiser"),
        ("vision", None),
        ("mtp", None),
        ("decoder", None),  # it is there: spelling is not what is wrong
        ("", None),
        ("d" * 1000, None),
    ],
)
def test_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, WORDS) == meant
    assert did_you_mean(word, WORDS) == (f"did you mean '{meant}'?" if meant else None)


@pytest.mark.parametrize(("word", "meant"), [("pgk", "pkg"), ("pk", "pkg"), ("pka", "pkg"), ("p", None)])
def test_short_words(word: str, meant: str | None) -> None:
    assert nearest(word, ["pkg", "x"]) == meant


def test_among_all_tensors_of_a_large_model() -> None:
    names = [
        f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"
        for layer in range(40)
        for e in range(512)
        for part in ("gate", "up", "down")
    ]
    started = time.perf_counter()
    word = "model.layers.7.mlp.experts.77.gate_porj.weight"
    assert nearest(word, names) == "model.layers.7.mlp.experts.77.gate_proj.weight"
    assert nearest("lm_head.weight", names) is None
    assert time.perf_counter() - started < 5  # 0.1 s here; comparing all by letters takes minutes


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg" / "decoder").mkdir(parents=True)
    (tmp_path / "pkg" / "decoder" / "model.onnx").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    for path, meant in (
        ("pgk", "pkg"),
        ("pgk/", "pkg"),
        ("pgk/decoder", "pkg/decoder"),
        ("pkg/decodr/model.onnx", "pkg/decoder/model.onnx"),
        ("pkg/decoder/model.onx", "pkg/decoder/model.onnx"),
        (f"{tmp_path}/pgk", f"{tmp_path}/pkg"),
    ):
        assert near_path(path) == f"did you mean '{meant}'?"
    for path in ("pkg", "pgk/nothing", "other", "hidden", "", "/", "pkg/decoder/model.onnx/x"):
        assert near_path(path) is None
