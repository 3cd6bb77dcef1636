"""Position ids against recorded layouts, and what has to be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ntool.lib.errors import InputError
from ntool.lib.families.qwen4_exp import positions

DATA = Path(__file__).parents[2] / "data/qwen4-exp"
CASES = json.loads((DATA / "positions/mrope.json").read_text("utf-8"))["cases"]
IMAGE = 101


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"].replace(" ", "_"))
def test_recorded_layout(case: dict[str, Any]) -> None:
    ids, mask, grids = case["input_ids"], case["attention_mask"], case["grids"] or []
    found, deltas = positions.prompt_positions(ids, mask, grids, IMAGE)
    assert found.dtype == deltas.dtype == np.int64
    np.testing.assert_array_equal(found, case["position_ids"])
    np.testing.assert_array_equal(deltas[:, None], case["rope_deltas"])
    after = positions.next_positions(mask, deltas)
    assert after.dtype == np.int64
    np.testing.assert_array_equal(after, case["next_decode_position_ids"])


def test_all_layouts_are_there() -> None:
    assert len(CASES) == 10
    assert any(0 in case["attention_mask"][0] for case in CASES)
    assert any(0 in case["attention_mask"][-1] for case in CASES)


def test_prompt_and_steps_of_a_golden() -> None:
    golden = load_file(DATA / "image-text/golden/prefill.safetensors")
    mask, grids = golden["attention_mask"], golden["image_grid_thw"]
    found, deltas = positions.prompt_positions(golden["input_ids"], mask, grids, IMAGE)
    np.testing.assert_array_equal(found, golden["position_ids"])
    np.testing.assert_array_equal(deltas[:, None], golden["rope_deltas"])
    steps = load_file(DATA / "image-text/golden/decode.safetensors")
    for step in range(1, 5):
        after = positions.next_positions(mask, deltas)
        np.testing.assert_array_equal(after, steps[f"step{step}.position_ids"])
        mask = steps[f"step{step}.attention_mask"]


def test_frames_of_a_grid_follow_each_other() -> None:
    ids = [[5, IMAGE, IMAGE, IMAGE, IMAGE, 6]]
    found, deltas = positions.prompt_positions(ids, np.ones((1, 6)), [(2, 2, 4)], IMAGE)
    assert found[:, 0].tolist() == [
        [0, 1, 2, 3, 4, 5], [0, 1, 1, 2, 2, 3], [0, 1, 1, 1, 1, 3], [0, 1, 2, 1, 2, 3],
    ]  # fmt: skip
    assert deltas.tolist() == [-2]


def test_a_row_of_padding_alone() -> None:
    found, deltas = positions.prompt_positions([[9, 9], [9, 9]], [[1, 1], [0, 0]], [], IMAGE)
    assert found[:, 1].tolist() == [[0, 0]] * 4 and deltas.tolist() == [0, 0]
    # image tokens under the mask are not real ones
    found, _ = positions.prompt_positions([[IMAGE, 9]], [[0, 1]], [], IMAGE)
    assert found[:, 0].tolist() == [[0, 0]] * 4


def test_runs_and_pictures_must_agree() -> None:
    """Q31."""
    run = [[99, IMAGE, IMAGE, 100, 5]]
    mask = np.ones((1, 5))
    with pytest.raises(InputError, match=r"picture 0: image tokens: found 2, expected 4 .*1x2x2"):
        positions.prompt_positions(run, mask, [(1, 4, 4)], IMAGE)
    with pytest.raises(InputError, match=r"runs of image tokens: found 1, expected 0"):
        positions.prompt_positions(run, mask, [], IMAGE)
    with pytest.raises(InputError, match=r"runs of image tokens: found 1, expected 2"):
        positions.prompt_positions(run, mask, [(1, 2, 2), (1, 2, 2)], IMAGE)
    # two pictures side by side need the tokens between them, or they are one run
    with pytest.raises(InputError, match=r"runs of image tokens: found 1, expected 2"):
        positions.prompt_positions([[IMAGE, IMAGE]], [[1, 1]], [(1, 2, 2)] * 2, IMAGE)


@pytest.mark.parametrize("grid", [(1, 3, 2), (1, 2, 3), (0, 2, 2), (1, 2), (1, 0, 4), (1, -2, -2)])
def test_a_grid_that_is_none(grid: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"picture 0: grid: found \["):
        positions.prompt_positions([[IMAGE]], [[1]], [grid], IMAGE)


def test_arrays_of_other_shapes() -> None:
    for ids, mask in (([1, 2], [1, 1]), ([[1, 2]], [[1]]), ([[1, 2]], [1, 1])):
        with pytest.raises(InputError, match="prompt: mask: found"):
            positions.prompt_positions(ids, mask, [], IMAGE)
