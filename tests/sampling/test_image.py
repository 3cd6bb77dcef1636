"""Pictures written and read: rounding, recipes, and files that lie."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from safetensors.numpy import load_file

from ntool.lib.errors import (
    EnvironmentProblem,
    InputError,
    SourceNotFound,
    Unsupported,
    UsageProblem,
)
from ntool.lib.sampling import image

DATA = Path(__file__).parents[1] / "data"
GOLDENS = DATA / "neo-chat/dense-conv/goldens"


def chunk(kind, body):
    return (
        struct.pack(">I4s", len(body), kind)
        + body
        + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))
    )


def png(width=2, height=2, depth=8, colour=2, raw=None, extra=b"", methods=(0, 0, 0)):
    raw = bytes((width * 3 + 1) * height) if raw is None else raw
    head = struct.pack(">IIBBBBB", width, height, depth, colour, *methods)
    return (
        image.PNG_SIGNATURE + chunk(b"IHDR", head) + extra
        + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    )  # fmt: skip


def saved(tmp_path, data, name="a.png"):
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@pytest.mark.parametrize("name", ["t2i_b_cfg4_shift3", "edit_4_dual", "t2i_think"])
def test_recorded_pictures(name):
    golden = load_file(GOLDENS / f"{name}.safetensors")
    np.testing.assert_array_equal(image.to_uint8(golden["z_final"]), golden["image_uint8"])


def test_half_goes_to_even():
    z = ((2 * np.arange(255, dtype=np.float32) + 1) / np.float32(255) - 1).astype(np.float32)
    level = (z * np.float32(0.5) + np.float32(0.5)) * np.float32(255)
    half = z[level % 1 == 0.5]  # those whose level is exactly k + 1/2 in float32
    out = image.to_uint8(np.tile(half, (3, 1, 1)))[0, :, 0]
    assert len(half) > 50 and (out % 2 == 0).all()


def test_range_is_clamped():
    out = image.to_uint8(np.tile(np.array([-9, -1, 0, 1, 9], np.float32), (3, 1, 1)))
    assert out[0, :, 0].tolist() == [0, 0, 128, 255, 255]
    assert out.shape == (1, 5, 3) and out.dtype == np.uint8


def test_what_is_not_a_picture():
    with pytest.raises(InputError, match="NaN"):
        image.to_uint8(np.full((3, 2, 2), np.nan, np.float32))
    with pytest.raises(InputError, match=r"\[2, 3, 4, 4\]"):
        image.to_uint8(np.zeros((2, 3, 4, 4), np.float32))
    with pytest.raises(InputError, match="float32"):
        image.write_png(io.BytesIO(), np.zeros((2, 2, 3), np.float32))


PICTURE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
RECIPE = {"seed": 42, "prompt": "一只猫 \u202e", "steps": 50, "cfg": 4.0}


def test_png_round_trip(tmp_path):
    path = tmp_path / "out.png"
    image.write_png(path, PICTURE, RECIPE)
    np.testing.assert_array_equal(np.asarray(image.load_image(path)), PICTURE)
    assert image.read_png_recipe(path) == RECIPE
    assert os.listdir(tmp_path) == ["out.png"]
    stream = io.BytesIO()
    image.write_png(stream, PICTURE, RECIPE)
    assert stream.getvalue() == path.read_bytes()
    with Image.open(path) as other:  # readable by others, one text chunk
        assert json.loads(other.text["ntool"]) == RECIPE and len(other.text) == 1
    image.write_png(path, PICTURE)
    assert image.read_png_recipe(path) is None


def test_recipe_size_is_bounded_before_anything_is_written(tmp_path):
    with pytest.raises(UsageProblem, match="65535"):
        image.write_png(tmp_path / "a.png", PICTURE, {"prompt": "x" * 66_000})
    assert os.listdir(tmp_path) == []
    image.recipe_text({"prompt": "x" * 65_000})


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    path = saved(tmp_path, b"before")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        image.write_png(path, PICTURE)
    assert os.listdir(tmp_path) == ["a.png"] and path.read_bytes() == b"before"
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        image.write_png(tmp_path / "none" / "a.png", PICTURE)


def test_forged_recipes(tmp_path):
    for body, words in (
        (b"ntool\0{", "not JSON"),
        (b"ntool\0\xff", "not JSON"),
        (b"ntool\0[1]", "found list"),
        (b"ntool\0" + b" " * 66_000 + b"{}", "recipe: found 66002"),
        (b"ntool\0" + b"[" * 60_000, "not JSON"),
    ):
        with pytest.raises(InputError, match=words):
            image.read_png_recipe(saved(tmp_path, png(extra=chunk(b"tEXt", body))))
    with pytest.raises(InputError, match="not a PNG"):
        image.read_png_recipe(saved(tmp_path, b"GIF89a"))


def test_recorded_odd_files():
    assert image.load_image(DATA / "hostile-png/pn-ok-rgb.png").size == (64, 64)
    assert image.load_image(DATA / "hostile-png/pn-ok-gray16.png").mode == "L"
    with pytest.raises(InputError, match="truncated PNG: chunk IDAT"):
        image.load_image(DATA / "hostile-png/pn-bad-cut.png")
    with pytest.raises(Unsupported, match="found GIF"):
        image.load_image(DATA / "hostile-png/pn-bad-signature.png")


def test_sixteen_bit_grey_keeps_the_high_byte(tmp_path):
    raw = b"\0" + struct.pack(">HH", 0x1234, 0xFF00) + b"\0" + struct.pack(">HH", 0, 0x00FF)
    grey = image.load_image(saved(tmp_path, png(2, 2, 16, 0, raw)))
    assert np.asarray(grey).tolist() == [[0x12, 0xFF], [0, 0]]


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_formats_and_their_truncation(tmp_path, kind):
    data = io.BytesIO()
    Image.fromarray(PICTURE).save(data, kind)
    path = saved(tmp_path, data.getvalue(), "named.png")
    assert image.load_image(path).size == (50, 40)
    path.write_bytes(data.getvalue()[: len(data.getvalue()) // 2])
    with pytest.raises(InputError, match=f"damaged or truncated {kind}"):
        image.load_image(path)


def test_size_is_checked_before_decoding(tmp_path):
    path = saved(tmp_path, png(60_000, 60_000, raw=b""))
    with pytest.raises(InputError, match="picture size: found 60000x60000"):
        image.load_image(path)
    with pytest.raises(InputError, match="at most 3 pixels"):
        image.load_image(saved(tmp_path, png()), max_pixels=3)
    with pytest.raises(InputError, match="found 0x2, expected at least 1x1"):
        image.load_image(saved(tmp_path, png(0, 2)))
    data = io.BytesIO()
    Image.fromarray(PICTURE).save(data, "JPEG")
    with pytest.raises(InputError, match="found 50x40"):
        image.load_image(saved(tmp_path, data.getvalue()), max_pixels=1999)


def test_decompression_bombs_in_ancillary_chunks_are_not_opened(tmp_path):
    bomb = zlib.compress(bytes(80 << 20), 9)
    extra = chunk(b"zTXt", b"a\0\0" + bomb) + chunk(b"iCCP", b"p\0\0" + bomb)
    extra += chunk(b"iTXt", b"b\0\1\0\0\0" + bomb) + chunk(b"eXIf", b"junk")
    path = saved(tmp_path, png(extra=extra))
    loaded = image.load_image(path)
    assert loaded.size == (2, 2) and not loaded.info.get("a") and "icc_profile" not in loaded.info


def test_more_pixel_data_than_the_picture_has_is_not_inflated(tmp_path):
    path = saved(tmp_path, png(raw=bytes(64 << 20)))
    assert image.load_image(path).size == (2, 2)


def test_exif_rotation_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("JPEG", "PNG"):
        data = io.BytesIO()
        Image.fromarray(PICTURE).save(data, kind, exif=exif)
        assert image.load_image(saved(tmp_path, data.getvalue())).size == (50, 40)


def test_transparent_palette_survives(tmp_path):
    p = Image.new("P", (2, 1))
    p.putpalette([255, 0, 0, 0, 255, 0])
    p.putpixel((1, 0), 1)
    data = io.BytesIO()
    p.save(data, "PNG", transparency=0)
    loaded = image.load_image(saved(tmp_path, data.getvalue()))
    assert loaded.mode == "P" and loaded.info["transparency"] in (0, b"\0")


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a picture"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a picture"),
        (image.PNG_SIGNATURE, "ends before its IEND"),
        (png()[:-12], "ends before its IEND"),
        (png()[:-1], "truncated PNG|ends before"),
        (flipped(png(), 17), "chunk IHDR at byte 8: wrong CRC"),
        (flipped(png(), 42), "chunk IDAT at byte 33: wrong CRC"),
        (image.PNG_SIGNATURE + chunk(b"IEND", b""), "does not begin with IHDR"),
        (image.PNG_SIGNATURE + chunk(b"IHDR", b"\0" * 12), "does not begin with IHDR"),
        (png(raw=bytes(3)), "truncated PNG: bytes of pixels: found 3, expected at least 14"),
        (png(depth=3), "PNG colour type and bits: found 2, 3"),
        (png(colour=5), "PNG colour type and bits: found 5, 8"),
        (png(methods=(1, 0, 0)), "PNG compression method: found 1"),
        (png(methods=(0, 64, 0)), "PNG filter method: found 64"),
        (png(methods=(0, 0, 2)), "PNG interlace method: found 2"),
        (png(colour=3, raw=bytes(6)), "PNG palette is missing"),
        (png(colour=3, raw=bytes(6), extra=chunk(b"PLTE", bytes(5))), "PNG palette: found 1 of 5"),
        (png(colour=3, raw=bytes(6), extra=chunk(b"PLTE", b"")), "PNG palette: found 1 of 0"),
        (png(colour=3, raw=bytes(6), extra=chunk(b"PLTE", bytes(771))), "PNG palette"),
        (png(colour=3, raw=bytes(6), extra=2 * chunk(b"PLTE", bytes(3))), "PNG palette: found 2"),
        (b"\xff\xd8\xff\xe0", "damaged or truncated JPEG"),
        (b"RIFF\0\0\0\0WEBP", "damaged or truncated WEBP"),
    ],
)
def test_damaged_files(tmp_path, data, words):
    with pytest.raises(InputError, match=words) as caught:
        image.load_image(saved(tmp_path, data))
    assert "\n" not in caught.value.message and "a.png" in caught.value.message
    assert "object at" not in caught.value.message


def test_every_truncation_of_a_png_is_refused(tmp_path):
    whole = png()
    for n in range(len(whole)):
        with pytest.raises(InputError):
            image.load_image(saved(tmp_path, whole[:n]))


def test_unknown_critical_chunk(tmp_path):
    with pytest.raises(Unsupported, match="found ABCD"):
        image.load_image(saved(tmp_path, png(extra=chunk(b"ABCD", b""))))


def test_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match="expected a regular file"):
        image.load_image(tmp_path / "pipe.png")
    with pytest.raises(InputError, match="expected a regular file"):
        image.load_image(tmp_path)
    with pytest.raises(SourceNotFound, match=r"none\.png"):
        image.load_image(tmp_path / "none.png")


def test_animated_png_gives_its_still_picture(tmp_path):
    frames = [Image.new("RGB", (4, 4), c) for c in ((255, 0, 0), (0, 255, 0))]
    data = io.BytesIO()
    frames[0].save(data, "PNG", save_all=True, append_images=frames[1:])
    loaded = image.load_image(saved(tmp_path, data.getvalue()))
    assert loaded.convert("RGB").getpixel((0, 0)) == (255, 0, 0)


def test_text_of_other_programs_is_ignored(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "x" * 1000)
    data = io.BytesIO()
    Image.fromarray(PICTURE).save(data, "PNG", pnginfo=info)
    path = saved(tmp_path, data.getvalue())
    assert image.read_png_recipe(path) is None
    assert "parameters" not in image.load_image(path).info


def test_contact_sheet():
    small, large = np.zeros((8, 10, 3), np.uint8), np.full((16, 20, 3), 7, np.uint8)
    sheet = image.contact_sheet([small, large, small], columns=2)
    assert sheet.shape == (4 + 2 * (16 + 4), 4 + 2 * (20 + 4), 3)
    assert (sheet[4:12, 4:14] == 0).all() and (sheet[4:20, 28:48] == 7).all()
    assert (sheet[24:32, 4:14] == 0).all() and (sheet[24:, 28:] == 255).all()
    named = image.contact_sheet([large] * 2, ["a", "\u732b" * 99], columns=8)
    assert named.shape == (4 + 16 + 4 + 3 * 12 + 4, 52, 3)
    assert (named[20:36, 4:24] < 128).any()  # the caption was drawn
    assert (named[36:, 4:24] == 255).all()  # on one line
    for line in range(3):  # the long one on three
        assert (named[22 + 12 * line : 34 + 12 * line, 28:48] < 128).any()
    assert (named[:, 48:] == 255).all() and (named[58:] == 255).all()  # and was cut
    one = image.contact_sheet([large] * 2, ["a", "b"])
    assert one.shape == (4 + 16 + 16 + 4, 52, 3)
    for args in ([], None, 1), ([small], None, 0), ([small], [], 1):
        with pytest.raises(UsageProblem, match="contact sheet"):
            image.contact_sheet(*args)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a b", ["a b"]),
        ("a large red circle (42)", ["a large", "red circle", "(42)"]),
        ("one two three four five six seven eight (7)", ["one two", "three four", "... (7)"]),
        ("incomprehensibilities (7)", ["incomprehe", "nsibilitie", "s (7)"]),
        ("x" * 99, ["x" * 10] * 3),
        ("ab " + "y" * 99, ["ab", "y" * 10, "y" * 10]),
    ],
)
def test_captions_wrap(text, lines):
    assert image.wrap(text, 10, len) == lines
