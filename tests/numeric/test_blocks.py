"""How scales lie over tensors: grids that fit, grids that do not, spans of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntool.lib.errors import InputError
from ntool.lib.numeric.blocks import Blocks, blocks_of, grid_shape, scale_facts


@pytest.mark.parametrize(
    ("shape", "scale", "block", "wanted"),
    [
        ((256, 128), (2, 1), (128, 128), Blocks(1, 256, 128, (128, 128))),
        ((200, 300), (2, 3), (128, 128), Blocks(1, 200, 300, (128, 128))),
        ((1000, 128), (8, 1), (128, 128), Blocks(1, 1000, 128, (128, 128))),
        ((6, 8), (2, 2), (4, 4), Blocks(1, 6, 8, (4, 4))),
        ((3, 6, 8), (3, 2, 2), (4, 4), Blocks(3, 6, 8, (4, 4))),
        ((5, 8), (5, 1), (1, 8), Blocks(1, 5, 8, (1, 8))),
        ((2, 6, 8), (2, 2, 1), (3, 8), Blocks(2, 6, 8, (3, 8))),
        ((2, 6, 8), (2, 1, 1), None, Blocks(2, 6, 8, (6, 8))),
        ((5, 8), (), (4, 4), Blocks(1, 5, 8, (5, 8), scalar=True)),
        ((5, 8), (1,), (4, 4), Blocks(1, 5, 8, (5, 8), scalar=True)),
        ((5, 8), (1, 1), None, Blocks(1, 5, 8, (5, 8), scalar=True)),
        ((2, 5, 8), (1, 1, 1), None, Blocks(1, 10, 8, (10, 8), scalar=True)),
        ((7,), (), None, Blocks(1, 1, 7, (1, 7), scalar=True)),
        ((), (), None, Blocks(1, 1, 1, (1, 1), scalar=True)),
        ((2, 3, 4, 5), (1,), None, Blocks(1, 24, 5, (24, 5), scalar=True)),
    ],
)
def test_grids_that_fit(shape, scale, block, wanted) -> None:
    assert blocks_of(shape, scale, block, "w") == wanted


@pytest.mark.parametrize(
    ("shape", "scale", "block", "words"),
    [
        (
            (1000, 128),
            (7, 1),
            (128, 128),
            r"w: scales of \[1000, 128\] .*found \[7, 1\], expected \[8, 1\]",
        ),
        ((200, 300), (1, 2), (128, 128), r"\[200, 300\].*found \[1, 2\], expected \[2, 3\]"),
        ((200, 300), (3, 2), (128, 128), r"found \[3, 2\], expected \[2, 3\]"),
        ((200, 300), (6,), (128, 128), r"found \[6\], expected \[2, 3\]"),
        ((4, 6, 8), (8, 2), (4, 4), r"found \[8, 2\], expected \[4, 2, 2\]"),
        ((4, 6, 8), (6, 2, 2), (4, 4), r"found \[6, 2, 2\], expected \[4, 2, 2\]"),
        ((5, 8), (5, 1), None, r"found \[5, 1\], expected \[1, 1\]"),
        ((8,), (2,), (4, 4), "expected one value"),
        ((2, 2, 8, 8), (2, 2, 2, 2), (4, 4), "expected one value"),
        ((8, 8), (2, 2), (4, 0), r"block size: found \[4, 0\]"),
        ((8, 8), (0, 2), (4, 4), r"found \[0, 2\], expected \[2, 2\]"),
    ],
)
def test_grids_that_do_not_fit_are_refused_with_both_shapes(shape, scale, block, words) -> None:
    with pytest.raises(InputError, match=words):
        blocks_of(shape, scale, block, "w")


def test_a_single_value_in_a_model_of_blocks_can_be_told() -> None:
    blocks = blocks_of((256, 128), (1,), (128, 128), "w")
    assert blocks.scalar and grid_shape((256, 128), (128, 128)) == (2, 1)


@given(
    *(st.integers(1, n) for n in (3, 20, 9, 40)),
    st.integers(1, 12),
    st.integers(1, 9),
)
def test_spans_cover_rows_once_and_keep_to_their_limits(e, r, height, first, most, count) -> None:
    b = Blocks(e, r, 4, (height, 2))
    first = min(first, b.total_rows) - 1
    met = []
    for start, stop in b.spans(first, b.total_rows, most, count):
        assert 0 < stop - start <= most
        owners = {b.grid_row(i) for i in range(start, stop)}
        assert len(owners) <= count
        assert b.scale_rows(start, stop).tolist() == [b.grid_row(i) for i in range(start, stop)]
        assert b.starts_block(stop) or stop - start == most
        met += range(start, stop)
    assert met == list(range(first, b.total_rows))
    by_hand = [m * -(-r // height) + i // height for m in range(e) for i in range(r)]
    assert [b.grid_row(i) for i in range(b.total_rows)] == by_hand
    assert b.grid_rows == by_hand[-1] + 1


def test_facts_of_scales() -> None:
    facts = scale_facts(np.array([[0.5, -2, 0], [np.nan, np.inf, 3]], np.float32))
    assert (facts.not_finite, facts.negative, facts.zero) == (2, 1, 1)
    assert (facts.least, facts.largest) == (-2, 3)
    assert scale_facts(np.array([np.nan], np.float32)).largest == 0
