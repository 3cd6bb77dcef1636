"""Size rule, colour, resampling and patches against recorded values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from ntool.lib.errors import InputError, Unsupported, UsageProblem
from ntool.lib.families.neo_chat import processor
from ntool.lib.sampling.image import load_image

COMMON = Path(__file__).parents[2] / "data/neo-chat/common"
DENSE = Path(__file__).parents[2] / "data/neo-chat/dense-conv"
TABLE = json.loads((COMMON / "resize_table.json").read_text("utf-8"))
CASES = json.loads((COMMON / "preprocess.json").read_text("utf-8"))


def test_resize_table_every_row():
    assert len(TABLE["rows"]) > 100
    rejected = 0
    for w, h, least, most, rw, rh in TABLE["rows"]:
        if rw is None:
            rejected += 1
            with pytest.raises(InputError, match="aspect ratio"):
                processor.resized(w, h, least, most, TABLE["factor"])
        else:
            assert processor.resized(w, h, least, most, TABLE["factor"]) == (rw, rh), (w, h)
    assert rejected


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_preprocess(case):
    golden = load_file(COMMON / "preprocess.safetensors")
    name = case["name"]
    image = load_image(COMMON / case["file"])
    assert image.mode == case["mode"] and list(image.size) == case["size"]
    rows, grid = processor.preprocess(image, case["min_pixels"], case["max_pixels"])
    assert list(grid) == case["grid_hw"] == golden[f"{name}.grid_hw"].reshape(-1).tolist()
    w, h = case["resized_wh"]
    np.testing.assert_array_equal(
        processor.resize(image, w, h), golden[f"{name}.resized_uint8_hwc"]
    )
    assert rows.dtype == np.float32 and rows.shape == (grid[0] * grid[1], 768)
    if f"{name}.pixel_values" in golden:
        np.testing.assert_array_equal(rows, golden[f"{name}.pixel_values"])
    else:
        np.testing.assert_array_equal(rows[:4], golden[f"{name}.pixel_values_first4"])
        np.testing.assert_array_equal(rows[-1:], golden[f"{name}.pixel_values_last"])


def test_prefill_picture_of_a_checkpoint():
    golden = load_file(DENSE / "goldens/image_prefill.safetensors")
    image = load_image(DENSE / "inputs/img_small.png")
    rows, grid = processor.preprocess(image, 1024, 4194304)
    np.testing.assert_array_equal(rows, golden["pixel_values"])
    assert list(grid) == golden["grid_hw"].reshape(-1).tolist()


def test_patch_rows_order():
    x = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
    rows = processor.patch_rows(x, 2)
    assert rows.shape == (6, 12)
    # second patch of the first row of patches: columns 2..3 of rows 0..1, channel by channel
    assert rows[1].tolist() == x[:, 0:2, 2:4].reshape(-1).tolist()
    assert rows[3].tolist() == x[:, 2:4, 0:2].reshape(-1).tolist()
    with pytest.raises(InputError, match="6x5"):
        processor.patch_rows(np.zeros((3, 5, 6), np.float32), 2)


def test_colour_modes():
    la = Image.new("LA", (1, 1), (100, 0))
    assert processor.to_rgb(la).getpixel((0, 0)) == (100, 100, 100)
    rgba = Image.new("RGBA", (1, 1), (100, 0, 0, 0))
    assert processor.to_rgb(rgba).getpixel((0, 0)) == (255, 255, 255)


def test_limits():
    assert processor.pixel_limits("chat", 3) == (65536, 4194304)
    assert processor.pixel_limits("image-edit", 4) == (262144, 4194304)
    assert processor.pixel_limits("interleave", 5) == (262144, 3355443)
    with pytest.raises(UsageProblem, match="text-to-image"):
        processor.pixel_limits("text-to-image")
    with pytest.raises(UsageProblem, match=r"10\.\.5"):
        processor.resized(8, 8, 10, 5)
    with pytest.raises(InputError, match="0x8"):
        processor.resized(0, 8, 5, 10)


def test_check_size_names_the_nearest():
    processor.check_size(96, 64)
    for w, h, nearest in ((100, 64, "96x64"), (1, 64, "32x64"), (113, 2047, "128x2048")):
        with pytest.raises(UsageProblem) as caught:
            processor.check_size(w, h)
        assert caught.value.hint is not None and nearest in caught.value.hint


def test_processor_json():
    config = json.loads((DENSE / "checkpoint/config.json").read_text("utf-8"))
    out = processor.processor_json(config)
    assert (out["patch_size"], out["merge_size"], out["resize"]["factor"]) == (16, 2, 32)
    assert out["limits"]["chat"] == {"min_pixels": 65536, "max_pixels": 4194304}
    assert out["limits"]["interleave"]["min_pixels"] == 262144
    assert json.loads(json.dumps(out)) == out
    config["downsample_ratio"] = [0.25]
    assert processor.processor_json(config)["merge_size"] == 4


@pytest.mark.parametrize("ratio", [None, "0.5", True, 0, -0.5, 2, 0.3, [0.5, 0.5], 1e-9])
def test_unusable_ratio(ratio):
    with pytest.raises(InputError, match="downsample_ratio"):
        processor.processor_json({"vision_config": {}, "downsample_ratio": ratio})


def test_unusable_vision_config():
    with pytest.raises(InputError, match="vision_config"):
        processor.processor_json({"downsample_ratio": 0.5})
    with pytest.raises(Unsupported, match="num_channels: found 4"):
        processor.processor_json({"downsample_ratio": 0.5, "vision_config": {"num_channels": 4}})
    with pytest.raises(InputError, match="patch_size"):
        processor.processor_json({"downsample_ratio": 0.5, "vision_config": {"patch_size": 0}})


def test_a_palette_with_alpha_is_converted_without_a_warning():
    image = Image.new("P", (4, 4))
    image.info["transparency"] = bytes([0, 255])
    assert processor.to_rgb(image).mode == "RGB"


def test_messages_name_the_config():
    with pytest.raises(InputError, match=r"^here/config\.json: vision_config: found None"):
        processor.processor_json({}, "here/config.json")
    config = {"vision_config": {"patch_size": "x"}, "downsample_ratio": 0.5}
    with pytest.raises(InputError, match=r"^here/config\.json: vision_config\.patch_size"):
        processor.processor_json(config, "here/config.json")
    config = {"vision_config": {}, "downsample_ratio": 1e-320}
    with pytest.raises(InputError, match=r"^here/config\.json: downsample_ratio"):
        processor.processor_json(config, "here/config.json")
