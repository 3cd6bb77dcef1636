"""Words and paths that were meant."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from ntool.lib import demo
from ntool.lib.errors import Unsupported
from ntool.lib.numeric import convert
from ntool.lib.suggestions import did_you_mean, near_path, nearest

from .conftest import Ended

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


@pytest.mark.parametrize(
    ("word", "meant"), [("pgk", "pkg"), ("pk", "pkg"), ("pka", "pkg"), ("p", None)]
)
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


# -- in commands ----------------------------------------------------------------------------------

CHECKPOINT = ("export-component", "demo:shapes", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("census", "demo:shape"), 4, "did you mean 'demo:shapes'?"),
        ((*CHECKPOINT, "decodr"), 4, "did you mean 'decoder'?"),
        ((*CHECKPOINT, "--set", "embeding=f32"), 4, "did you mean 'embedding'?"),
        (("census", "demo:shapes", "--by", "famly"), 2, "did you mean 'family'?"),
        (("census", "demo:shapes", "--as-dtype", "bf61"), 2, "did you mean 'BF16'?"),
        (("run-prefill", "PKG", "--prompt", "x", "--task", "caht"), 2, "did you mean 'chat'?"),
        (("run-prefill", "PKG", "--prompt-file", "word.txt"), 4, "did you mean 'words.txt'?"),
        (("run-prefill", "PKG", "--prompt", "x", "--image", "a.pgn"), 4, "did you mean 'a.png'?"),
        (("run-prefill", "PKG/decodr", "--prompt", "x"), 4, "did you mean 'PKG/decoder'?"),
        (("run-prefill", "PKG/decoder", "--prompt", "x"), 4, "give the package itself: PKG"),
        (("sample-image", "PKG/package.json", "--prompt", "x", "-o", "y.png"), 4,
         "give the package itself: PKG"),
        (("inspect-headers", "PKG/decoder/model.onx"), 4,
         "did you mean 'PKG/decoder/model.onnx'?"),
        (("census", "demo:shapes", "--expect", "wrods.txt"), 4, "did you mean 'words.txt'?"),
        (("export-component", "PKG", "-o", "x"), 5, "ntool verify-package PKG checks it"),
        (("export-component", "PKG/decoder/model.onnx", "-o", "x"), 4,
         "this is a graph already; ntool verify-package checks graphs"),
        (("verify-package", "PKG", "--against", "PKG"), 5,
         "give the checkpoint that it was made of"),
        (("convert-fp8", "PKG", "-o", "x"), 5, "give the checkpoint that it was made of"),
        (("convert-experts", "PKG", "--to", "split", "-o", "x"), 5,
         "give the checkpoint that it was made of"),
        (("export-component", "bare", "-o", "x"), 4,
         "copy the tokenizer's files of the model into the checkpoint's folder"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else str(v)[:12],
)  # fmt: skip
def test_hints(
    arguments: tuple[str, ...], code: int, hint: str, ntool: Callable[..., Ended],
    demo_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PKG").symlink_to(demo_package)
    (tmp_path / "words.txt").write_text("x")
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    shutil.copytree(demo.path("shapes"), tmp_path / "bare", ignore=lambda *_: ["vocab.json"])
    done = ntool(*arguments, code=code)
    *_, message, told = done.err.splitlines()
    assert told == f"hint: {hint}" and message.startswith("ntool ")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("inspect-headers", "demo:shapes"), "--include"),
        (("inspect-headers", "demo:shapes"), "--exclude"),
        (("convert-fp8", "demo:shapes", "-o", "x", "--dry-run"), "--exclude"),
        (("convert-fp8", "demo:shapes", "-o", "x", "--dry-run"), "--allow-unscaled"),
    ],
)
def test_patterns_that_match_nothing(
    arguments: tuple[str, ...], option: str, ntool: Callable[..., Ended]
) -> None:
    name = "language_model.lm_head.wieght"
    done = ntool(*arguments, option, name)
    note = f"{option} '{name}' matches no tensor; did you mean 'language_model.lm_head.weight'?"
    assert f"ntool {arguments[0]}: {note}\n" in done.err
    assert f"{option} 'x*' matches no tensor\n" in ntool(*arguments, option, "x*").err
    assert "matches no" not in ntool(*arguments, option, "*lm_head*").err
    assert ntool(*arguments, option, name, "-q").err == ""


def test_a_type_that_needs_another_command() -> None:
    with pytest.raises(Unsupported) as e:
        convert.check("F8_E4M3", "F32", "model.safetensors: tensor 'a'")
    assert e.value.hint == "ntool convert-fp8 SOURCE -o DIR --to bf16 makes dense weights of FP8"
    with pytest.raises(Unsupported) as e:
        convert.check("I64", "F32", "model.safetensors: tensor 'a'")
    assert e.value.hint is None


def test_a_check_that_fails_says_what_helps(
    ntool: Callable[..., Ended], demo_package: Path, tmp_path: Path
) -> None:
    package = tmp_path / "a pkg"
    shutil.copytree(demo_package, package)
    with open(package / "embedding" / "model.safetensors", "ab") as f:
        f.write(b"0")
    done = ntool("verify-package", package, "--no-run", code=1)
    hint = f"hint: ntool verify-package '{package}' --compact OUT writes it without them"
    assert done.err.splitlines()[1:] == [hint]
    (package / "package.json").write_text("{}")
    assert "hint" not in ntool("verify-package", package, "--check", "layout.schema", code=1).err
