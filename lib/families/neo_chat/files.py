"""The files that a run reads, and the check that it writes over none of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...checkpoint.output_file import OneFile, check_new_files, identity
from ...package.cache import folder_of
from .interleave import MAX_IMAGES
from .jobs import numbered
from .request import Request

READ = ("latent", "prefix", "prefix_images_only", "prefix_unconditional", "prompts", "prompt_file",
        "messages")  # fmt: skip
"""Options of sample-image and run-prefill that name a file to read."""


def inputs(o: Mapping[str, Any], requests: Iterable[Request]) -> list[str]:
    """Every file that the options, and the lines and messages behind them, name to be read."""
    found = [str(o[k]) for k in READ if o.get(k) is not None]
    tokens = o.get("tokens")
    if tokens is not None and tokens.startswith("@"):
        found.append(tokens[1:])
    found += [str(path) for request in requests for path in request.images]
    return list(dict.fromkeys(found))


def check(
    outputs: Iterable[str | Path | None], o: Mapping[str, Any], requests: Iterable[Request]
) -> None:
    """Refuse outputs that cannot be written, or that are or lie in what the run reads.

    Args:
        outputs: file names; None and `-` (standard output) are none.
    Raises:
        what `check_new_files` raises.
    """
    named = [str(path) for path in outputs if path is not None and str(path) != "-"]
    check_new_files(named, inputs(o, requests), folder_of(o["package"]))


def check_numbered(output: str, o: Mapping[str, Any], requests: Iterable[Request]) -> None:
    """`check` for the pictures of an interleaved run, OUT-0.png, OUT-1.png, ..., as many as may be.

    Raises:
        what `check_new_files` raises.
    """
    names = [numbered(output, i, 2) for i in range(MAX_IMAGES)]
    check(names, o, requests)
    read = {identity(path): path for path in inputs(o, requests)}
    if identity(output) in read:  # never written, but then a slip of the user
        raise OneFile(f"output '{output}' and input '{read[identity(output)]}' are one file")
