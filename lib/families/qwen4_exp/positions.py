"""Position ids of prompts and of the tokens after them: text index, temporal, height, width.

B rows, S tokens of a row. m: patches on a side of a token's block. Grids are in patches.
Source: docs/qwen4-exp.md, "Position ids".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import InputError

I64 = NDArray[np.int64]
Grid = tuple[int, int, int]
"""Frames, rows and columns of a picture, in patches."""


def prompt_positions(
    ids: ArrayLike,
    mask: ArrayLike,
    grids: Sequence[Grid] | I64,
    image_token_id: int,
    merge: int = 2,
) -> tuple[I64, I64]:
    """int64 [4, B, S] of every prompt token, and how far each row's places differ from its count.

    Channel 0 is the index among a row's real tokens. On channels 1 to 3 text advances by one, all
    three alike; the tokens of a picture stand at (temporal, row, column) of its merged grid from
    where the text has come to, and what follows goes on after the longer side. Padding is 0 on
    all channels.

    Args:
        ids, mask: [B, S]; mask 1 at real tokens, wherever the padding is.
        grids: (t, h, w) of each picture, row after row of the batch.
    Returns:
        positions, and deltas int64 [B]: 1 + greatest place of channels 1 to 3, less the real
        tokens of the row. 0 without pictures.
    Raises:
        InputError: a run of image tokens that is not as long as its picture, another number of
            pictures than of runs, a grid that m does not divide, arrays of other shapes.
    """
    x, real = np.asarray(ids, np.int64), np.asarray(mask) != 0
    if x.ndim != 2 or real.shape != x.shape:
        raise InputError(
            "prompt: mask", found=list(real.shape), expected=f"[batch, sequence], as ids {x.shape}"
        )
    pictures = [_grid(g, i, merge) for i, g in enumerate(grids)]
    runs = [list(_runs(x[b][real[b]] == image_token_id)) for b in range(len(x))]
    found = sum(is_image for row in runs for is_image, _ in row)
    if found != len(pictures):
        raise InputError(
            "prompt: runs of image tokens", found=found, expected=f"{len(pictures)} of pictures"
        )
    positions = np.zeros((4, *x.shape), np.int64)
    deltas = np.zeros(len(x), np.int64)
    taken = 0
    for b, row in enumerate(runs):
        parts, at = [np.zeros((3, 0), np.int64)], 0
        for is_image, length in row:
            if not is_image:
                parts.append(np.broadcast_to(at + np.arange(length), (3, length)))
                at += length
                continue
            t, h, w = pictures[taken]
            if t * h * w != length:
                raise InputError(
                    f"prompt: picture {taken}: image tokens",
                    found=length,
                    expected=f"{t * h * w} of its grid {t}x{h}x{w}",
                )
            parts.append(at + np.indices((t, h, w), np.int64).reshape(3, length))
            at += max(h, w)
            taken += 1
        places = np.concatenate(parts, axis=1)  # [3, real tokens]
        count = places.shape[1]
        positions[0, b, real[b]] = np.arange(count)
        positions[1:, b, real[b]] = places
        deltas[b] = places.max(initial=-1) + 1 - count
    return positions, deltas


def next_positions(mask_so_far: ArrayLike, deltas: ArrayLike) -> I64:
    """int64 [4, B, 1] of the token that comes next in each row.

    Args:
        mask_so_far: [B, P], 1 at real tokens of the P that were given before.
        deltas: [B], as `prompt_positions` returned them.
    """
    count = np.count_nonzero(np.asarray(mask_so_far), axis=1).astype(np.int64)
    place = count + np.asarray(deltas, np.int64)
    return np.stack([count, place, place, place])[:, :, None]


def _grid(grid: ArrayLike, number: int, merge: int) -> Grid:
    """The grid of a picture in tokens."""
    sides = np.asarray(grid, np.int64).reshape(-1).tolist()
    if len(sides) != 3 or min(sides) < 1 or sides[1] % merge or sides[2] % merge:
        raise InputError(
            f"picture {number}: grid",
            found=sides,
            expected=f"[frames, rows, columns], sides multiples of {merge}",
        )
    return sides[0], sides[1] // merge, sides[2] // merge


def _runs(is_image: NDArray[np.bool_]) -> Iterator[tuple[bool, int]]:
    """(image?, length) of each run of equal values."""
    edges = np.flatnonzero(np.diff(is_image)) + 1
    for part in np.split(is_image, edges):
        if part.size:
            yield bool(part[0]), part.size
