"""Pictures to patch rows: colour, size rule, resampling, normalisation, merge-block order.

P: pixels on a side of a patch. m: patches on a side of a merge block. F = P m. Grids are in
patches.
Source: docs/qwen4-exp.md, "Image processor".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, Unsupported, UsageProblem
from ...sampling.image import MAX_PIXELS
from ..values import Values

if TYPE_CHECKING:
    from PIL import Image

F32 = NDArray[np.float32]

PATCH, FRAMES, MERGE = 16, 2, 2
"""The only geometry that the vision graph is written for."""
CLASS_PATCH = 14
CLASS_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLASS_STD = (0.26862954, 0.26130258, 0.27577711)
"""What the published processor class uses for fields that preprocessor_config.json leaves out."""
BICUBIC = 3
"""Pillow's number, as preprocessor_config.json has it."""
MAX_ASPECT = 200
CLASSES = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast")
STEPS = ("do_convert_rgb", "do_resize", "do_rescale", "do_normalize")
OTHER_STEPS = ("do_center_crop", "do_pad")
READ = {
    "image_processor_type", *STEPS, *OTHER_STEPS, "resample", "rescale_factor", "image_mean",
    "image_std", "patch_size", "temporal_patch_size", "merge_size", "size", "min_pixels",
    "max_pixels",
}  # fmt: skip
NO_EFFECT = {
    "processor_class", "feature_extractor_type", "auto_map", "data_format", "input_data_format",
    "device", "return_tensors", "disable_grouping", "default_to_square", "crop_size", "pad_size",
}  # fmt: skip
"""Fields that change no pixel: names of classes, forms of arrays, parameters of steps not taken."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What the preprocessing of a checkpoint depends on.

    Attributes:
        min_pixels, max_pixels: limits of the area of a resized picture.
        mean, std: of each colour, for values from 0 to 1.
    """

    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float] = CLASS_MEAN
    std: tuple[float, float, float] = CLASS_STD


def read_processor(values: dict[str, Any], where: str = "preprocessor_config.json") -> Processor:
    """The preprocessing that a checkpoint's preprocessor_config.json asks for.

    Fields left out or null have the published class's values, but for `size`, which has to be
    there. A field that is not known, or that asks for another computation, is refused.

    Args:
        where: name of the file in messages.
    Raises:
        InputError: a value of the wrong type or outside its range; names field and value.
        Unsupported: a well-formed value that this module does not implement.
    """
    fields = {k: v for k, v in values.items() if v is not None}
    for key in sorted(fields.keys() - READ - NO_EFFECT):
        raise Unsupported(f"{where}: '{key}'", found=repr(fields[key]), expected="no such field")
    v = Values(fields, where)
    _only(v, "image_processor_type", fields.get("image_processor_type", CLASSES[0]), CLASSES)
    for key in STEPS:
        _only(v, key, v.flag(key, True), (True,))
    for key in OTHER_STEPS:
        _only(v, key, v.flag(key, False), (False,))
    _only(v, "resample", v.size("resample", BICUBIC, lowest=0), (BICUBIC,))
    factor = fields.get("rescale_factor", 1 / 255)
    if not _is_number(factor) or abs(factor * 255 - 1) > 1e-6:
        raise Unsupported(f"{where}: 'rescale_factor'", found=repr(factor), expected="1/255")
    for key, default, only in (
        ("patch_size", CLASS_PATCH, PATCH),
        ("temporal_patch_size", FRAMES, FRAMES),
        ("merge_size", MERGE, MERGE),
    ):
        given = v.size(key, default)
        if given != only:
            left_out = "" if key in fields else " (the default of the published class)"
            raise Unsupported(f"{where}: '{key}'", found=f"{given}{left_out}", expected=only)
    size = v.inner("size")
    for key in sorted(size.values.keys() - {"shortest_edge", "longest_edge"}):
        raise Unsupported(f"{size.where}: '{key}'", found=repr(size.values[key]))
    least = size.size("shortest_edge", most=MAX_PIXELS)
    most = size.size("longest_edge", lowest=least, most=MAX_PIXELS)
    for key, area in (("min_pixels", least), ("max_pixels", most)):
        if v.size(key, area, most=MAX_PIXELS) != area:  # two fields for one limit
            raise Unsupported(f"{where}: '{key}'", found=fields[key], expected=f"{area}, as 'size'")
    mean = _three(v, "image_mean", CLASS_MEAN, -1e3)
    return Processor(least, most, mean, _three(v, "image_std", CLASS_STD, 1e-6))


def processor_json(
    values: dict[str, Any], where: str = "preprocessor_config.json"
) -> dict[str, Any]:
    """The content of processor.json of a package, from a checkpoint's preprocessor_config.json.

    Raises: as `read_processor`.
    """
    return _content(read_processor(values, where))


def from_package(values: dict[str, Any], where: str = "processor.json") -> Processor:
    """The preprocessing of a package's processor.json.

    Args:
        values: valid by the schema. Fields that are left out, and notes, are not compared.
    Raises:
        InputError: limits or statistics that are missing or out of range.
        Unsupported: another preprocessing than this module does; names the field.
    """
    chat = Values(values, where).inner("limits").inner("chat")
    least = chat.size("min_pixels", most=MAX_PIXELS)
    v = Values({"mean": values.get("mean"), "std": values.get("std")}, where)
    p = Processor(
        least,
        chat.size("max_pixels", lowest=least, most=MAX_PIXELS),
        _three(v, "mean", None, -1e3),
        _three(v, "std", None, 1e-6),
    )
    _same(values, _content(p), where)
    return p


def check_processor(values: dict[str, Any], where: str) -> None:
    """Refuse a processor.json that asks for another preprocessing than this module does.

    Raises: as `from_package`.
    """
    from_package(values, where)


def smart_resize(
    height: int,
    width: int,
    min_pixels: int,
    max_pixels: int,
    factor: int = PATCH * MERGE,
    what: str = "picture",
) -> tuple[int, int]:
    """(height, width) a picture is resized to: multiples of F with about its aspect ratio.

    Each side goes to the nearest multiple of F, half to even, which may be 0. If that area is above
    max_pixels, both sides shrink by sqrt(h w / max) and round down, to at least F; if it is below
    min_pixels, both grow by sqrt(min / (h w)) and round up.

    Args:
        what: how messages call the picture.
    Raises:
        InputError: a side below 1, or an aspect ratio above 200.
        UsageProblem: limits that contradict each other.
    """
    if not 0 < min_pixels <= max_pixels:
        raise UsageProblem(
            "pixel limits", found=f"{min_pixels}..{max_pixels}", expected="0 < min <= max"
        )
    if min(height, width) < 1:
        raise InputError(f"{what} size", found=f"{width}x{height}", expected="at least 1x1")
    aspect = max(height, width) / min(height, width)
    if aspect > MAX_ASPECT:
        raise InputError(
            f"{what} aspect ratio",
            found=f"{aspect:g} ({width}x{height})",
            expected=f"at most {MAX_ASPECT}",
        )
    h, w = (round(side / factor) * factor for side in (height, width))
    if h * w > max_pixels:
        b = math.sqrt(height * width / max_pixels)
        h, w = (max(factor, math.floor(n / b / factor) * factor) for n in (height, width))
    elif h * w < min_pixels:
        b = math.sqrt(min_pixels / (height * width))
        h, w = (math.ceil(n * b / factor) * factor for n in (height, width))
    return h, w


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB; what is transparent, by a channel or by one colour, is composited on white.

    Raises:
        Unsupported: a mode that Pillow turns into no RGB.
    """
    from PIL import Image

    try:
        if "A" not in image.getbands() and image.info.get("transparency") is None:
            return image.convert("RGB")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    except ValueError as e:
        raise Unsupported("picture mode", found=image.mode, expected="one that has RGB") from e


def patch_rows(x: F32) -> F32:
    """A picture [3, H, W] as rows [N, 3 2 P P] in the order that the vision tower takes.

    Rows: 2 x 2 merge blocks in raster order, raster order inside a block. In a row: channel, frame,
    row, column; both frames are the picture.

    Raises:
        InputError: a side is not a multiple of F.
    """
    _, H, W = x.shape
    side = PATCH * MERGE
    if H % side or W % side or not H * W:
        raise InputError("picture size", found=f"{W}x{H}", expected=f"multiples of {side}")
    blocks = x.reshape(3, H // side, MERGE, PATCH, W // side, MERGE, PATCH)
    one = blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, 1, PATCH * PATCH)
    return np.repeat(one, FRAMES, axis=2).reshape(len(one), -1)  # [N, 1536]


def preprocess(
    image: Image.Image, p: Processor, what: str = "picture"
) -> tuple[F32, tuple[int, int, int]]:
    """Patch rows float32 [N, 1536] of a picture and its grid (1, h, w) in patches.

    Colour, size rule, bicubic resampling of 8-bit values, / 255, (x - mean) / std, patches.

    Args:
        what: how messages call the picture.
    Raises: as `smart_resize` and `to_rgb`.
    """
    from PIL import Image

    h, w = smart_resize(image.height, image.width, p.min_pixels, p.max_pixels, what=what)
    pixels = np.asarray(to_rgb(image).resize((w, h), Image.Resampling.BICUBIC))
    x = pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    mean = np.array(p.mean, np.float32)[:, None, None]
    std = np.array(p.std, np.float32)[:, None, None]
    return patch_rows((x - mean) / std), (1, h // PATCH, w // PATCH)


def _content(p: Processor) -> dict[str, Any]:
    return {
        "schema": "ntool-processor-v1",
        "color": {"mode": "RGB", "other": "convert; transparency is composited on white"},
        "resize": {
            "rule": "nearest multiple of factor, half to even, 0 allowed; then shrink or grow",
            "factor": PATCH * MERGE,
            "max_aspect_ratio": MAX_ASPECT,
            "resample": "bicubic",
            "antialias": True,
        },
        "limits": {"chat": {"min_pixels": p.min_pixels, "max_pixels": p.max_pixels}},
        "rescale": 1 / 255,
        "mean": list(p.mean),
        "std": list(p.std),
        "patch_size": PATCH,
        "merge_size": MERGE,
        "frames": FRAMES,
        "row_order": "channel, frame, row, column",
        "patch_order": "merge blocks, then inside a block",
    }


def _same(given: Any, mine: Any, where: str) -> None:
    if isinstance(mine, dict):
        for key in sorted(mine.keys() & given.keys() - {"schema", "rule", "other"}):
            _same(given[key], mine[key], f"{where}: {key}")
    elif given != mine:
        raise Unsupported(where, found=given, expected=mine)


def _only(v: Values, key: str, given: Any, allowed: tuple[Any, ...]) -> None:
    if given not in allowed:
        expected = " or ".join(map(str, allowed))
        raise Unsupported(f"{v.where}: '{key}'", found=repr(given), expected=expected)


def _three(
    v: Values, key: str, default: tuple[float, float, float] | None, lowest: float
) -> tuple[float, float, float]:
    given = v.values.get(key)
    given = default if given is None else given
    if (
        not isinstance(given, list | tuple)
        or len(given) != 3
        or not all(_is_number(n) and lowest <= n <= 1e3 for n in given)
    ):
        raise v.wrong(key, repr(given)[:80], f"three numbers from {lowest:g} to 1000")
    return float(given[0]), float(given[1]), float(given[2])


def _is_number(value: object) -> bool:
    # NaN is not in the range, and an integer of any length compares without an error
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e6
