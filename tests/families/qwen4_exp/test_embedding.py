"""The embedding graph: recorded values, empty features, wrong counts, video tokens."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ntool.lib.families.qwen4_exp import embedding
from ntool.lib.graph.builder import FLOAT, FLOAT16

from . import reference_vision as R
from .vision_session import Weights, embedding_graph, load_case, session

LEVELS = [
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
]
IMAGE, VIDEO = 101, 102
"""Token ids of the tiny checkpoint."""


def run(
    ids: np.ndarray,
    features: np.ndarray,
    level: ort.GraphOptimizationLevel = LEVELS[1],
    dtype: int = FLOAT,
) -> np.ndarray:
    case = load_case("image-text")
    s = session(embedding_graph(case.values, case.w, dtype), case.w, level)
    return s.run(["inputs_embeds"], {"input_ids": ids, "image_features": features})[0]


def words() -> np.ndarray:
    return load_case("image-text").w["model.embed_tokens.weight"]


def some(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 48)).astype(np.float32)


@pytest.mark.parametrize("prefix", ["", "empty."])
def test_recorded_values(prefix: str) -> None:
    """Q27: also without features."""
    golden = load_case("image-text").golden("embedding")
    found = run(golden[f"{prefix}input_ids"], golden[f"{prefix}image_features"])
    np.testing.assert_array_equal(found, golden[f"{prefix}inputs_embeds"])


def test_prompt_of_the_golden() -> None:
    golden = load_case("image-text").golden()
    found = run(golden["input_ids"], golden["image_features"])
    np.testing.assert_array_equal(found, golden["inputs_embeds"])


def test_steps_of_the_golden() -> None:
    """No features any more; the last step's input is the image token itself."""
    steps = load_case("image-text").golden("decode")
    for step in range(1, 5):
        ids = steps[f"step{step}.input_ids"]
        np.testing.assert_array_equal(run(ids, some(0)), steps[f"step{step}.inputs_embeds"])
    assert ids.tolist() == [[IMAGE]]


def test_reference_meets_the_golden() -> None:
    golden = load_case("image-text").golden("embedding")
    for prefix in ("", "empty."):
        ids, features = golden[f"{prefix}input_ids"], golden[f"{prefix}image_features"]
        found = R.inputs_embeds(words(), ids, features, IMAGE)
        np.testing.assert_array_equal(found, golden[f"{prefix}inputs_embeds"])


@pytest.mark.parametrize("level", LEVELS)
def test_features_fill_the_rows_of_a_batch_in_order(level: ort.GraphOptimizationLevel) -> None:
    ids = np.array([[1, IMAGE, IMAGE, 2], [IMAGE, 3, 4, IMAGE], [5, 6, 7, 8]])
    features = some(4)
    found = run(ids, features, level)
    np.testing.assert_array_equal(found, R.inputs_embeds(words(), ids, features, IMAGE))
    half = run(ids, features.astype(np.float16), level, FLOAT16)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, found.astype(np.float16))


@pytest.mark.parametrize("level", LEVELS)
def test_without_features_every_token_keeps_its_row(level: ort.GraphOptimizationLevel) -> None:
    """Q27."""
    ids = np.array([[1, IMAGE, 2], [IMAGE, IMAGE, 3]])
    np.testing.assert_array_equal(run(ids, some(0), level), words()[ids])


COUNTS = [(13, 14), (15, 14), (1, 14), (28, 14), (1, 0), (2, 0), (1, 2), (3, 2)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("given", "wanted"), COUNTS)
def test_another_number_of_features_fails(
    given: int, wanted: int, level: ort.GraphOptimizationLevel
) -> None:
    """Q28: the message has both numbers, in one row and spread over a batch."""
    for rows in (1, 2):
        ids = np.full((rows, 40), 9)
        ids.reshape(-1)[3 : 3 + wanted * 2 : 2] = IMAGE
        assert (ids == IMAGE).sum() == wanted
        with pytest.raises(Exception, match="features_for_image_tokens") as caught:
            run(ids, some(given), level)
        assert f"{{{given},48}}" in str(caught.value) and f"{{{wanted},48}}" in str(caught.value)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_video_token_fails(count: int, level: ort.GraphOptimizationLevel) -> None:
    """Q29."""
    for features in (0, 2):
        ids = np.full((2, 6), 9)
        ids[0, :2] = IMAGE
        ids[1, 6 - count :] = VIDEO
        with pytest.raises(Exception, match="video_is_not_supported"):
            run(ids, some(features), level)


@pytest.mark.parametrize("level", LEVELS)
def test_the_guard_comes_before_the_table_is_read(level: ort.GraphOptimizationLevel) -> None:
    """Q29: a video token beyond the vocabulary: here the Gather would fail, not on all providers.

    The Reshape is what has to fail, with ids that the Gather can take.
    """
    case = load_case("image-text")
    g = embedding.embedding(128, 48, IMAGE, 5000, Weights(case.w), FLOAT)
    s = session(g, case.w, level)
    feeds = {"input_ids": np.array([[1, 5000]]), "image_features": some(0)}
    with pytest.raises(Exception, match="video_is_not_supported"):
        s.run(None, feeds)
    by_name = {n.output[0]: n for n in g.nodes}
    (gather,) = (n for n in g.nodes if n.op_type == "Gather")
    added = by_name[gather.input[1]]
    assert [by_name[n].op_type for n in added.input] == ["Where", "Reshape"]


def test_interface() -> None:
    case = load_case("image-text")
    g = embedding_graph(case.values, case.w)
    assert [(v.name, v.shape) for v in g.inputs] == [
        ("input_ids", ("batch", "sequence")), ("image_features", ("image_tokens", 48)),
    ]  # fmt: skip
    assert [(v.name, v.shape) for v in g.outputs] == [("inputs_embeds", ("batch", "sequence", 48))]
    assert {n.domain for n in g.nodes} == {""}
