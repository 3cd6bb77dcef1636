"""export-component of the tiny Qwen4-Exp checkpoints: the packages run, and say what they are.

Numbers like Q32 are those of docs/qwen4-exp.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..conftest import Ended
from ..families.qwen4_exp.package_runs import (
    TOLERANCE,
    Packaged,
    beginning,
    deviation,
    farthest,
    golden,
    plain_positions,
)

CASES = Path(__file__).parents[1] / "data" / "qwen4-exp"
MADE: dict[tuple[str, ...], Path] = {}
FP8 = ("text-fp8", "--text-only")
HALF = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}

Export = Callable[..., Path]


@pytest.fixture
def exported(ntool: Callable[..., Ended], tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The package of a case with options, made once. Read only."""

    def get(case: str, *options: str) -> Path:
        key = (case, *options)
        if key not in MADE:
            folder = tmp_path_factory.mktemp("qwen4-exp") / "pkg"
            ntool("export-component", CASES / case, "-o", folder, *options)
            MADE[key] = folder
        return MADE[key]

    return get


def manifest_of(package: Path) -> dict[str, Any]:
    return json.loads((package / "package.json").read_text())


# -- packages run ---------------------------------------------------------------------------------


def test_left_padding(exported: Export) -> None:
    """Rows of 19 and 12 tokens; values at padding are nobody's business (Q14, Q15)."""
    p = Packaged(exported("text"))
    g, steps = golden("text", "leftpad_prefill"), golden("text", "leftpad_decode")
    mask = g["attention_mask"]
    out = p.call(g["input_ids"], mask, g["position_ids"], p.start(2))
    assert all(np.isfinite(v).all() for v in out.values())
    for step in range(4):
        want = g if step == 0 else beginning(steps, f"step{step}.")
        if step:
            mask = want["attention_mask"]
            out = p.call(want["input_ids"], mask, want["position_ids"], p.after(out))
        for name, array in want.items():
            if name not in out:
                continue
            found, real = out[name], mask.astype(bool)
            if name == "logits":
                real = real[:, -array.shape[1] :]
                found, array = found[real], array[real]
            elif array.ndim == 4 and name.endswith((".key", ".value")):
                found, array = (v.transpose(0, 2, 1, 3)[real] for v in (found, array))
            elif name.endswith(".index_key"):
                found, array = found[real], array[real]
            assert deviation(found, array, 1e-3) < 0.05, (step, name)


def test_text_prefill_and_six_steps_from_the_manifest_alone(exported: Export) -> None:
    """Q36."""
    p = Packaged(exported("text"))
    g, steps = golden("text", "prefill"), golden("text", "decode")
    out = p.call(g["input_ids"], g["attention_mask"], g["position_ids"], p.start(1))
    assert farthest(out, g, 1e-3) < (0.05, "")
    token = out["logits"][:, -1].argmax(-1)
    for step in range(1, 7):
        want = beginning(steps, f"step{step}.")
        assert token == want["input_ids"][0]  # greedy
        ids = token[:, None]
        out = p.call(ids, want["attention_mask"], want["position_ids"], p.after(out))
        assert farthest(out, want, 1e-3) < (0.05, "")
        token = out["logits"][:, -1].argmax(-1)


@pytest.mark.parametrize("dtype", list(HALF))
def test_each_type_against_its_own_golden(exported: Export, dtype: str) -> None:
    """Measured: 0.002 (f32), 0.26 (f16), 3e-5 (bf16) of the tolerance."""
    p = Packaged(exported("text-half", "--dtype", dtype))
    ids, g = golden("text-half", "inputs")["input_ids"], golden("text-half", HALF[dtype])
    count, tolerance = ids.shape[1], TOLERANCE[p.dtype]
    out = p.call(ids, np.ones_like(ids), plain_positions(0, count), p.start(1))
    assert farthest(out, beginning(g, "prefill."), tolerance) < (0.5, "")
    for step in range(1, 4):
        token, at = g[f"step{step}.input_ids"], count + step
        mask = np.ones((1, at), np.int64)
        out = p.call(token, mask, plain_positions(at - 1, 1), p.after(out))
        assert farthest(out, beginning(g, f"step{step}."), tolerance) < (0.5, "")


def test_the_fused_experts_give_the_same_numbers(exported: Export) -> None:
    """Q24: one operator a layer in place of the Scan, the same interface."""
    package = exported("text", "--ep", "cpu")
    assert manifest_of(package)["cache"] == manifest_of(exported("text"))["cache"]
    p, g = Packaged(package), golden("text", "prefill")
    out = p.call(g["input_ids"], g["attention_mask"], g["position_ids"], p.start(1))
    assert farthest(out, g, 1e-3) < (0.05, "")


@pytest.mark.parametrize(
    ("options", "reading", "other"),
    [((), "exact", "bf16"), (("--scale-reading", "bf16"), "bf16", "exact"),
     (("--dequantize",), "bf16", "exact")],
)  # fmt: skip
def test_fp8_codes_stay_or_are_multiplied_out(
    exported: Export, options: tuple[str, ...], reading: str, other: str
) -> None:
    """Q42: kept codes give the exact products or their BF16 reading, dense weights the latter."""
    p = Packaged(exported(*FP8, *options))
    g = golden("text-fp8", "prefill")
    out = p.call(g["input_ids"], g["attention_mask"], g["position_ids"], p.start(1))
    assert farthest(out, beginning(g, f"{reading}."), 1e-3) < (0.05, "")
    assert farthest(out, beginning(g, f"{other}."), 1e-3) > (10, "")
    for step in (1, 2):
        token, at = g[f"{reading}.step{step}.input_ids"], 18 + step
        assert token == out["logits"][0, -1].argmax()
        mask = np.ones((1, at), np.int64)
        out = p.call(token, mask, plain_positions(at - 1, 1), p.after(out))
        assert farthest(out, beginning(g, f"{reading}.step{step}."), 1e-3) < (0.05, "")


def test_two_pictures_and_steps_without_them(exported: Export) -> None:
    p = Packaged(exported("image-text"))
    g, steps = golden("image-text", "prefill"), golden("image-text", "decode")
    pictures = {k: g[k] for k in ("pixel_values", "image_grid_thw")}
    features = p.run("vision_encoder", pictures)["image_features"]
    assert deviation(features, g["image_features"], 1e-3) < 0.05
    embeds = p.embedded(g["input_ids"], features)
    assert deviation(embeds, g["inputs_embeds"], 1e-3) < 0.05
    where = g["attention_mask"], g["position_ids"]
    out = p.call(g["input_ids"], *where, p.start(1), embeds)
    assert farthest(out, g, 1e-3) < (0.05, "")
    for step in range(1, 5):  # the token of the last one is that of images
        want = beginning(steps, f"step{step}.")
        where = want["attention_mask"], want["position_ids"]
        out = p.call(want["input_ids"], *where, p.after(out))
        assert farthest(out, want, 1e-3) < (0.05, "")


def test_the_text_model_of_a_composite(exported: Export) -> None:
    """Q10: the decoder alone, with token ids as its input."""
    package = exported("image-text", "--text-only")
    assert list(manifest_of(package)["components"]) == ["decoder"]
    p, g = Packaged(package), golden("image-text", "text_only_prefill")
    out = p.call(g["input_ids"], g["attention_mask"], g["position_ids"], p.start(1))
    assert farthest(out, g, 1e-3) < (0.05, "")


def test_features_of_the_two_gelus(exported: Export) -> None:
    p, g = Packaged(exported("vision-gelu")), golden("vision-gelu", "prefill")
    pictures = {k: g[k] for k in ("pixel_values", "image_grid_thw")}
    features = p.run("vision_encoder", pictures)["image_features"]
    assert deviation(features, g["image_features"], 1e-3) < 0.1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_pictures_in_sixteen_bits_run_on_the_cpu(exported: Export, dtype: str) -> None:
    """There is no golden of them: finite, and nearer to float32 than to nothing."""
    p, g = Packaged(exported("image-text", "--dtype", dtype)), golden("image-text", "prefill")
    pictures = {k: g[k] for k in ("pixel_values", "image_grid_thw")}
    features = p.run("vision_encoder", pictures)["image_features"]
    wanted = g["image_features"]
    assert np.abs(features.astype(np.float32) - wanted).max() < 0.05 * np.abs(wanted).max()
    embeds = p.embedded(g["input_ids"], features)
    out = p.call(g["input_ids"], g["attention_mask"], g["position_ids"], p.start(1), embeds)
    assert out["logits"].dtype == features.dtype
    assert np.isfinite(out["logits"].astype(np.float32)).all()
