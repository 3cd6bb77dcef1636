from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ntool.lib.numeric.convert import f32_to_bf16

from ..conftest import Ended, run_ntool
from ..fp8 import fp8_files


def dense(folder: Path, tensors: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    fp8_files.write(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "made"}))
    return folder


def bf16(rng: np.random.Generator, *shape: int) -> tuple[str, np.ndarray]:
    return "BF16", f32_to_bf16(rng.standard_normal(shape, np.float32))


def to_fp8(source: Path, out: Path, *more: object) -> Ended:
    done = run_ntool("convert-fp8", source, "-o", out, "--to", "fp8", *more)
    assert (done.code, done.err) == (0, "")
    return done


def values(stored: tuple[str, np.ndarray]) -> np.ndarray:
    kinds = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn}
    dtype, array = stored
    return (array.view(kinds[dtype]) if dtype in kinds else array).astype(np.float32)


def spread(grid: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """The scale of each element of [R, C]."""
    return np.repeat(np.repeat(grid, block[0], 0), block[1], 1)[: shape[0], : shape[1]]


@pytest.mark.parametrize("block", [(128, 128), (64, 32), (1, 16)])
def test_errors_are_below_half_a_step(block: tuple[int, int], tmp_path: Path) -> None:
    """E4M3 has 8 steps from one power of two to the next: half a step is 1/16 of the value, and
    2^-10 of the scale below the smallest normal number."""
    rng = np.random.default_rng(3)
    source = dense(tmp_path / "in", {"l.weight": bf16(rng, 300, 130), "b": bf16(rng, 7)})
    to_fp8(source, tmp_path / "out", "--block", f"{block[0]},{block[1]}")
    made = fp8_files.everything(tmp_path / "out")
    want = values(fp8_files.everything(source)["l.weight"])
    scale = spread(values(made["l.weight_scale_inv"]), want.shape, block)
    got = values(made["l.weight"]) * scale
    bound = np.maximum(np.abs(want) / 16, scale * 2.0**-10) * (1 + 1e-6)
    # a scale rounded down to BF16 leaves the greatest value a little above 448: it saturates
    top = np.abs(want) > 448 * scale
    assert (np.abs(got - want)[~top] <= bound[~top]).all()
    assert (np.abs(got) <= 448 * scale).all() and top.mean() < 0.05
    assert made["b"][1].tobytes() == fp8_files.everything(source)["b"][1].tobytes()


def test_there_and_back_again_gives_the_same_codes(tmp_path: Path) -> None:
    """Where the greatest code of every block is 448, its scale is found again, so all codes are."""
    rng = np.random.default_rng(4)
    codes = fp8_files.codes(rng, 256, 384)
    codes[::128, ::128] = 0x7E
    scale = f32_to_bf16(np.exp2(rng.integers(-12, 3, (2, 3))).astype(np.float32))
    tensors = {"l.weight": ("F8_E4M3", codes), "l.weight_scale_inv": ("BF16", scale)}
    source = dense(tmp_path / "in", tensors, fp8_files.CONFIG)
    assert run_ntool("convert-fp8", source, "-o", tmp_path / "f32", "--to", "f32").code == 0
    to_fp8(tmp_path / "f32", tmp_path / "back")
    back = fp8_files.everything(tmp_path / "back")
    assert back["l.weight"][1].tobytes() == codes.tobytes()
    assert back["l.weight_scale_inv"][1].tobytes() == scale.tobytes()


def test_what_is_kept_and_what_the_config_says_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    names = {
        "model.embed_tokens.weight": False,
        "lm_head.weight": False,
        "model.layers.0.mlp.gate.weight": False,
        "model.layers.0.mlp.gate_proj.weight": True,
        "model.layers.0.self_attn.q_proj.weight": True,
        "model.layers.0.linear_attn.conv1d.weight": False,
        "model.layers.0.input_layernorm.weight": False,
    }
    tensors = {n: bf16(rng, 8, 8) for n in names}
    tensors["model.layers.0.input_layernorm.weight"] = bf16(rng, 8)
    source = dense(tmp_path / "in", tensors)
    done = to_fp8(source, tmp_path / "out", "--exclude", "*.q_proj")
    made = fp8_files.everything(tmp_path / "out")
    expected = {n for n, fp8 in names.items() if fp8 and "q_proj" not in n}
    assert {n for n, (d, _) in made.items() if d == "F8_E4M3"} == expected
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["weight_block_size"] == [128, 128] and config["quant_method"] == "fp8"
    kept = {n.removesuffix(".weight") for n in names} - {
        "model.layers.0.mlp.gate_proj", "model.layers.0.input_layernorm",
    }  # fmt: skip
    assert set(config["modules_to_not_convert"]) == kept
    census = run_ntool("census", tmp_path / "out")
    [summary] = census.of("summary")
    assert census.code == 0 and summary["quantization"]["skip_list"]["unlisted"] == 0
    assert done.of("summary")[0]["counts"] == {"converted": 1, "copied": 6}
    only = to_fp8(source, tmp_path / "head", "--include", "lm_head")
    assert only.of("summary")[0]["counts"]["converted"] == 1
    assert fp8_files.everything(tmp_path / "head")["lm_head.weight"][0] == "F8_E4M3"


def test_the_report_tells_what_was_lost(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    source = dense(tmp_path / "in", {"l.weight": bf16(rng, 200, 200)})
    to_fp8(source, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "weight-loading-report.json").read_text())
    [row] = report["tensors"]
    made = fp8_files.everything(tmp_path / "out")
    want = values(fp8_files.everything(source)["l.weight"])
    scale = spread(values(made["l.weight_scale_inv"]), want.shape, (128, 128))
    error = values(made["l.weight"]) * scale - want
    told = row["statistics"]
    assert told["elements"] == 40_000
    assert told["largest_error"] == pytest.approx(np.abs(error).max(), rel=1e-5)
    relative = np.linalg.norm(error) / np.linalg.norm(want)
    assert told["relative_error"] == pytest.approx(relative, rel=1e-4)


def test_one_scale_for_a_tensor(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    source = dense(tmp_path / "in", {"l.weight": bf16(rng, 500, 1100), "z.weight": bf16(rng, 2, 3)})
    to_fp8(source, tmp_path / "out", "--scale", "per-tensor", "--shard-size", "1B")
    made = fp8_files.everything(tmp_path / "out")
    assert made["l.weight_scale"][1].shape == ()
    largest = np.abs(values(fp8_files.everything(source)["l.weight"])).max()
    assert values(made["l.weight_scale"]) == f32_to_bf16(np.float32([largest / 448])).view(
        ml_dtypes.bfloat16
    ).astype(np.float32)
    census = run_ntool("census", tmp_path / "out")
    assert census.of("summary")[0]["quantization"]["forms"] == {"tensor": 2}
    assert run_ntool("convert-fp8", tmp_path / "out", "-o", tmp_path / "dense").code == 0


def test_banks_of_experts(tmp_path: Path) -> None:
    """A block never spans two experts, nor gate and up."""
    rng = np.random.default_rng(8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    down = "model.layers.0.mlp.experts.down_proj"
    source = dense(tmp_path / "in", {name: bf16(rng, 3, 256, 40), down: bf16(rng, 3, 40, 128)})
    to_fp8(source, tmp_path / "out")
    made = fp8_files.everything(tmp_path / "out")
    assert made[f"{name}_scale_inv"][1].shape == (3, 2, 1)
    want, grid = values(fp8_files.everything(source)[name]), values(made[f"{name}_scale_inv"])
    for e in range(3):
        largest = np.abs(want[e].reshape(2, 128, 40)).max(axis=(1, 2))
        assert np.allclose(grid[e, :, 0], largest / 448, rtol=2**-8)
    assert run_ntool("census", tmp_path / "out").code == 0
    odd = dense(tmp_path / "odd", {name: bf16(rng, 3, 200, 40), down: bf16(rng, 3, 40, 100)})
    refused = run_ntool("convert-fp8", odd, "-o", tmp_path / "no", "--to", "fp8")
    assert refused.code == 5 and name in refused.err and "span" in refused.err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "tensors, options, code, words",
    [
        ({"l.weight": ("F32", np.full((2, 2), np.inf, "<f4"))}, [], 3, "not finite"),
        ({"l.weight": ("F32", np.full((2, 2), np.nan, "<f4"))}, [], 3, "not finite"),
        ({"b": ("F32", np.zeros(4, "<f4"))}, [], 3, "matrices to convert"),
        ({"l.weight": ("F8_E4M3", np.zeros((2, 2), "u1"))}, [], 5, "dense"),
        ({"l.weight": ("F32", np.zeros((2, 2), "<f4"))}, ["--block", "0,1"], 2, "--block"),
        ({"l.weight": ("F32", np.zeros((2, 2), "<f4"))}, ["--scale", "row"], 2, "--scale"),
    ],
)
def test_refusals(tensors: Any, options: list[str], code: int, words: str, tmp_path: Path) -> None:
    source = dense(tmp_path / "in", tensors)
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--to", "fp8", *options)
    assert done.code == code and words in done.err and "Traceback" not in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_zeros_stay_zeros(tmp_path: Path) -> None:
    source = dense(tmp_path / "in", {"l.weight": ("F32", np.zeros((130, 130), "<f4"))})
    to_fp8(source, tmp_path / "out")
    made = fp8_files.everything(tmp_path / "out")
    assert not made["l.weight"][1].any()
    assert (values(made["l.weight_scale_inv"]) == 1).all()


def test_parts_whose_scales_are_in_another_shard(tmp_path: Path) -> None:
    """Codes and scales of a tensor may be made by different processes."""
    rng = np.random.default_rng(9)
    source = dense(tmp_path / "in", {f"l{i}.weight": bf16(rng, 140, 140) for i in range(4)})
    to_fp8(source, tmp_path / "one", "--shard-size", "1B")
    for part in ("1/2", "2/2"):
        to_fp8(source, tmp_path / "two", "--shard-size", "1B", "--part", part)
    assert run_ntool("convert-fp8", "--merge", tmp_path / "two").code == 0
    assert fp8_files.digests(tmp_path / "one") == fp8_files.digests(tmp_path / "two")
