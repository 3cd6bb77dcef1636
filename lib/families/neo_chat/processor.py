"""Pictures to patch rows: colour, size rule, resampling, normalisation.

P: pixels on a side of a patch. m: patches on a side of a token. F = P m. Grids are in patches.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, Unsupported, UsageProblem

if TYPE_CHECKING:
    from PIL import Image

F32 = NDArray[np.float32]

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet statistics, RGB (`load_image_native` of sensenova_u1)."""
MAX_ASPECT = 200
CHAT_LIMITS = (65_536, 4_194_304)
"""Least and most pixels of a picture asked about: 256^2 and 2048^2, the defaults
of the VQA program of sensenova_u1."""
REFERENCE_MIN = 262_144
REFERENCE_MAX = 4_194_304
REFERENCE_TOTAL = 16_777_216
"""Limits of pictures given to edit and interleaved runs: 512^2, and min(2048^2, 4096^2 / n)."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The two sizes that the rules below depend on."""

    patch: int = 16
    merge: int = 2

    @property
    def factor(self) -> int:
        """F: every picture side is a multiple of it."""
        return self.patch * self.merge


def pixel_limits(task: str, n_images: int = 1) -> tuple[int, int]:
    """(least, most) pixels of each of n pictures for a task.

    `chat` has one pair; `image-edit`, `images-only` and `interleave` share another, whose maximum
    shrinks with the number of pictures. Limits in config.json are not used.
    Raises:
        UsageProblem: a task that takes no pictures.
    Source: `chat`, `it2i_generate`, `interleave_gen` of sensenova_u1.
    """
    if task == "chat":
        return CHAT_LIMITS
    if task in ("image-edit", "images-only", "interleave"):
        return REFERENCE_MIN, min(REFERENCE_MAX, REFERENCE_TOTAL // max(n_images, 1))
    raise UsageProblem(f"task {task}", found="a picture", expected="a task that takes pictures")


def resized(
    width: int,
    height: int,
    min_pixels: int,
    max_pixels: int,
    factor: int = 32,
    what: str = "picture",
) -> tuple[int, int]:
    """(width, height) a picture is resized to: multiples of F with about its aspect ratio.

    Each side goes to the nearest multiple of F (half to even, at least F). If that is above
    max_pixels, both shrink by sqrt(h w / max) and round down; if below min_pixels, both grow by
    sqrt(min / (h w)) and round up.

    Args:
        what: how messages call the picture.
    Raises:
        InputError: a side below 1, or an aspect ratio above 200.
        UsageProblem: limits that contradict each other.
    Source: `smart_resize` of sensenova_u1.
    """
    if not 0 < min_pixels <= max_pixels:
        raise UsageProblem(
            "pixel limits", found=f"{min_pixels}..{max_pixels}", expected="0 < min <= max"
        )
    if min(width, height) < 1:
        raise InputError(f"{what} size", found=f"{width}x{height}", expected="at least 1x1")
    if max(width, height) / min(width, height) > MAX_ASPECT:
        raise InputError(
            f"{what} aspect ratio", found=f"{width}x{height}", expected=f"at most {MAX_ASPECT}:1"
        )
    h = max(factor, round(height / factor) * factor)
    w = max(factor, round(width / factor) * factor)
    if h * w > max_pixels:
        b = math.sqrt(height * width / max_pixels)
        h = max(factor, math.floor(height / b / factor) * factor)
        w = max(factor, math.floor(width / b / factor) * factor)
    elif h * w < min_pixels:
        b = math.sqrt(min_pixels / (height * width))
        h = math.ceil(height * b / factor) * factor
        w = math.ceil(width * b / factor) * factor
    return w, h


def check_size(width: int, height: int, factor: int = 32) -> None:
    """Refuses an output size whose sides are not multiples of F; names the nearest that are.

    Raises:
        UsageProblem: such a size.
    """
    if width > 0 and height > 0 and width % factor == 0 and height % factor == 0:
        return
    w, h = (max(factor, math.floor(n / factor + 0.5) * factor) for n in (width, height))
    raise UsageProblem(
        "--size",
        found=f"{width}x{height}",
        expected=f"multiples of {factor}",
        hint=f"nearest: {w}x{h}; sample-image --fit takes it",
    )


def to_rgb(image: Image.Image) -> Image.Image:
    """RGBA is composited on white; any other mode is converted as it is (LA loses its alpha).

    Source: `load_image_native` of sensenova_u1.
    """
    from PIL import Image

    if image.mode != "RGBA":
        with warnings.catch_warnings():
            # Pillow advises RGBA for palettes with alpha; the published code does without
            warnings.simplefilter("ignore", UserWarning)
            return image.convert("RGB")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return white


def resize(image: Image.Image, width: int, height: int) -> NDArray[np.uint8]:
    """RGB uint8 [height, width, 3]: Pillow's bicubic with its antialiasing support.

    A picture that already has the size keeps its pixels.
    Source: `load_image_native` of sensenova_u1.
    """
    from PIL import Image

    return np.asarray(to_rgb(image).resize((width, height), Image.Resampling.BICUBIC))


def normalise(x: F32) -> F32:
    """(x - mean) / std of float32 [3, H, W] with values about 0..1.

    Re-encoded pictures of interleaved runs come here as z/2 + 1/2, neither clamped nor rounded
    (`interleave_gen` of sensenova_u1).
    """
    mean = np.array(MEAN, np.float32)[:, None, None]
    std = np.array(STD, np.float32)[:, None, None]
    return (x.astype(np.float32, copy=False) - mean) / std


def patch_rows(x: F32, patch: int) -> F32:
    """[C, H, W] to [N, C P P]: one row a patch, row-major; (channel, row, column) inside a row.

    Raises:
        InputError: a side is not a multiple of P.
    Source: `load_image_native` of sensenova_u1.
    """
    C, H, W = x.shape
    if H % patch or W % patch:
        raise InputError("picture size", found=f"{W}x{H}", expected=f"multiples of {patch}")
    x = x.reshape(C, H // patch, patch, W // patch, patch)
    rows = x.transpose(1, 3, 0, 2, 4).reshape(-1, C * patch * patch)
    return np.ascontiguousarray(rows)


def preprocess(
    image: Image.Image,
    min_pixels: int,
    max_pixels: int,
    processor: Processor | None = None,
    what: str = "picture",
) -> tuple[F32, tuple[int, int]]:
    """Patch rows float32 [N, 3 P P] of a picture and its grid (gh, gw) in patches.

    Colour, size rule, bicubic resampling, / 255, normalisation, patches.

    Args:
        what: how messages call the picture.
    Source: `load_image_native` of sensenova_u1.
    """
    p = processor or Processor()
    w, h = resized(image.width, image.height, min_pixels, max_pixels, p.factor, what)
    x = resize(image, w, h).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    return patch_rows(normalise(x), p.patch), (h // p.patch, w // p.patch)


def processor_json(config: dict[str, Any], where: str = "config.json") -> dict[str, Any]:
    """The content of processor.json of a package, from a checkpoint's config.json.

    Args:
        where: its name in messages.

    Raises:
        InputError: sizes that are missing or not usable.
        Unsupported: another number of colour channels than 3.
    Source: `NEOVisionConfig` (fields and defaults), `load_image_native` of sensenova_u1.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        raise InputError(f"{where}: vision_config", found=repr(vision), expected="an object")
    channels = _one(vision.get("num_channels", 3))
    if channels != 3:
        raise Unsupported(f"{where}: vision_config.num_channels", found=repr(channels), expected=3)
    patch = _one(vision.get("patch_size", 16))
    if type(patch) is not int or not 1 <= patch <= 1024:
        raise InputError(
            f"{where}: vision_config.patch_size", found=repr(patch), expected="1..1024"
        )
    return _content(patch, merge_size(config, where))


def check_processor(values: dict[str, Any], where: str) -> None:
    """Refuse a processor.json that asks for another preprocessing than this module does.

    Args:
        values: valid by the schema. Fields that are left out, and notes, are not compared.
    Raises:
        Unsupported: names the field.
    """
    mine = _content(values["patch_size"], values["merge_size"])
    _same(values, mine, where)


def _same(given: Any, mine: Any, where: str) -> None:
    if isinstance(mine, dict):
        for key in mine.keys() & given.keys() - {"schema"}:
            _same(given[key], mine[key], f"{where}: {key}")
    elif given != mine:
        raise Unsupported(where, found=given, expected=mine)


def _content(patch: int, merge: int) -> dict[str, Any]:
    chat = CHAT_LIMITS
    return {
        "schema": "ntool-processor-v1",
        "color": {"mode": "RGB", "rgba": "composite on white", "other": "convert"},
        "resize": {
            "rule": "nearest multiple of factor, half to even; then shrink to max or grow to min",
            "factor": patch * merge,
            "max_aspect_ratio": MAX_ASPECT,
            "resample": "bicubic",
            "antialias": True,
        },
        "limits": {
            "chat": {"min_pixels": chat[0], "max_pixels": chat[1]},
            "image-edit": {
                "min_pixels": REFERENCE_MIN,
                "max_pixels": REFERENCE_MAX,
                "max_total_pixels": REFERENCE_TOTAL,
            },
            "interleave": {
                "min_pixels": REFERENCE_MIN,
                "max_pixels": REFERENCE_MAX,
                "max_total_pixels": REFERENCE_TOTAL,
            },
        },
        "rescale": 1 / 255,
        "mean": list(MEAN),
        "std": list(STD),
        "patch_size": patch,
        "merge_size": merge,
        "row_order": "channel, row, column",
    }


def merge_size(config: dict[str, Any], where: str = "config.json") -> int:
    """m = int(1 / downsample_ratio) of config.json; a one-element list is accepted as the number.

    Raises:
        InputError: missing, not a number, or not a ratio that gives a whole m.
    Source: `NEOChatModel` of sensenova_u1.
    """
    ratio: Any = _one(config.get("downsample_ratio"))
    if type(ratio) not in (int, float) or not 1e-3 < ratio <= 1:
        raise InputError(f"{where}: downsample_ratio", found=repr(ratio), expected="0..1")
    m = int(1 / ratio)
    if abs(m * ratio - 1) > 1e-6 or m > 64:
        raise InputError(f"{where}: downsample_ratio", found=ratio, expected="1/m, m <= 64")
    return m


def _one(value: Any) -> Any:
    """The element of a list of one, which a re-saved config may hold; other values as they are."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
