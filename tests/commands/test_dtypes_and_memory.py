"""16-bit components: what may be exported, how close they come, and what memory a run is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from ntool.lib.runtime import memory

from ..families.neo_chat.golden_cases import DATA

PROMPT = "a large red circle on a white background"
HALF = ["--set", "vision_encoder=f16", "--set", "embedding=f16", "--set", "decoder=f16"]
PICTURE = Path(__file__).parents[1] / "data" / "demo-shapes" / "goldens" / "vqa_0.png"


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ..conftest import run_ntool

    folder = tmp_path_factory.mktemp("half") / "pkg"
    done = run_ntool("export-component", "demo:shapes", "-o", folder, *HALF)
    assert done.code == 0, done.err
    return folder


def test_f16_understanding_is_close_to_f32(demo_package, half, tmp_path, ntool) -> None:
    """Logits and caches within 2e-2 relative (norm of the difference over the norm)."""
    options = ["--prompt", "what shape is it?", "--image", PICTURE, "--all-logits", "-o"]
    ntool("run-prefill", demo_package, *options, tmp_path / "full")
    ntool("run-prefill", half, *options, tmp_path / "half")
    a, b = load_file(tmp_path / "full"), load_file(tmp_path / "half")
    worst = {}
    for name, value in a.items():
        if value.dtype != np.float32:
            np.testing.assert_array_equal(value, b[name])
            continue
        assert b[name].dtype == (np.float32 if name == "logits" else np.float16)
        x = b[name].astype(np.float64)
        worst[name] = float(np.linalg.norm(x - value) / np.linalg.norm(value))
    print({k: f"{v:.2e}" for k, v in worst.items()})
    assert max(worst.values()) < 2e-2


def test_mixed_f16_decoder_and_f32_denoiser_give_the_picture(
    demo_package, half, tmp_path, ntool
) -> None:
    pictures = []
    for package in (demo_package, half):
        out = tmp_path / f"{len(pictures)}.png"
        ntool("sample-image", package, "--prompt", PROMPT, "-o", out)
        pictures.append(np.asarray(Image.open(out)).astype(np.float64))
    error = np.sqrt(np.mean((pictures[0] - pictures[1]) ** 2))
    psnr = 20 * np.log10(255 / error) if error else np.inf
    print(f"PSNR {psnr:.1f} dB")
    assert psnr > 30
    assert ntool("verify-package", half, "--against", "demo:shapes").code == 0
    manifest = json.loads((half / "package.json").read_text())
    casts = {e.get("cast") for e in manifest["workflow"]["edges"] if "denoiser.past" in e["to"]}
    assert casts == {"float32"}


def test_an_f16_prefix_file_feeds_the_f32_denoiser(half, tmp_path, ntool) -> None:
    cond, uncond = tmp_path / "cond", tmp_path / "uncond"
    ntool("run-prefill", half, "--task", "text-to-image", "--prompt", PROMPT, "-o", cond)
    ntool("run-prefill", half, "--task", "unconditional", "-o", uncond)
    assert load_file(cond)["past.0.key"].dtype == np.float16
    files = ["--prefix", cond, "--prefix-unconditional", uncond]
    ntool("sample-image", half, *files, "-o", tmp_path / "a.png")
    ntool("sample-image", half, "--prompt", PROMPT, "-o", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("name", ["dense-mlp", "moe-mlp"])
def test_f16_of_other_backbones_runs(tmp_path, ntool, name: str) -> None:
    source = DATA / name / "checkpoint"
    ntool("export-component", source, "-o", tmp_path / "half", *HALF)
    ntool("export-component", source, "-o", tmp_path / "full")
    tokens = ["--tokens", ",".join(map(str, range(1, 30))), "-o"]
    ntool("run-prefill", tmp_path / "half", *tokens, tmp_path / "a")
    ntool("run-prefill", tmp_path / "full", *tokens, tmp_path / "b")
    a, b = load_file(tmp_path / "a")["logits"], load_file(tmp_path / "b")["logits"]
    assert np.linalg.norm(a - b) < 2e-2 * np.linalg.norm(b)


def test_range_statistics_are_in_the_report(half) -> None:
    report = json.loads((half / "weight-loading-report.json").read_text())
    ranges = [t["range"] for row in report["tensors"] for t in row["targets"] if "range" in t]
    assert len(ranges) == 72  # every BF16 tensor of the checkpoint
    assert all(r.keys() == {"largest", "flushed_to_zero", "subnormal"} for r in ranges)
    assert max(r["largest"] for r in ranges) > 0.1


def test_bf16_is_exported_and_has_no_kernel_on_cpu(tmp_path, ntool) -> None:
    ntool("export-component", "demo:shapes", "--dtype", "bf16", "-o", tmp_path / "pkg")
    assert ntool("verify-package", tmp_path / "pkg", "--no-run").code == 0
    done = ntool("run-prefill", tmp_path / "pkg", "--prompt", "x", code=6)
    assert "no kernel here for" in done.err and "at node" in done.err and "cuda" in done.err
    report = json.loads((tmp_path / "pkg" / "weight-loading-report.json").read_text())
    assert report["counts"]["copied"] == 72 and report["counts"]["converted"] == 82


def test_cuda_takes_the_checkpoints_own_type_but_for_generation(tmp_path, ntool) -> None:
    ntool("export-component", "demo:shapes", "--ep", "cuda", "-o", tmp_path / "pkg")
    manifest = json.loads((tmp_path / "pkg" / "package.json").read_text())
    types = {k: c["weight_dtype"] for k, c in manifest["components"].items()}
    assert types["image_gen_denoiser"] == types["image_gen_embedding"] == "float32"
    assert {c["execution_provider"] for c in manifest["components"].values()} == {"cuda"}


@pytest.mark.parametrize("part", ["image_gen_denoiser", "image_gen_embedding"])
def test_f16_generation_is_refused_and_forced_only_on_record(tmp_path, ntool, part: str) -> None:
    options = ["demo:shapes", "-o", tmp_path / "pkg", "--set", f"{part}=f16"]
    done = ntool("export-component", *options, code=5)
    assert part in done.err and "NaN" in done.err and "--force-f16" in done.err
    ntool("export-component", *options, "--force-f16")
    manifest = json.loads((tmp_path / "pkg" / "package.json").read_text())
    assert manifest["components"][part]["forced_f16"] is True
    done = ntool("verify-package", tmp_path / "pkg", "--no-run", code=1)
    failed = {r["id"] for r in done.of("check") if r["ok"] is False}
    assert failed == {"dtype.policy"}


WRONG = [
    (["--dtype", "f8"], 2, "f8"),
    (["--set", "decoder"], 2, "COMPONENT=DTYPE"),
    (["--set", "brain=f32"], 4, "brain"),
    (["--set", "decoder=f8"], 2, "f8"),
    (["--ep", "tpu"], 2, "tpu"),
]


@pytest.mark.parametrize(("options", "code", "words"), WRONG)
def test_wrong_types(tmp_path, ntool, options, code: int, words: str) -> None:
    done = ntool("export-component", "demo:shapes", "-o", tmp_path / "p", *options, code=code)
    assert words in done.err


def test_the_plan_says_what_a_run_needs(demo_package, tmp_path, ntool) -> None:
    options = ["--prompt", "x", "-o", tmp_path / "p.png", "--plan"]
    small = ntool("sample-image", demo_package, *options)
    large = ntool("sample-image", demo_package, *options, "--size", "1024x1024")
    assert not (tmp_path / "p.png").exists()
    peaks = [done.of("summary")[0]["peak"] for done in (small, large)]
    assert 0 < peaks[0] < peaks[1]
    phases = {r["phase"] for r in small.of("memory")}
    assert phases == {"prefill", "sampling"}


def test_a_run_that_cannot_fit_is_refused_before_it_starts(
    demo_package, tmp_path, ntool, monkeypatch
) -> None:
    options = ["--prompt", "x", "-o", tmp_path / "p.png"]
    monkeypatch.setattr(memory, "available", lambda device: 1_000_000)
    done = ntool("sample-image", demo_package, *options, code=6)
    assert "1,000,000 available" in done.err and "smaller --size" in done.err
    monkeypatch.setattr(memory, "available", lambda device: 10_000)
    assert "memory" in ntool("run-prefill", demo_package, "--prompt", "x", code=6).err
    ntool("sample-image", demo_package, *options, "--plan")  # the plan itself is not refused


def test_memory_too_short_for_rearranged_weights_is_enough(
    demo_package, tmp_path, ntool, monkeypatch
) -> None:
    options = ["--prompt", "x", "-o", tmp_path / "p.png", "--steps", 32]
    peak = ntool("sample-image", demo_package, *options, "--plan").of("summary")[0]["peak"]
    monkeypatch.setattr(memory, "available", lambda device: peak - 1)
    done = ntool("sample-image", demo_package, *options)
    assert "they stay in their files" in done.err
    monkeypatch.setattr(memory, "available", lambda device: peak)
    options[3] = tmp_path / "q.png"
    assert "in their files" not in ntool("sample-image", demo_package, *options).err


def test_sizes_beyond_all_memory_are_refused_at_once(demo_package, tmp_path, ntool) -> None:
    options = ["--prompt", "x", "-o", tmp_path / "p.png", "--size", "99968x99968"]
    done = ntool("sample-image", demo_package, *options, code=6)
    assert "smaller --size" in done.err
    many = ",".join(["5"] * 60000)
    assert "shorter prompt" in ntool("run-prefill", demo_package, "--tokens", many, code=6).err
