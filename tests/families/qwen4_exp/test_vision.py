"""The vision graph against recorded features and against the NumPy reference."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import pytest

from ntool.lib.families.qwen4_exp import vision
from ntool.lib.graph.builder import FLOAT16

from . import reference_vision as R
from .vision_session import (
    CASES,
    Arrays,
    Weights,
    load_case,
    run_vision,
    session,
    vision_graph,
)

# Float32 against float32 or float64 through up to 3 blocks; measured 2e-6 on values of size 3. The
# weights of vision-gelu are large on purpose: two float32 programs differ by 5e-5 there.
TOLERANCE = {"image-text": 1e-5, "vision-gelu": 2e-4}


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_features_of_a_golden(name: str) -> None:
    case = load_case(name)
    golden = case.golden()
    found = run_vision(case.values, case.w, golden["pixel_values"], golden["image_grid_thw"])
    assert found.dtype == np.float32
    close(found, golden["image_features"], TOLERANCE[name])


@pytest.mark.parametrize("name", CASES)
def test_reference_meets_the_golden(name: str) -> None:
    case = load_case(name)
    golden = case.golden()
    tower = R.tower(case.values, case.w)
    found = R.image_features(tower, golden["pixel_values"], golden["image_grid_thw"])
    close(found, golden["image_features"], TOLERANCE[name])


def test_every_tensor_of_the_tower_is_used_and_no_other() -> None:
    for name in CASES:
        case = load_case(name)
        weights = vision_graph(case.values, case.w).weights
        assert isinstance(weights, Weights)
        assert weights.claimed == {n for n in case.w if n.startswith("model.visual.")}


def made(**sizes: int) -> tuple[dict[str, Any], Arrays]:
    """A config of other sizes, and random weights that make every part of the tower matter."""
    values = copy.deepcopy(load_case("image-text").values)
    v = values["vision_config"]
    v.update(sizes)
    C, F, H = v["hidden_size"], v["intermediate_size"], v["out_hidden_size"]
    shapes = {
        "patch_embed.proj.weight": [C, 3, 2, 16, 16], "patch_embed.proj.bias": [C],
        "pos_embed.weight": [v["num_position_embeddings"], C],
        "merger.norm.weight": [C], "merger.norm.bias": [C],
        "merger.linear_fc1.weight": [4 * C, 4 * C], "merger.linear_fc1.bias": [4 * C],
        "merger.linear_fc2.weight": [H, 4 * C], "merger.linear_fc2.bias": [H],
    }  # fmt: skip
    for i in range(v["depth"]):
        shapes |= {
            f"blocks.{i}.{name}": shape
            for name, shape in {
                "norm1.weight": [C], "norm1.bias": [C], "norm2.weight": [C], "norm2.bias": [C],
                "attn.qkv.weight": [3 * C, C], "attn.qkv.bias": [3 * C],
                "attn.proj.weight": [C, C], "attn.proj.bias": [C],
                "mlp.linear_fc1.weight": [F, C], "mlp.linear_fc1.bias": [F],
                "mlp.linear_fc2.weight": [C, F], "mlp.linear_fc2.bias": [C],
            }.items()
        }  # fmt: skip
    random = np.random.default_rng(5)
    weights = {}
    for name, shape in shapes.items():
        inner = int(np.prod(shape[1:])) if len(shape) > 1 else 4
        scale = 2.0 if name == "pos_embed.weight" else inner**-0.5
        x = random.standard_normal(shape) * scale
        weights[f"model.visual.{name}"] = x.astype(np.float32)
    return values, weights


def pictures(grids: list[list[int]]) -> np.ndarray:
    count = sum(t * h * w for t, h, w in grids)
    return np.random.default_rng(6).standard_normal((count, 1536)).astype(np.float32)


GEOMETRIES = [
    # (sizes, grids): two shapes; frames; one token; more patches than positions; side 1 and 2
    ({}, [[1, 4, 6], [1, 8, 4]]),
    ({}, [[2, 4, 2], [1, 2, 6], [3, 2, 2]]),
    ({"depth": 1, "hidden_size": 24, "num_heads": 3, "num_position_embeddings": 9}, [[1, 2, 2]]),
    ({"hidden_size": 16, "num_heads": 1, "intermediate_size": 7}, [[1, 20, 6], [2, 6, 16]]),
    ({"num_position_embeddings": 1, "depth": 2}, [[1, 4, 4]]),
    ({"num_position_embeddings": 4, "hidden_size": 40, "num_heads": 10}, [[1, 2, 8], [1, 6, 4]]),
]


@pytest.mark.parametrize(("sizes", "grids"), GEOMETRIES)
@pytest.mark.parametrize("scores", [1 << 22, 70, 1])
def test_other_geometries_meet_the_reference(
    sizes: dict[str, int], grids: list[list[int]], scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every size of a tile: whole frames, parts of a frame, a query at a time."""
    monkeypatch.setattr(vision, "TILE_SCORES", scores)
    values, weights = made(**sizes)
    pixels = pictures(grids)
    found = run_vision(values, weights, pixels, grids)
    wanted = R.image_features(R.tower(values, weights), pixels, grids)
    assert np.abs(wanted).max() > 0.5
    # float32 against float64: 3e-6 measured
    close(found, wanted, 2e-5)


def test_frames_of_a_grid_are_apart_as_pictures_are() -> None:
    case = load_case("image-text")
    pixels = pictures([[2, 4, 6]])
    together = run_vision(case.values, case.w, pixels, [[2, 4, 6]])
    one_by_one = run_vision(case.values, case.w, pixels, [[1, 4, 6], [1, 4, 6]])
    close(together, one_by_one, 1e-6)
    # and the attention does matter: the same frame twice gives something else than both
    other = pixels.copy()
    other[24:] = pixels[:24]
    changed = run_vision(case.values, case.w, other, [[2, 4, 6]])
    close(changed[:6], together[:6], 1e-6)
    assert np.abs(changed[6:] - together[6:]).max() > 0.1


def test_float16_is_finite_and_near_float32() -> None:
    """Within 1e-2, the tolerance of 16-bit results: 11 bits of a value of size 3 are 1.5e-3, and
    three blocks keep norms, softmax, rotation and GELU in float32; 2e-3 measured."""
    for grids in ([[1, 4, 6], [1, 8, 4]], [[2, 4, 2], [1, 12, 6]]):
        case = load_case("image-text")
        pixels = pictures(grids)
        wide = run_vision(case.values, case.w, pixels, grids)
        half = run_vision(case.values, case.w, pixels, grids, FLOAT16)
        assert half.dtype == np.float16 and np.isfinite(half).all()
        close(half.astype(np.float32), wide, 1e-2)


@pytest.mark.parametrize(
    ("rows", "grids"),
    [(52, [[1, 4, 6], [1, 8, 4]]), (60, [[1, 4, 6], [1, 8, 4]]), (12, [[1, 3, 4]]),
     (12, [[1, 4, 3]]), (4, [[1, 4, 6]])],
)  # fmt: skip
def test_rows_that_do_not_fit_the_grids_fail_in_the_graph(
    rows: int, grids: list[list[int]]
) -> None:
    case = load_case("image-text")
    pixels = np.zeros((rows, 1536), np.float32)
    blocks = sum(t * (h // 2) * (w // 2) for t, h, w in grids)
    with pytest.raises(Exception, match="patches_of_the_grids") as caught:
        run_vision(case.values, case.w, pixels, grids)
    assert f"{{{rows},1536}}" in str(caught.value) and f"{{{4 * blocks},1536}}" in str(caught.value)


def test_no_value_grows_with_the_square_of_the_patches() -> None:
    case = load_case("image-text")
    g = vision_graph(case.values, case.w)
    assert any("rows" in v.shape for v in g.values.values())
    assert [v for v in g.values.values() if list(v.shape).count("rows") > 1] == []
    assert g.inputs[0].shape == ("patches", 1536) and g.inputs[1].shape == ("images", 3)
    assert [(v.name, v.shape) for v in g.outputs] == [("image_features", ("image_tokens", 48))]


def test_only_standard_operators() -> None:
    case = load_case("image-text")
    model = vision_graph(case.values, case.w).model()
    assert {o.domain for o in model.opset_import} == {""}
    assert {n.domain for n in nodes(model.graph)} == {""}


def nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All nodes, those of bodies too."""
    out = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                out += nodes(attribute.g)
    return out


def test_one_session_takes_any_number_of_pictures() -> None:
    case = load_case("image-text")
    s = session(vision_graph(case.values, case.w), case.w)
    for grids in ([[1, 2, 2]], [[1, 2, 4]] * 7, [[5, 2, 2], [1, 10, 2]]):
        pixels = pictures(grids)
        feeds = {"pixel_values": pixels, "image_grid_thw": np.array(grids)}
        wanted = R.image_features(R.tower(case.values, case.w), pixels, grids)
        close(s.run(None, feeds)[0], wanted, TOLERANCE["image-text"])
