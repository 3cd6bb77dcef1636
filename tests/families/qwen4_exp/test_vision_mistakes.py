"""Which test catches which mistake, and that it does: each mistake is made, and the test must fail.

The rows are those of the table that came with the goldens, where every mistake was made in an
implementation of its own, and deviated by more than ten times the tolerance of the goldens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from . import test_embedding, test_positions, test_processor, test_vision
from . import vision_mistakes as wrong

Check = Callable[[], None]
LAYOUTS = {case["name"]: case for case in test_positions.CASES}
SIZES = [case for case in test_processor.SIZES if isinstance(case["resized"], list)]


def layout(name: str) -> Check:
    return partial(test_positions.test_recorded_layout, LAYOUTS[name])


def all_sizes() -> None:
    for case in SIZES:
        test_processor.test_size_rule(case)


features = partial(test_vision.test_features_of_a_golden, "image-text")
gelu = partial(test_vision.test_features_of_a_golden, "vision-gelu")
pictures = test_processor.test_recorded_pictures
empty = partial(test_embedding.test_recorded_values, "empty.")

TABLE: dict[str, tuple[wrong.Mistake, Check]] = {
    "patches treated as raster order": (wrong.patches_in_raster_order, features),
    "half-pixel interpolation": (wrong.half_pixel_interpolation, features),
    "no interpolation": (wrong.no_interpolation, features),
    "row/column rotary swapped": (wrong.rows_and_columns_swapped, features),
    "attention across images": (wrong.attention_across_pictures, features),
    "erf GELU in the vision MLP": (wrong.erf_gelu_in_the_blocks, gelu),
    "tanh GELU in the merger": (wrong.tanh_gelu_in_the_merger, gelu),
    "position advances by token count of the image": (
        wrong.step_of_a_picture_is_its_tokens,
        layout("one tall image"),
    ),
    "channel 0 counts padding": (wrong.channel_0_counts_padding, layout("left padded batch")),
    "bilinear resize": (wrong.bilinear, pictures),
    "mean/std missing": (wrong.no_mean_and_std, pictures),
    "raster patch order": (wrong.raster_patch_order, pictures),
    "frame axis before channel": (wrong.frame_before_channel, pictures),
    "second temporal frame zero instead of a copy": (wrong.second_frame_zero, pictures),
    "round half up in the resize rule": (wrong.half_rounded_up, all_sizes),
    "image token with no features embedded as zero": (wrong.zero_without_features, empty),
}


@pytest.mark.parametrize("row", TABLE)
def test_the_mistake_is_caught(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake, check = TABLE[row]
    mistake(monkeypatch)
    with pytest.raises(AssertionError, match=r"Mismatched elements|assert \["):
        check()


@pytest.mark.parametrize("row", TABLE)
def test_without_the_mistake_nothing_is_caught(row: str) -> None:
    TABLE[row][1]()
