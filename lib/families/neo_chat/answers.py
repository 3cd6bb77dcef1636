"""Reading prompts from options and turning decoded tokens into an answer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ...errors import InputError, SourceNotFound, UsageProblem
from .pipeline import Pipeline
from .processor import CHAT_LIMITS

MAX_PROMPT = 16 << 20
"""Bytes of a prompt or token file; a model's context holds far less."""


def read_text(path: Path) -> str:
    """The text of a file, or of standard input for `-`, without its last line end.

    Raises:
        SourceNotFound: no such file.
        InputError: not UTF-8, or larger than MAX_PROMPT.
    """
    if str(path) == "-":
        raw = sys.stdin.buffer.read(MAX_PROMPT + 1)
    elif not path.is_file():
        raise SourceNotFound(f"{path}: no such file")
    else:
        with open(path, "rb") as f:
            raw = f.read(MAX_PROMPT + 1)
    if len(raw) > MAX_PROMPT:
        raise InputError(f"{path}: prompt", found=f"over {MAX_PROMPT} bytes", expected="less")
    try:
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not UTF-8 at byte {e.start}") from e


def parse_tokens(text: str) -> list[int]:
    """Token ids from `1,2,3` or `@FILE` (commas or white space between them).

    Raises:
        InputError: anything that is not a plain whole number.
    """
    if text.startswith("@"):
        text = read_text(Path(text[1:]))
    words = re.split(r"[,\s]+", text.strip())
    for word in words:
        if not re.fullmatch(r"[0-9]{1,18}", word, re.ASCII):
            raise InputError("--tokens: token id", found=repr(word[:40]), expected="a whole number")
    return [int(w) for w in words]


def limits_of(n_images: int, least: int | None, most: int | None) -> tuple[int, int]:
    """Pixel limits of pictures asked about, with the given ones in place of the usual.

    Raises:
        UsageProblem: least above most, or limits without a picture.
    """
    if n_images == 0 and (least is not None or most is not None):
        raise UsageProblem("--min-pixels and --max-pixels need --image")
    lo = CHAT_LIMITS[0] if least is None else least
    hi = CHAT_LIMITS[1] if most is None else most
    if lo > hi:
        raise UsageProblem("--min-pixels", found=lo, expected=f"<= --max-pixels {hi}")
    return lo, hi


def answer(pipeline: Pipeline, ids: list[int]) -> str:
    """The text of greedy tokens: up to the stop token, special tokens left out, stripped."""
    stop = pipeline.tokens["<|im_end|>"]
    kept = ids[: ids.index(stop)] if stop in ids else ids
    return pipeline.tokenizer.decode(kept, skip_special=True).strip()
