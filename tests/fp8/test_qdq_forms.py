"""What the graphs of a QDQ package compute, for every form of scale, against a naive product."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from .checkpoints import Stored, codes, fp8_config, payloads, scales, write
from .qdq import components, convert, graphs, model, session, values

SHAPES = {
    "even": (256, 384), "ragged": (1000, 1500), "rows": (136, 256), "columns": (128, 200),
    "small": (5, 7), "one": (1, 1), "tall": (129, 1), "bank": (3, 136, 160),
    "even.bank": (2, 128, 256),
}  # fmt: skip


def grid(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def product(weight: Stored, scale: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """Code times the scale of its block, in float32."""
    rows, columns = weight[1].shape[-2:]
    wide = np.repeat(np.repeat(scale.astype(np.float32), block[0], -2), block[1], -1)
    return weight[1].astype(np.float32) * wide[..., :rows, :columns]


def checkpoint(folder: Path, block: tuple[int, int]) -> dict[str, np.ndarray]:
    """A checkpoint of SHAPES, and the values of its tensors."""
    tensors: dict[str, Stored] = {}
    wanted = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        weight, scale = codes(shape, seed), scales(grid(shape, block), seed)
        key = f"{name}.weight"
        tensors |= {key: weight, f"{key}_scale_inv": scale}
        wanted[key] = product(weight, scale[1], block)
    write(folder, {"model.safetensors": tensors}, fp8_config(block))
    return wanted


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name].view("u4"), value.view("u4")), name


@pytest.mark.parametrize("block", [(128, 128), (64, 32), (1, 128), (16, 1)])
def test_blocked(tmp_path: Path, block: tuple[int, int]) -> None:
    wanted = checkpoint(tmp_path / "c", block)
    package = convert(tmp_path / "c", tmp_path / "p")
    same(values(package), wanted)
    report = json.loads((package / "weight-loading-report.json").read_text())
    assert report["cpu"] == {"runs": True, "without_kernel": {}}
    assert {f["name"]: f["count"] for f in report["families"]} == {
        "fp8_weights": len(SHAPES), "fp8_scales": len(SHAPES),
    }  # fmt: skip


def test_tiles_without_partial_blocks_run_on_cpu(tmp_path: Path) -> None:
    wanted = checkpoint(tmp_path / "c", (128, 128))
    package = convert(tmp_path / "c", tmp_path / "p", lowering="tiles", include=("even*",))
    same(values(package), {n: v for n, v in wanted.items() if n.startswith("even")})
    (graph,) = graphs(package).values()
    nodes = model(graph).graph.node
    assert not {"Pad", "Slice"} & {n.op_type for n in nodes}, "pad only where needed"
    assert not any(a.name == "block_size" for n in nodes for a in n.attribute)


@pytest.mark.parametrize("block", [(128, 128), (64, 32)])
def test_tiles_equal_blocked(tmp_path: Path, block: tuple[int, int]) -> None:
    """Partial blocks too, in onnx's own evaluator, since FP8 Pad has no CPU kernel."""
    wanted = checkpoint(tmp_path / "c", block)
    package = convert(tmp_path / "c", tmp_path / "p", lowering="tiles")
    (graph,) = graphs(package).values()
    onnx.checker.check_model(str(graph), full_check=True)
    m = onnx.load(str(graph))
    outputs = ReferenceEvaluator(m).run(None, {})
    names = [o.name.removesuffix(".dequantized") for o in m.graph.output]
    same(dict(zip(names, outputs, strict=True)), wanted)
    assert "Pad" in {n.op_type for n in m.graph.node}
    with pytest.raises(Exception, match="Pad"):
        session(graph)


@pytest.mark.parametrize("lowering", ["blocked", "tiles"])
def test_scales_that_are_not_of_blocks(tmp_path: Path, lowering: str) -> None:
    w2, w3 = codes((6, 10), 1), codes((4, 6, 10), 2)
    r = np.random.default_rng(3)

    def scale(*shape: int) -> np.ndarray:
        return r.uniform(0.001, 0.1, shape).astype(np.float32)

    forms: dict[str, tuple[Stored, np.ndarray]] = {
        "scalar": (w2, scale()), "one": (w2, scale(1)), "one.one": (w2, scale(1, 1)),
        "row": (w2, scale(6)), "row.one": (w2, scale(6, 1)),
        "bank.row": (w3, scale(4, 6, 1)), "bank.rows": (w3, scale(4, 6)),
        "bank": (w3, scale(4)), "bank.one": (w3, scale(4, 1)), "bank.ones": (w3, scale(4, 1, 1)),
        "bank.half": (w3, scale(4, 2, 1)), "vector": (codes((9,), 4), scale(1)),
    }  # fmt: skip
    tensors: dict[str, Stored] = {}
    wanted = {}
    for name, (weight, values_) in forms.items():
        tensors |= {f"{name}.weight": weight, f"{name}.weight_scale": ("F32", values_)}
        shape = weight[1].shape
        parts = weight[1].astype(np.float32).reshape(values_.size, -1)
        wanted[f"{name}.weight"] = (parts * values_.reshape(-1, 1)).reshape(shape)
    source = write(tmp_path / "c", {"model.safetensors": tensors}, fp8_config(None))
    package = convert(source, tmp_path / "p", lowering=lowering)
    same(values(package), wanted)
    (graph,) = graphs(package).values()
    onnx.checker.check_model(str(graph), full_check=True)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "U8", "F8_E8M0"])
@pytest.mark.parametrize("fmt", ["F8_E4M3", "F8_E5M2"])
def test_dtypes_of_scales_and_codes(tmp_path: Path, dtype: str, fmt: str) -> None:
    weight = codes((130, 140), 5, fmt)
    if dtype in ("U8", "F8_E8M0"):
        scale: Stored = (dtype, np.array([[0, 1], [100, 140]], np.uint8))
        real = np.ldexp(np.float32(1), scale[1].astype(int) - 127)
    else:
        scale = scales((2, 2), dtype=dtype)
        real = scale[1].astype(np.float32)
    tensors = {"w.weight": weight, "w.weight_scale_inv": scale}
    source = write(tmp_path / "c", {"model.safetensors": tensors}, fp8_config())
    package = convert(source, tmp_path / "p")
    same(values(package), {"w.weight": product(weight, real, (128, 128))})
    found, kept = payloads(package), payloads(source)
    assert {n: t[2] for n, t in found.items()} == {n: t[2] for n, t in kept.items()}
    report = json.loads((package / "weight-loading-report.json").read_text())
    action = report["tensors"][1]["action"]
    assert action == ("converted" if dtype == "F8_E8M0" else "copied")


def test_codes_that_need_no_scale(tmp_path: Path) -> None:
    weight = codes((3, 4))
    source = write(tmp_path / "c", {"m.safetensors": {"a.weight": weight}}, fp8_config(None))
    package = convert(source, tmp_path / "p", unscaled=("a.*",))
    same(values(package), {"a.weight": weight[1].astype(np.float32)})


def test_tables(tmp_path: Path) -> None:
    """Shards of several heights, in numeric order, with negative zeros and codes that are NaN."""
    heights = [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 4]
    shards = [codes((h, 6), i)[1].copy() for i, h in enumerate(heights)]
    shards[3].view("u1")[2] = 0x80
    shards[4].view("u1")[0, 0] = 0x7F
    scale = np.array([0.25], ml_dtypes.bfloat16)
    one = {f"x.shard_{i}.weight": ("F8_E4M3", s) for i, s in enumerate(shards)}
    two = {"x.weight_scale": ("BF16", scale), "lm_head.weight": ("BF16", scale.reshape(1, 1))}
    source = write(tmp_path / "c", {"a.safetensors": one, "b.safetensors": two}, fp8_config())
    package = convert(source, tmp_path / "p")
    assert list(components(package)) == ["x", "other"]
    whole = np.concatenate(shards).astype(np.float32) * np.float32(0.25)
    ids = np.random.default_rng(0).permutation(len(whole))
    (rows,) = session(graphs(package)["x"]).run(None, {"x.weight.row_ids": ids})
    assert np.array_equal(rows, whole[ids], equal_nan=True)  # a zero may lose its sign
    assert np.any(whole.view("u4") == 0x80000000) and np.isnan(rows).sum() == 1


def test_plain_tensors_are_outputs_under_their_names(tmp_path: Path) -> None:
    tensors: dict[str, Stored] = {
        "layers.0.w.weight": codes((4, 4)), "layers.0.w.weight_scale": scales(()),
        "layers.0.norm.weight": scales((4,), dtype="F32"), "ids": ("I64", np.arange(3)),
        "layers.1.norm.weight": scales((4,)),
    }  # fmt: skip
    source = write(tmp_path / "c", {"m.safetensors": tensors}, fp8_config(None))
    package = convert(source, tmp_path / "p")
    assert list(components(package)) == ["layers_0", "other", "layers_1"]
    (value,) = session(graphs(package)["layers_0"]).run(["layers.0.norm.weight"], {})
    assert np.array_equal(value, tensors["layers.0.norm.weight"][1])
    (value,) = session(graphs(package)["other"]).run(["ids"], {})
    assert value.tolist() == [0, 1, 2]
    session(graphs(package)["layers_1"])
