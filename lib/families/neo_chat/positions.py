"""Position indexes (temporal, row, column) of prompts and pictures, and what may attend to what.

S: tokens of a prompt. L = th tw: tokens of a picture, in rows of tw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import InputError

I64 = NDArray[np.int64]


def prompt_positions(
    ids: ArrayLike, ctx_id: int, img_start_id: int, token_grids: Sequence[tuple[int, int]]
) -> I64:
    """int64 [3, S]: temporal, row and column index of every prompt token.

    t[j] = #(k <= j, ids[k] != CTX) + #(k < j, ids[k] == IMG_START) - 1: ordinary tokens advance by
    one, what follows `<img>` by one more, and all context tokens of a picture share one t. Row and
    column are 0 but for context tokens, which carry their place in their picture's grid.

    Args:
        ids: [S] or [1, S].
        ctx_id, img_start_id: ids of `<IMG_CONTEXT>` and `<img>`.
        token_grids: (th, tw) of each picture, in order.
    Raises:
        InputError: the pictures' tokens are not as many as the context tokens.
    Source: `get_thw_indexes` of sensenova_u1.
    """
    x = np.asarray(ids, np.int64).reshape(-1)
    is_ctx = x == ctx_id
    need = sum(th * tw for th, tw in token_grids)
    if int(is_ctx.sum()) != need:
        raise InputError(
            "prompt: <IMG_CONTEXT> tokens", found=int(is_ctx.sum()), expected=f"{need} of pictures"
        )
    start = (x == img_start_id).astype(np.int64)
    p = np.zeros((3, x.size), np.int64)
    p[0] = np.cumsum(~is_ctx) + (np.cumsum(start) - start) - 1
    if token_grids:
        p[1:, is_ctx] = np.concatenate([grid_positions(th, tw) for th, tw in token_grids], axis=1)
    return p


def grid_positions(th: int, tw: int) -> I64:
    """int64 [2, L]: row and column of each token of a picture, row-major."""
    k = np.arange(th * tw, dtype=np.int64)
    return np.stack([k // tw, k % tw])


def image_positions(t: int, th: int, tw: int) -> I64:
    """int64 [3, L] of a picture that is generated or re-encoded: one shared t, row, column.

    Args:
        t: 1 + the greatest temporal index of the branch's own prefix.
    Source: `t2i_generate`, `it2i_generate` of sensenova_u1.
    """
    return np.concatenate([np.full((1, th * tw), t, np.int64), grid_positions(th, tw)])


def text_positions(t: int, count: int) -> I64:
    """int64 [3, count] of text tokens that continue a sequence at temporal index t.

    Source: `interleave_gen`, `generate` of sensenova_u1.
    """
    p = np.zeros((3, count), np.int64)
    p[0] = t + np.arange(count)
    return p


def block_causal_mask(t: ArrayLike) -> NDArray[np.bool_]:
    """bool [S, S]: query i may see key j iff t[j] == t[i] or j <= i.

    The test compares temporal indexes only; row and column play no part.

    Args:
        t: temporal indexes, [S].
    Source: `create_block_causal_mask` of sensenova_u1.
    """
    t = np.asarray(t)
    return (t[None, :] == t[:, None]) | np.tri(t.size, dtype=bool)
