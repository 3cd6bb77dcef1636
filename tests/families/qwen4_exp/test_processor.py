"""Size rule, patches and the fields of preprocessor_config.json against recorded values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from ntool.lib.errors import InputError, Unsupported, UsageProblem
from ntool.lib.families.qwen4_exp import processor
from ntool.lib.families.qwen4_exp.processor import Processor
from ntool.lib.package import schema
from ntool.lib.sampling.image import load_image

DATA = Path(__file__).parents[2] / "data/qwen4-exp"
RECORDED = DATA / "image-processor"
SIZES = json.loads((RECORDED / "smart_resize.json").read_text("utf-8"))["cases"]
NOTES = json.loads((RECORDED / "config.json").read_text("utf-8"))
CONFIG = json.loads((DATA / "image-text/preprocessor_config.json").read_text("utf-8"))
HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize("case", SIZES, ids=lambda c: f"{c['height']}x{c['width']}")
def test_size_rule(case: dict[str, Any]) -> None:
    args = [case[k] for k in ("height", "width", "min_pixels", "max_pixels", "factor")]
    if isinstance(case["resized"], dict):
        with pytest.raises(InputError, match=r"aspect ratio: found 201 .*, expected at most 200"):
            processor.smart_resize(*args)
    else:
        assert list(processor.smart_resize(*args)) == case["resized"]


def test_some_sizes_are_refused() -> None:
    assert len(SIZES) == 13 and sum(isinstance(c["resized"], dict) for c in SIZES) == 1
    assert processor.smart_resize(200, 1, 1024, 65536) == (480, 32)
    with pytest.raises(InputError, match="0x8"):
        processor.smart_resize(8, 0, 1024, 65536)
    with pytest.raises(UsageProblem, match=r"10\.\.5"):
        processor.smart_resize(8, 8, 10, 5)
    with pytest.raises(InputError, match=r"^here/a\.png: picture aspect ratio: found 201 "):
        processor.preprocess(Image.new("L", (201, 1)), Processor(1, 65536), "here/a.png: picture")


def recorded() -> tuple[Processor, dict[str, np.ndarray]]:
    p = Processor(NOTES["size"]["shortest_edge"], NOTES["size"]["longest_edge"], HALF, HALF)
    return p, load_file(RECORDED / "processor.safetensors")


def test_recorded_pictures() -> None:
    """Three sizes, two of them resampled: the same numbers to the last bit."""
    p, golden = recorded()
    rows, grids = [], []
    for i in range(3):
        one, grid = processor.preprocess(Image.fromarray(golden[f"image{i}"]), p)
        assert one.dtype == np.float32 and one.shape == (grid[1] * grid[2], 1536)
        rows.append(one)
        grids.append(grid)
    assert golden["image_grid_thw"].tolist() == [list(g) for g in grids] == NOTES["grids"]
    np.testing.assert_array_equal(np.concatenate(rows), golden["pixel_values"])


def test_order_of_patches_and_of_their_values() -> None:
    x = np.arange(3 * 64 * 32, dtype=np.float32).reshape(3, 64, 32)
    rows = processor.patch_rows(x)
    assert rows.shape == (8, 1536)
    corners = [(0, 0), (0, 16), (16, 0), (16, 16), (32, 0), (32, 16), (48, 0), (48, 16)]
    for row, (top, left) in zip(rows, corners, strict=True):
        patch = x[:, top : top + 16, left : left + 16]
        np.testing.assert_array_equal(row.reshape(3, 2, 16, 16), np.stack([patch, patch], axis=1))
    for size in ((3, 48, 32), (3, 32, 48), (3, 0, 32)):
        with pytest.raises(InputError, match=f"{size[2]}x{size[1]}.*multiples of 32"):
            processor.patch_rows(np.zeros(size, np.float32))


def test_a_picture_file_of_any_mode(tmp_path: Path) -> None:
    p = Processor(1024, 65536, HALF, HALF)
    Image.new("RGBA", (40, 64), (255, 0, 51, 0)).save(tmp_path / "a.png")
    rows, grid = processor.preprocess(load_image(tmp_path / "a.png"), p)
    assert grid == (1, 4, 2)
    assert (rows == 1).all()  # white, behind what is transparent
    Image.new("RGB", (40, 64), (255, 0, 51)).save(tmp_path / "a.png")
    colours = processor.preprocess(load_image(tmp_path / "a.png"), p)[0].reshape(8, 3, -1)
    assert (colours[:, 0] == 1).all() and (colours[:, 1] == -1).all()
    np.testing.assert_allclose(colours[:, 2], 51 / 255 * 2 - 1, atol=1e-6)
    palette = Image.new("P", (32, 32))
    palette.info["transparency"] = bytes([0, 255])
    assert processor.preprocess(palette, p)[0].shape == (4, 1536)


def test_processor_json() -> None:
    out = processor.processor_json(CONFIG)
    assert out["limits"] == {"chat": {"min_pixels": 4096, "max_pixels": 65536}}
    assert (out["patch_size"], out["merge_size"], out["resize"]["factor"]) == (16, 2, 32)
    assert out["mean"] == out["std"] == [0.5, 0.5, 0.5]
    read = json.loads(json.dumps(out))
    assert read == out
    assert schema.faults(out, "processor") == []
    assert processor.from_package(read) == processor.read_processor(CONFIG)
    processor.check_processor(read, "processor.json")


def test_fields_left_out_have_the_values_of_the_class() -> None:
    short = {"size": CONFIG["size"], "patch_size": 16, "image_mean": None}
    p = processor.read_processor(short)
    assert p.mean == (0.48145466, 0.4578275, 0.40821073)
    assert p.std == (0.26862954, 0.26130258, 0.27577711)
    no_patch = {"size": CONFIG["size"]}
    with pytest.raises(Unsupported, match=r"'patch_size': found 14 \(the default .*expected 16"):
        processor.read_processor(no_patch)


REFUSED: list[tuple[str, Any, type[Exception]]] = [
    ("do_resize", False, Unsupported), ("do_rescale", False, Unsupported),
    ("do_normalize", False, Unsupported), ("do_convert_rgb", False, Unsupported),
    ("do_center_crop", True, Unsupported), ("do_pad", True, Unsupported),
    ("do_resize", 1, InputError), ("resample", 2, Unsupported), ("resample", "3", InputError),
    ("rescale_factor", 1 / 127.5, Unsupported), ("rescale_factor", 0, Unsupported),
    ("rescale_factor", "x", Unsupported), ("rescale_factor", 10**400, Unsupported),
    ("patch_size", 14, Unsupported), ("temporal_patch_size", 1, Unsupported),
    ("merge_size", 4, Unsupported), ("merge_size", 0, InputError),
    ("image_mean", [0.5, 0.5], InputError), ("image_mean", 0.5, InputError),
    ("image_mean", [0.5, 0.5, float("nan")], InputError),
    ("image_std", [0.5, 0.5, 0], InputError), ("image_std", [True, 1, 1], InputError),
    ("image_std", [0.5, 0.5, 10**400], InputError),
    ("size", None, InputError), ("size", 224, InputError),
    ("image_processor_type", "CLIPImageProcessor", Unsupported),
    ("image_processor_type", ["Qwen2VLImageProcessor"], Unsupported),
    ("min_pixels", 4097, Unsupported), ("max_pixels", 1, Unsupported),
    ("gamma", 2.2, Unsupported),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "error"), REFUSED)
def test_a_value_that_is_not_understood(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^here/preprocessor_config\.json: '{field}': found "):
        processor.read_processor({**CONFIG, field: value}, "here/preprocessor_config.json")


@pytest.mark.parametrize(
    ("size", "field"),
    [({"shortest_edge": 4096}, "longest_edge"), ({"longest_edge": 4096}, "shortest_edge"),
     ({"shortest_edge": 0, "longest_edge": 9}, "shortest_edge"),
     ({"shortest_edge": 9, "longest_edge": 8}, "longest_edge"),
     ({"shortest_edge": 9, "longest_edge": 10**12}, "longest_edge"),
     ({"height": 9, "shortest_edge": 9, "longest_edge": 9}, "height")],
)  # fmt: skip
def test_limits_of_the_area(size: dict[str, int], field: str) -> None:
    with pytest.raises((InputError, Unsupported), match=f"'?size'?: '{field}'"):
        processor.read_processor({**CONFIG, "size": size})


def test_fields_without_effect_and_null_are_taken() -> None:
    same = {
        **CONFIG, "min_pixels": 4096, "max_pixels": 65536, "do_pad": None, "device": None,
        "data_format": "channels_first", "crop_size": {"height": 1}, "unheard_of": None,
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }  # fmt: skip
    assert processor.read_processor(same) == processor.read_processor(CONFIG)


@pytest.mark.parametrize(
    ("path", "value"),
    [("patch_size", 14), ("merge_size", 1), ("rescale", 0.5), ("frames", 1),
     ("row_order", "channel, row, column"), ("patch_order", "raster"), ("color.mode", "BGR"),
     ("resize.factor", 28), ("resize.max_aspect_ratio", 100), ("resize.resample", "bilinear"),
     ("resize.antialias", False)],
)  # fmt: skip
def test_another_preprocessing_in_a_package(path: str, value: Any) -> None:
    out = processor.processor_json(CONFIG)
    *outer, field = path.split(".")
    inner = out
    for key in outer:
        inner = inner[key]
    assert inner[field] != value
    inner[field] = value
    with pytest.raises(Unsupported, match=rf"^p\.json: .*{field}: found .*expected"):
        processor.check_processor(out, "p.json")


def test_limits_of_a_package() -> None:
    out = processor.processor_json(CONFIG)
    for limits, field in (
        ({}, "chat"),
        ({"chat": {"min_pixels": 9, "max_pixels": 8}}, "max_pixels"),
        ({"chat": {"min_pixels": 9, "max_pixels": 10**12}}, "max_pixels"),
    ):
        with pytest.raises(InputError, match=rf"^p\.json: .*'{field}'"):
            processor.check_processor({**out, "limits": limits}, "p.json")
    for field in ("mean", "std"):
        with pytest.raises(InputError, match=rf"^p\.json: '{field}'"):
            processor.check_processor({**out, field: [0, 1]}, "p.json")
