"""Pictures: from latent to 8 bits, PNG files with a recipe, and bounded reading of references."""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.output_file import write_whole
from ..checkpoint.regular_file import read_file
from ..errors import InputError, Unsupported, UsageProblem

if TYPE_CHECKING:
    from PIL import Image

U8 = NDArray[np.uint8]

MAX_PIXELS = 64_000_000
"""Cap on width x height of a picture that is read, checked before it is decoded."""
MAX_FILE_BYTES = 256 << 20
"""Cap on the size of a picture file: 64 Mpx of 16-bit RGBA is 512 MB raw, half of it stored."""
MAX_RECIPE_BYTES = 65_535
"""Cap on the recipe in a PNG; other readers refuse long text chunks."""
RECIPE_KEY = "ntool"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
CAPTION_LINES = 3
LINE_PIXELS = 12
"""From line to line of a caption; Pillow's own font is 10 pixels high."""
KEPT_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
"""All that decides the pixels of a still PNG. Text, colour profiles and animation frames are
dropped unread, which also takes away their decompression bombs. EXIF is kept where it is asked
for."""
EXIF_CHUNK = b"eXIf"
ORIENTATION = 0x0112
"""The EXIF tag that says how a picture is to be turned; 1: as it is."""
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""PNG colour type -> bits that a sample may have."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""PNG colour type -> samples of a pixel."""
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2))  # fmt: skip
"""First column and row of each pass of an interlaced PNG, and the steps. Source: PNG 8.2."""
_INFLATED = 1 << 20
"""Bytes of pixels that are made at once to count them."""


def to_uint8(z: NDArray[np.float32]) -> U8:
    """round_half_even(clamp(z/2 + 1/2, 0, 1) 255) as [H, W, 3], RGB.

    Args:
        z: float32 [3, H, W] or [1, 3, H, W], about -1..1.
    Raises:
        InputError: not finite, or another shape.
    Source: the command-line programs of sensenova_u1.
    """
    if z.ndim == 4 and z.shape[0] == 1:
        z = z[0]
    if z.ndim != 3 or z.shape[0] != 3:
        raise InputError("picture", found=list(z.shape), expected="[3, H, W]")
    if not np.isfinite(z).all():
        raise InputError("picture", found="NaN or infinity", expected="finite values")
    x = np.clip(z.astype(np.float32) * np.float32(0.5) + np.float32(0.5), 0, 1)
    return np.ascontiguousarray(np.rint(x * np.float32(255)).astype(np.uint8).transpose(1, 2, 0))


def recipe_text(recipe: dict[str, Any]) -> str:
    """The recipe as one line of ASCII JSON, keys in the order given.

    Call it before sampling: a recipe that cannot be stored should not cost a picture.

    Raises:
        UsageProblem: longer than MAX_RECIPE_BYTES (a very long prompt).
    """
    text = json.dumps(recipe, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_RECIPE_BYTES:
        raise UsageProblem(
            "recipe for the PNG",
            found=f"{len(text)} bytes",
            expected=f"at most {MAX_RECIPE_BYTES}",
            hint="--no-metadata leaves it out",
        )
    return text


def write_png(
    target: str | os.PathLike[str] | IO[bytes], array: U8, recipe: dict[str, Any] | None = None
) -> None:
    """Writes uint8 [H, W, 3] as PNG, the recipe in one tEXt chunk named `ntool`.

    A path is written as `write_whole` does it. The same array and recipe give the same bytes (with
    one version of Pillow and zlib).

    Raises:
        InputError: not uint8 [H, W, 3].
        UsageProblem: recipe too long.
        EnvironmentProblem: the file cannot be written.
    """
    from PIL import Image, PngImagePlugin

    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise InputError(
            "picture", found=f"{array.dtype} {list(array.shape)}", expected="uint8 [H, W, 3]"
        )
    info = PngImagePlugin.PngInfo()
    if recipe is not None:
        info.add_text(RECIPE_KEY, recipe_text(recipe))
    data = io.BytesIO()
    Image.fromarray(array).save(data, "PNG", pnginfo=info, compress_level=6)
    if not isinstance(target, str | os.PathLike):
        target.write(data.getbuffer())
        return
    write_whole(target, lambda f: f.write(data.getbuffer()))


def read_png_recipe(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The recipe that `write_png` stored, or None when the PNG has none.

    Raises:
        SourceNotFound: no such file.
        InputError: not a PNG, truncated, or a recipe that is not JSON.
    """
    name = os.fspath(path)
    for kind, body in _chunks(read_file(name, MAX_FILE_BYTES), name):
        if kind == b"tEXt" and body.startswith(RECIPE_KEY.encode() + b"\0"):
            text = body[len(RECIPE_KEY) + 1 :]
            if len(text) > MAX_RECIPE_BYTES:
                raise InputError(
                    f"{name}: recipe", found=f"{len(text)} bytes", expected=f"<= {MAX_RECIPE_BYTES}"
                )
            try:
                recipe = json.loads(text.decode("ascii"))
            except (ValueError, RecursionError) as e:
                raise InputError(f"{name}: recipe is not JSON") from e
            if not isinstance(recipe, dict):
                raise InputError(f"{name}: recipe", found=type(recipe).__name__, expected="object")
            return recipe
    return None


def load_image(
    path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS, *, upright: bool = False
) -> Image.Image:
    """A decoded still picture (PNG, JPEG or WebP) from an untrusted file, in its own colour mode.

    The size is checked before pixels are decoded. Of a PNG only the chunks that decide its pixels
    are read. 16-bit samples keep their high byte. Colour profiles are not used.

    Args:
        max_pixels: cap on width x height.
        upright: turn the picture as its EXIF data say. Which published code does so depends on the
            family.
    Returns:
        PIL image with 8-bit channels, mode 1, L, LA, P, RGB, RGBA or CMYK.
    Raises:
        SourceNotFound: no such file.
        InputError: not a regular file, truncated, damaged, or too large.
        Unsupported: another picture format.
    """
    from PIL import Image

    name = os.fspath(path)
    data = read_file(name, MAX_FILE_BYTES)
    kind = _sniff(data)
    if kind is None:
        raise InputError(f"{name}: not a picture", expected="PNG, JPEG or WebP")
    if kind not in ("PNG", "JPEG", "WEBP"):
        raise Unsupported(f"{name}: picture format", found=kind, expected="PNG, JPEG or WebP")
    if kind == "PNG":
        data = _plain_png(data, name, max_pixels, (EXIF_CHUNK,) if upright else ())
    try:
        with warnings.catch_warnings():
            # Pillow's own limit only warns; ours refuses, on the line after
            warnings.simplefilter("ignore")
            image: Image.Image = Image.open(io.BytesIO(data), formats=[kind])
            _check_size(name, *image.size, max_pixels)
            image.load()
    except Image.DecompressionBombError as e:
        raise InputError(f"{name}: picture too large", expected=f"<= {max_pixels} pixels") from e
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as e:
        # Pillow names the buffer that it reads from, by its address
        why = "" if "object at 0x" in str(e) else f" ({e})"
        raise InputError(f"{name}: damaged or truncated {kind} picture{why}") from e
    turn = _turn(image, name) if upright else None
    if turn is not None:
        image = image.transpose(turn)
    if image.mode.startswith("I") or image.mode == "F":
        # 16-bit grey: Pillow's own conversion to 8 bits would clip at 255
        grey = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(np.clip(grey, 0, 255).astype(np.uint8))
    return image


def _turn(image: Image.Image, name: str) -> Image.Transpose | None:
    """What puts a picture upright, by its EXIF data; None for one that is."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of entries that are cut off; what is whole counts
            said: Any = image.getexif().get(ORIENTATION)
    except (OSError, SyntaxError, LookupError, ValueError, TypeError, struct.error) as e:
        raise InputError(f"{name}: damaged EXIF data") from e
    turns = Image.Transpose
    return {
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_270,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_90,
    }.get(said)


def contact_sheet(
    images: Sequence[U8], captions: Sequence[str] | None = None, columns: int = 4
) -> U8:
    """One picture of many, in rows of `columns`, each with up to three lines of text below it.

    Args:
        images: uint8 [H, W, 3] each; sizes may differ, a cell is as large as the largest.
        captions: one for each image, or None; wrapped to the width of the cell, non-ASCII shown as
            `?`. Of a caption that needs more lines the last word (a seed) stays.
    Returns:
        uint8 [H, W, 3] on white.
    Raises:
        UsageProblem: no image, no columns, or another number of captions.
    """
    from PIL import Image, ImageDraw, ImageFont

    if not images or columns < 1 or (captions is not None and len(captions) != len(images)):
        raise UsageProblem(
            "contact sheet",
            found=f"{len(images)} images, {columns} columns, "
            f"{'no' if captions is None else len(captions)} captions",
            expected="at least one image and column, and a caption for each image or none",
        )
    gap, width = 4, max(i.shape[1] for i in images)
    font = ImageFont.load_default()
    texts = [
        wrap("".join(c if " " <= c <= "~" else "?" for c in caption), width, font.getlength)
        for caption in captions or ()
    ]
    band = LINE_PIXELS * max(map(len, texts), default=0) + gap if texts else 0
    cell_h = max(i.shape[0] for i in images) + band + gap
    cell_w = width + gap
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    sheet = np.full((rows * cell_h + gap, columns * cell_w + gap, 3), 255, np.uint8)
    for k, image in enumerate(images):
        y, x = gap + k // columns * cell_h, gap + k % columns * cell_w
        sheet[y : y + image.shape[0], x : x + image.shape[1]] = image
    if captions is None:
        return sheet
    canvas = Image.fromarray(sheet)
    draw = ImageDraw.Draw(canvas)
    for k, lines in enumerate(texts):
        x, y = gap + k % columns * cell_w, gap + k // columns * cell_h + cell_h - gap - band
        for i, text in enumerate(lines):
            draw.text((x, y + 2 + i * LINE_PIXELS), text, fill=(0, 0, 0), font=font)
    return np.asarray(canvas).copy()


def wrap(text: str, width: int, length: Callable[[str], float]) -> list[str]:
    """A caption in at most three lines, broken between words, inside a word only if it must be.

    Args:
        length: pixels of a text.
    Returns:
        lines no longer than `width` pixels; `...` stands for what is left out before the last word.
    """
    words = text.split()
    lines = _lines(words, width, length)
    if len(lines) <= CAPTION_LINES:
        return lines
    fit = len(" ".join(lines[:CAPTION_LINES]).split())
    for kept in range(min(fit, len(words) - 2), -1, -1):
        shorter = _lines([*words[:kept], "...", words[-1]], width, length)
        if len(shorter) <= CAPTION_LINES:
            return shorter
    return lines[:CAPTION_LINES]


def _lines(words: Sequence[str], width: int, length: Callable[[str], float]) -> list[str]:
    """As many lines as words need, or one more than a caption has."""
    lines: list[str] = []
    for word in words:
        if len(lines) > CAPTION_LINES:
            break
        if lines and length(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for c in word:  # a word longer than the line goes on in the next one
            if lines[-1] and length(lines[-1] + c) > width:
                lines.append("")
            lines[-1] += c
    return lines


def _sniff(data: bytes) -> str | None:
    if data.startswith(PNG_SIGNATURE):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    for magic, kind in (
        (b"GIF8", "GIF"), (b"BM", "BMP"), (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"8BPS", "PSD"),
    ):  # fmt: skip
        if data.startswith(magic):
            return kind
    return "HEIF or AVIF" if data[4:8] == b"ftyp" else None


def _chunks(data: bytes, name: str) -> list[tuple[bytes, bytes]]:
    """(type, body) of each chunk up to IEND; truncation and wrong CRCs are refused."""
    if not data.startswith(PNG_SIGNATURE):
        raise InputError(f"{name}: not a PNG file")
    out: list[tuple[bytes, bytes]] = []
    at = len(PNG_SIGNATURE)
    while True:
        if at + 12 > len(data):
            raise InputError(f"{name}: truncated PNG: ends before its IEND chunk")
        size, kind = struct.unpack_from(">I4s", data, at)
        if at + 12 + size > len(data):
            raise InputError(
                f"{name}: truncated PNG: chunk {kind.decode('latin-1')} at byte {at}",
                found=f"{len(data) - at - 12} bytes",
                expected=f"{size} bytes",
            )
        body = data[at + 8 : at + 8 + size]
        (crc,) = struct.unpack_from(">I", data, at + 8 + size)
        if zlib.crc32(body, zlib.crc32(kind)) != crc:
            raise InputError(f"{name}: PNG chunk {kind.decode('latin-1')} at byte {at}: wrong CRC")
        if not out and (kind != b"IHDR" or size != 13):
            raise InputError(f"{name}: PNG does not begin with IHDR")
        out.append((kind, body))
        if kind == b"IEND":
            return out
        at += 12 + size


def _plain_png(data: bytes, name: str, max_pixels: int, more: tuple[bytes, ...]) -> bytes:
    """The same PNG with KEPT_CHUNKS and `more` only, after its size was checked."""
    chunks = _chunks(data, name)
    width, height = struct.unpack(">II", chunks[0][1][:8])
    _check_size(name, width, height, max_pixels)
    _check_form(chunks, name)
    _check_rows(chunks, name)
    parts = [PNG_SIGNATURE]
    for kind, body in chunks:
        if kind in KEPT_CHUNKS or kind in more:
            crc = zlib.crc32(body, zlib.crc32(kind))
            parts += [struct.pack(">I", len(body)), kind, body, struct.pack(">I", crc)]
        elif not kind[0] & 0x20:  # upper case first letter: critical
            raise Unsupported(f"{name}: critical PNG chunk", found=kind.decode("latin-1"))
    return b"".join(parts)


def _check_form(chunks: list[tuple[bytes, bytes]], name: str) -> None:
    """Refuse what Pillow reads in its own way or not at all: unknown methods, odd palettes."""
    depth, colour, compression, filtering, interlace = chunks[0][1][8:]
    if depth not in _DEPTHS.get(colour, ()):
        raise InputError(
            f"{name}: PNG colour type and bits",
            found=f"{colour}, {depth}",
            expected="a pair that PNG has, for example 2, 8",
        )
    for what, found, most in (
        ("compression", compression, 0), ("filter", filtering, 0), ("interlace", interlace, 1),
    ):  # fmt: skip
        if found > most:
            raise InputError(f"{name}: PNG {what} method", found=found, expected=f"<= {most}")
    palettes = [body for kind, body in chunks if kind == b"PLTE"]
    for body in palettes:
        if len(palettes) > 1 or len(body) % 3 or not 3 <= len(body) <= 768:
            raise InputError(
                f"{name}: PNG palette",
                found=f"{len(palettes)} of {len(body)} bytes",
                expected="one of 3 to 768 bytes, 3 a colour",
            )
    if colour == 3 and not palettes:
        raise InputError(f"{name}: PNG palette is missing")


def _check_rows(chunks: list[tuple[bytes, bytes]], name: str) -> None:
    """Refuse compressed data that end before the last row: Pillow leaves the rest black."""
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    bits = depth * _CHANNELS[colour]
    passes = _ADAM7 if interlace else ((0, 0, 1, 1),)
    wanted = 0
    for x, y, dx, dy in passes:
        columns, rows = -(-(width - x) // dx), -(-(height - y) // dy)
        if columns > 0 and rows > 0:
            wanted += rows * (1 + (columns * bits + 7) // 8)
    inflate, found = zlib.decompressobj(), 0
    try:
        for body in (body for kind, body in chunks if kind == b"IDAT"):
            while found < wanted and body:
                found += len(inflate.decompress(body, _INFLATED))
                body = inflate.unconsumed_tail
    except zlib.error as e:
        raise InputError(f"{name}: damaged or truncated PNG picture ({e})") from e
    if found < wanted:
        raise InputError(
            f"{name}: truncated PNG: bytes of pixels", found=found, expected=f"at least {wanted}"
        )


def _check_size(name: str, width: int, height: int, max_pixels: int) -> None:
    expected = f"at most {max_pixels} pixels" if width and height else "at least 1x1"
    if not (width > 0 and height > 0 and width * height <= max_pixels):
        raise InputError(f"{name}: picture size", found=f"{width}x{height}", expected=expected)
