"""convert-fp8 from its options to a plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..checkpoint.tensor import Checkpoint, Problem
from ..conversion.plan import SHARD_NBYTES, Plan
from ..errors import UsageProblem
from . import to_dense, to_fp8, to_qdq
from .to_dense import Refused

__all__ = ["Refused", "Wish", "plan"]

TARGETS = (*to_dense.DTYPES, "qdq", "fp8")
KINDS = ("dense", "fp8", "qdq")
"""`convert` of the options of its plans."""


@dataclass
class Wish:
    """What the command line asks for, as it was written; None is an option that was not given."""

    to: str = "bf16"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()
    block: str | None = None
    scale: str | None = None
    shard_nbytes: int = SHARD_NBYTES
    lowering: str | None = None
    reading: str | None = None


def plan(
    checkpoint: Checkpoint, wish: Wish, statistics: dict[str, Any]
) -> tuple[Plan, list[Problem]]:
    """What will be written, and what is odd but no reason to refuse.

    Args:
        statistics: filled while the plan is carried out.
    Raises:
        UsageProblem: an option that does not go with another, or is not one.
        Refused, Unsupported, InputError: the checkpoint.
    """
    if wish.to not in TARGETS:
        raise UsageProblem("--to", found=repr(wish.to), expected=", ".join(TARGETS))
    if wish.scale not in (None, "block", "per-tensor"):
        raise UsageProblem("--scale", found=repr(wish.scale), expected="block or per-tensor")
    _require_fitting(wish)
    if wish.to == "fp8":
        choice = to_fp8.Choice(
            include=wish.include,
            exclude=wish.exclude,
            block=None if wish.scale == "per-tensor" else block_of(wish.block or "128,128"),
            shard_nbytes=wish.shard_nbytes,
        )
        return to_fp8.plan(checkpoint, choice, statistics), []
    if wish.to == "qdq":
        kept = to_qdq.Choice(
            wish.include, wish.exclude, wish.unscaled, wish.lowering or "blocked",
            wish.reading or "exact",
            wish.shard_nbytes,
        )  # fmt: skip
        return to_qdq.plan(checkpoint, kept, statistics)
    dense = to_dense.Choice(wish.to, wish.include, wish.exclude, wish.unscaled, wish.shard_nbytes)
    judged = to_dense.judge(checkpoint, wish.unscaled)
    made = to_dense.plan_of(checkpoint, dense, judged, statistics)
    if not made.counts().get("converted"):
        message = "no FP8 weight is converted: tensors are copied, whatever their dtype"
        judged.warnings.append(Problem("no-fp8", message, "warning"))
    return made, judged.warnings


def _require_fitting(wish: Wish) -> None:
    """Refuse options that would be ignored.

    Raises:
        UsageProblem: names the first.
    """
    of = {
        "--block": (wish.block, ("fp8",)),
        "--scale": (wish.scale, ("fp8",)),
        "--lowering": (wish.lowering, ("qdq",)),
        "--scale-reading": (wish.reading, ("qdq",)),
        "--allow-unscaled": (wish.unscaled or None, (*to_dense.DTYPES, "qdq")),
    }
    for option, (value, targets) in of.items():
        if value is not None and wish.to not in targets:
            raise UsageProblem(f"{option} with --to {wish.to}", expected=f"--to {targets[0]}")
    if wish.block is not None and wish.scale == "per-tensor":
        raise UsageProblem("--block with --scale per-tensor", expected="one of them")


def block_of(text: str) -> tuple[int, int]:
    """`R,C` of `--block`.

    Raises:
        UsageProblem: not two positive numbers.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5}),([1-9][0-9]{0,5})", text)
    if match is None:
        raise UsageProblem("--block", found=repr(text), expected="two numbers, as 128,128")
    return int(match[1]), int(match[2])
