"""Prefix files, read as strictly as anything that a stranger may have made.

S tokens; the cache is [1, KV, S, hd] a layer and role.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checkpoint.strict_json import has_lone_surrogate
from ...errors import InputError
from ...package.package import Package
from ...runtime import arrays
from .request import TASKS

I64 = NDArray[np.int64]
MAX_TOKENS = 1 << 20
"""Cap on S; the models' context is a quarter of that."""
MAX_SIDE = 1 << 31
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Cache types of package.json -> safetensors names."""


def read(
    path: Path, package: Package, context: int, vocab_size: int
) -> tuple[I64, I64, arrays.Arrays, dict[str, Any]]:
    """(token ids [1, S], positions [3, S], cache, metadata) of a prefix file of this package.

    Nothing but these is read: the file's logits are for other readers.

    Args:
        context: id of `<IMG_CONTEXT>`.
    Raises:
        InputError: made with another package; an array is missing, of another type or shape than
            the package's cache, or not finite; ids, positions or metadata that no prefill gives.
    """
    file = arrays.load(path)
    if file.words.get("package") != package.digest:
        raise InputError(
            f"{path}: made with package", found=file.words.get("package"), expected=package.digest
        )
    words = checked_words(file.words, str(path))
    file.check("token_ids", ["I64"], [1, None], "[1, S]")
    S = file.tensors["token_ids"].shape[1]
    if S > MAX_TOKENS:
        raise InputError(f"{path}: tokens", found=S, expected=f"<= {MAX_TOKENS}")
    if words["text_length"] != S:
        raise InputError(
            f"{path}: metadata: text_length", found=words["text_length"], expected=f"{S} token ids"
        )
    file.check("position_ids", ["I64"], [3, S])
    dims = {"batch": 1, "past_sequence": S}
    for entry in package.manifest["cache"]:
        shape = [dims[d] if isinstance(d, str) else d for d in entry["shape"]]
        file.check(entry["input"], [DTYPES[entry["dtype"]]], shape)
    ids, positions = file.read("token_ids"), file.read("position_ids")
    check_ids(ids, vocab_size, str(path))
    check_positions(positions, ids[0] == context, str(path))
    cache = {e["input"]: file.finite(e["input"]) for e in package.manifest["cache"]}
    return ids, positions, cache, words


def check_ids(ids: I64, vocab_size: int, where: str) -> None:
    """Refuse token ids outside the vocabulary."""
    bad = ids[(ids < 0) | (ids >= vocab_size)]
    if bad.size:
        raise InputError(
            f"{where}: tensor 'token_ids'", found=int(bad[0]), expected=f"0..{vocab_size - 1}"
        )


def check_positions(p: I64, context: NDArray[np.bool_], where: str) -> None:
    """Refuse positions [3, S] that no prompt of these tokens has.

    Time starts at 0. A context token may share the time of the token before it; every other token
    is one or, behind `<img>`, two later. Rows and columns are 0 but for context tokens.

    Args:
        context: which tokens are `<IMG_CONTEXT>`, bool [S].
    """
    what = f"{where}: tensor 'position_ids'"
    # first the range: a difference of two int64 could wrap
    if p.min() < 0 or p.max() >= 1 << 31:
        bad = p[(p < 0) | (p >= 1 << 31)]
        raise InputError(what, found=int(bad[0]), expected="0..2^31-1")
    if p[0, 0] != 0:
        raise InputError(f"{what}: time of the first token", found=int(p[0, 0]), expected=0)
    least = np.where(context[1:], 0, 1)
    step = np.diff(p[0])
    odd = np.flatnonzero((step < least) | (step > 2))
    if odd.size:
        i = int(odd[0]) + 1
        raise InputError(
            f"{what}: time of token {i}",
            found=int(p[0, i]),
            expected=f"{int(p[0, i - 1]) + int(least[i - 1])}..{int(p[0, i - 1]) + 2}",
        )
    placed = np.flatnonzero((p[1:] != 0).any(axis=0) & ~context)
    if placed.size:
        i = int(placed[0])
        raise InputError(
            f"{what}: row and column of token {i}, which is no picture's",
            found=f"{int(p[1, i])}, {int(p[2, i])}",
            expected="0, 0",
        )


def _text(value: Any) -> bool:
    return isinstance(value, str) and not has_lone_surrogate(value)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(size, list)
        and len(size) == 2
        and all(type(n) is int and 0 < n < MAX_SIDE for n in size)
        for size in value
    )


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda v: v in TASKS, " or ".join(TASKS)),
    "prompt": (_text, "a string of UTF-8"),
    "query": (lambda v: v is None or _text(v), "a string of UTF-8, or null"),
    "think": (lambda v: isinstance(v, bool), "true or false"),
    "text_length": (lambda v: type(v) is int and 0 < v <= MAX_TOKENS, "a number of tokens"),
    "sizes": (_sizes, "a list of [width, height]"),
    "package": (
        lambda v: isinstance(v, str) and re.fullmatch("[0-9a-f]{64}", v) is not None,
        "a SHA-256",
    ),
}


def checked_words(words: dict[str, Any], where: str) -> dict[str, Any]:
    """The metadata of a prefix file, its fields of the types that prefill writes.

    Raises:
        InputError: names the field.
    """
    for key, (fits, expected) in _RULES.items():
        if key not in words:
            raise InputError(f"{where}: metadata: '{key}' is missing")
        if not fits(words[key]):
            raise InputError(f"{where}: metadata: {key}", found=repr(words[key]), expected=expected)
    if not _text(words.get("thought", "")):
        raise InputError(f"{where}: metadata: thought", expected="a string of UTF-8")
    if words["task"] == "image-edit" and not words["sizes"]:
        raise InputError(f"{where}: metadata: sizes", found="[]", expected="that of a picture")
    return words
