"""Position indexes and the prompt mask against recorded values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ntool.lib.errors import InputError
from ntool.lib.families.neo_chat import positions, processor
from ntool.lib.text import tokenizer

DENSE = Path(__file__).parents[2] / "data/neo-chat/dense-conv"
RUNS = {r["name"]: r for r in json.loads((DENSE / "goldens/manifest.json").read_text("utf-8"))}


@pytest.fixture(scope="module")
def ids():
    t = tokenizer.load(DENSE / "checkpoint")
    return t.id("<IMG_CONTEXT>"), t.id("<img>")


def golden(name):
    return load_file(DENSE / "goldens" / RUNS[name]["file"])


def edit_grid():
    from ntool.lib.sampling.image import load_image

    image = load_image(DENSE / "inputs/img_edit_0.png")
    w, h = processor.resized(*image.size, *processor.pixel_limits("image-edit", 1))
    return h // 32, w // 32


def test_text_prefill_is_plain(ids):
    g = golden("text_prefill")
    p = positions.prompt_positions(g["input_ids"], *ids, [])
    np.testing.assert_array_equal(p, g["position_indexes"])
    np.testing.assert_array_equal(p[0], np.arange(p.shape[1]))


def test_image_prefill(ids):
    g = golden("image_prefill")
    gh, gw = g["grid_hw"].reshape(-1).tolist()
    p = positions.prompt_positions(g["input_ids"], *ids, [(gh // 2, gw // 2)])
    assert p.dtype == np.int64
    np.testing.assert_array_equal(p, g["position_indexes"])
    np.testing.assert_array_equal(
        positions.block_causal_mask(p[0]), g["attention_mask_allowed"].astype(bool)
    )


def test_vqa(ids):
    g = golden("vqa")
    gh, gw = g["grid_hw"].reshape(-1).tolist()
    p = positions.prompt_positions(g["input_ids"], *ids, [(gh // 2, gw // 2)])
    np.testing.assert_array_equal(p, g["position_indexes"])


# with thinking the position depends on generated tokens: test_thought_moves_the_picture
PICTURE_RUNS = [
    n for n, r in RUNS.items() if r["kind"] in ("t2i", "edit") and not r["args"].get("think_mode")
]


@pytest.mark.parametrize("name", PICTURE_RUNS)
def test_every_picture_position(name, ids):
    run, g = RUNS[name], golden(name)
    th, tw = run["args"]["height"] // 32, run["args"]["width"] // 32
    grids = {"cond": [], "img_cond": [], "uncond": []}
    if run["kind"] == "edit":
        grids |= {"cond": [edit_grid()], "img_cond": [edit_grid()]}
    seen = 0
    for branch, grid in grids.items():
        if f"image_indexes_{branch}" not in g:
            continue
        p = positions.prompt_positions(g[f"input_ids_{branch}"], *ids, grid)
        if f"position_indexes_{branch}" in g:
            np.testing.assert_array_equal(p, g[f"position_indexes_{branch}"])
        expected = g[f"image_indexes_{branch}"]
        np.testing.assert_array_equal(
            positions.image_positions(int(p[0].max()) + 1, th, tw), expected
        )
        seen += 1
    guided = run["args"]["cfg_scale"] > 1
    assert seen == len(run.get("branches", ["cond", "uncond"] if guided else ["cond"]))


def test_thought_moves_the_picture(ids):
    g = golden("t2i_think")
    prompt = positions.prompt_positions(g["input_ids_cond"], *ids, [])
    thought = tokenizer.load(DENSE / "checkpoint").encode("\n\n<img>")
    count = g["picked_ids"].size + len(thought)
    assert count == int(g["think_and_append_len"][0])
    after = positions.text_positions(int(prompt[0].max()) + 1, count)
    t = int(after[0].max()) + 1
    assert t == RUNS["t2i_think"]["kv_cond_len"]
    np.testing.assert_array_equal(positions.image_positions(t, 1, 2), g["image_indexes_cond"])


def test_two_pictures_and_the_step_after_img():
    # a <img> C C </img> <img> C </img> b
    x = [1, 8, 9, 9, 7, 8, 9, 7, 2]
    p = positions.prompt_positions(x, 9, 8, [(2, 1), (1, 1)])
    assert p[0].tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 7]
    assert p[1].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert p[2].tolist() == [0] * 9


def test_img_before_text_also_takes_a_step():
    assert positions.prompt_positions([1, 8, 2, 8], 9, 8, [])[0].tolist() == [0, 1, 3, 4]


def test_counts_must_agree():
    with pytest.raises(InputError, match="found 2, expected 3"):
        positions.prompt_positions([8, 9, 9], 9, 8, [(1, 3)])
    with pytest.raises(InputError, match="found 1, expected 0"):
        positions.prompt_positions([9], 9, 8, [])


def test_continuations():
    assert positions.text_positions(5, 3).tolist() == [[5, 6, 7], [0] * 3, [0] * 3]
    assert positions.image_positions(4, 2, 3).tolist() == [
        [4] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2],
    ]  # fmt: skip


def test_mask_rule():
    m = positions.block_causal_mask([0, 1, 1, 2])
    assert m.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
