"""Colour of pictures of every mode, and pictures that are to be turned.

What is recorded here was made by the published code, transformers 5.24.0 with Pillow 13.0.0:
`convert_to_rgb` of the image processor for the colours, `load_image` for the turned ones.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ntool.lib.errors import InputError, Unsupported
from ntool.lib.families.qwen4_exp import processor
from ntool.lib.sampling.image import load_image

PIXELS = [
    [(250, 0, 51, 0), (10, 200, 30, 128), (90, 90, 90, 255)],
    [(1, 2, 3, 7), (255, 128, 0, 200), (64, 32, 16, 99)],
]
RGBA = np.array(PIXELS, np.uint8)  # [2, 3, 4]
INDICES = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
PALETTE = [10, 20, 30, 200, 100, 50, 7, 77, 177]


def with_info(image: Image.Image, transparency: Any) -> Image.Image:
    image = image.copy()
    image.info["transparency"] = transparency
    return image


def palette(transparency: Any = None) -> Image.Image:
    image = Image.fromarray(INDICES)
    image.putpalette(PALETTE)  # an L becomes a P
    return image if transparency is None else with_info(image, transparency)


def pictures() -> dict[str, Image.Image]:
    """A small picture of each kind, by what it is."""
    full = Image.fromarray(RGBA)
    rgb, grey = full.convert("RGB"), full.convert("L")
    deep = np.array([[0, 255, 256], [300, 40_000, 65_535]], np.uint16)
    return {
        "RGBA": full,
        "LA": full.convert("LA"),
        "PA": palette().convert("PA"),
        "RGBa": full.convert("RGBa"),
        "P": palette(),
        "P, one index": palette(1),
        "P, by index": palette(bytes([0, 128, 255])),
        "L": grey,
        "L, one grey": with_info(grey, 90),
        "RGB": rgb,
        "RGB, one colour": with_info(rgb, (64, 32, 16)),
        "1": grey.convert("1"),
        "1, one": with_info(grey.convert("1"), 255),
        "I": grey.convert("I"),
        "F": grey.convert("F"),
        "I;16": Image.fromarray(deep),
        "CMYK": rgb.convert("CMYK"),
        "YCbCr": rgb.convert("YCbCr"),
        "HSV": rgb.convert("HSV"),
    }


RECORDED = {
    "RGBA": "ffffff 84e38e 5a5a5a f8f8f8 ff9b37 b5a8a2",
    "LA": "ffffff bdbdbd 5a5a5a f8f8f8 adadad acacac",
    "PA": "0a141e c86432 074db1 074db1 c86432 0a141e",
    "RGBa": "000000 09c71d 5a5a5a 000000 ff7f00 401e0f",
    "P": "0a141e c86432 074db1 074db1 c86432 0a141e",
    "P, one index": "0a141e ffffff 074db1 074db1 ffffff 0a141e",
    "P, by index": "ffffff e3b198 074db1 074db1 e3b198 ffffff",
    "L": "515151 7c7c7c 5a5a5a 020202 979797 282828",
    "L, one grey": "515151 7c7c7c ffffff 020202 979797 282828",
    "RGB": "fa0033 0ac81e 5a5a5a 010203 ff8000 402010",
    "RGB, one colour": "fa0033 0ac81e 5a5a5a 010203 ff8000 ffffff",
    "1": "000000 ffffff 000000 000000 ffffff 000000",
    "1, one": "000000 ffffff 000000 000000 ffffff 000000",
    "I": "515151 7c7c7c 5a5a5a 020202 979797 282828",
    "F": "515151 7c7c7c 5a5a5a 020202 979797 282828",
    "I;16": "000000 ffffff ffffff ffffff ffffff ffffff",
    "CMYK": "fa0033 0ac81e 5a5a5a 010203 ff8000 402010",
    "YCbCr": "f80031 08c71d 5a5a5a 000101 fd8000 3e1f0e",
    "HSV": "fa0035 0ac81c 5a5a5a 010203 ff7e00 402010",
}
"""Pixels as RGB in hexadecimal, row after row."""


@pytest.mark.parametrize("name", RECORDED)
def test_colour(name: str) -> None:
    found = processor.to_rgb(pictures()[name])
    assert found.mode == "RGB"
    assert np.asarray(found).tobytes().hex(" ", 3) == RECORDED[name]


def test_a_mode_without_rgb() -> None:
    with pytest.raises(Unsupported, match="picture mode: found La"):
        processor.to_rgb(Image.fromarray(RGBA).convert("LA").convert("La"))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparent_files(kind: str, tmp_path: Path) -> None:
    Image.fromarray(RGBA).save(tmp_path / "a", kind, lossless=True, exact=True)
    found = processor.to_rgb(load_image(tmp_path / "a", upright=True))
    assert np.asarray(found).tobytes().hex(" ", 3) == RECORDED["RGBA"]
    assert RECORDED["RGBA"] != RECORDED["RGB"]


@pytest.mark.parametrize("name", ["P, one index", "P, by index", "L, one grey", "RGB, one colour"])
def test_transparent_colours_of_a_png(name: str, tmp_path: Path) -> None:
    image = pictures()[name]
    image.save(tmp_path / "a.png")
    found = processor.to_rgb(load_image(tmp_path / "a.png"))
    assert np.asarray(found).tobytes().hex(" ", 3) == RECORDED[name]


def test_grey_of_16_bits_keeps_its_high_byte(tmp_path: Path) -> None:
    """Unlike the published code, which clips at 255 and makes white of most greys."""
    image = pictures()["I;16"]
    image.save(tmp_path / "a.png")
    found = np.asarray(processor.to_rgb(load_image(tmp_path / "a.png")))
    assert found[..., 0].reshape(-1).tolist() == [0, 0, 1, 1, 156, 255]
    assert RECORDED["I;16"] == "000000" + " ffffff" * 5


NUMBERED = np.arange(6, dtype=np.uint8).reshape(2, 3)
TURNED: dict[int, list[list[int]]] = {
    0: [[0, 1, 2], [3, 4, 5]],
    1: [[0, 1, 2], [3, 4, 5]],
    2: [[2, 1, 0], [5, 4, 3]],
    3: [[5, 4, 3], [2, 1, 0]],
    4: [[3, 4, 5], [0, 1, 2]],
    5: [[0, 3], [1, 4], [2, 5]],
    6: [[3, 0], [4, 1], [5, 2]],
    7: [[5, 2], [4, 1], [3, 0]],
    8: [[2, 5], [1, 4], [0, 3]],
    9: [[0, 1, 2], [3, 4, 5]],
}  # fmt: skip


def turned(orientation: int, kind: str = "PNG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = io.BytesIO()
    Image.fromarray(NUMBERED).convert("RGB").save(data, kind, exif=exif, lossless=True)
    return data.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", TURNED)
def test_pictures_are_turned_as_exif_says(orientation: int, kind: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(turned(orientation, kind))
    found = np.asarray(processor.to_rgb(load_image(tmp_path / "a", upright=True)))
    assert found[..., 0].tolist() == TURNED[orientation]


def test_a_jpeg_is_turned(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(turned(6, "JPEG"))
    assert load_image(tmp_path / "a", upright=True).size == (2, 3)
    assert load_image(tmp_path / "a").size == (3, 2)


def test_damaged_exif_data(tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.fromarray(NUMBERED).save(data, "PNG", exif=b"Exif\0\0" + b"XX*\0\0\0\0\x08")
    (tmp_path / "a.png").write_bytes(data.getvalue())
    with pytest.raises(InputError, match=r"a\.png: damaged EXIF data"):
        load_image(tmp_path / "a.png", upright=True)
    assert load_image(tmp_path / "a.png").size == (3, 2)
