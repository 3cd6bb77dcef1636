"""Many pictures in one run: jobs from options and from JSON Lines, and where each picture goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from ...checkpoint.regular_file import open_given
from ...checkpoint.strict_json import load_object
from ...errors import InputError, UsageProblem
from .request import Request

FIELDS: dict[str, type | tuple[type, ...]] = {
    "prompt": str, "images": list, "system": str, "think": bool, "seed": int, "output": str,
    "size": str, "steps": int, "cfg": (int, float), "img_cfg": (int, float), "cfg_norm": str,
    "cfg_interval": str, "shift": (int, float), "t_eps": (int, float),
}  # fmt: skip
"""Fields of one line of a prompts file; each means what the option of that name means."""
MAX_LINE = 1 << 20
MAX_TOTAL = 64 << 20
"""Bytes of a prompts file; a pipe may never end."""
LEAST_LINE = 256
"""Bytes that a line counts for at least: what it becomes in memory is more than its text."""
PLAIN = ("steps", "cfg", "img_cfg", "cfg_norm", "shift", "t_eps")
"""Sampler options whose value is taken as it is."""


@dataclass(frozen=True)
class Job:
    """One picture to draw.

    Attributes:
        request: its prompt; not used when prefix files are given.
        seed: of its noise.
        output: file, or `-`.
        options: sampler options that differ from the package's defaults.
    """

    request: Request
    seed: int
    output: str
    options: dict[str, Any] = field(default_factory=dict)


def numbered(output: str, index: int, count: int) -> str:
    """OUT.png for a single picture, OUT-0.png, OUT-1.png, ... for several."""
    if count == 1:
        return output
    path = Path(output)
    return str(path.with_name(f"{path.stem}-{index}{path.suffix or '.png'}"))


def counted(job: Job, count: int) -> list[Job]:
    """The job with `count` seeds in a row, its output numbered."""
    if job.output == "-" and count > 1:
        raise UsageProblem("several pictures and -o -", expected="a file name, which is numbered")
    return [
        replace(job, seed=job.seed + i, output=numbered(job.output, i, count)) for i in range(count)
    ]


def from_lines(path: str, base: Job) -> list[Job]:
    """Jobs from a JSON Lines file (`-`: standard input); what a line leaves out is as in `base`.

    Raises:
        SourceNotFound: no such file.
        InputError: a line is not a JSON object of known fields and types; names the line.
    """
    with open_given(path) as lines:
        rows = list(_read(lines, "standard input" if path == "-" else path))
    if not rows:
        raise InputError(f"{path}: no prompts")
    if base.output == "-":
        raise UsageProblem("--prompts and -o -", expected="a file name, which is numbered")
    return [_job(row, base, index, len(rows)) for index, row in enumerate(rows)]


def _job(row: dict[str, Any], base: Job, index: int, count: int) -> Job:
    images = tuple(Path(p) for p in row.get("images", ())) or base.request.images
    request = Request(
        "image-edit" if images else "text-to-image",
        prompt=row["prompt"],
        images=images,
        system=row.get("system", base.request.system),
        think=row.get("think", base.request.think),
        limits=base.request.limits if images else (None, None),
    )
    return Job(
        request,
        row.get("seed", base.seed),
        row.get("output") or numbered(base.output, index, count),
        {**base.options, **options_of(row)},
    )


def parse_size(text: str) -> tuple[int, int]:
    """`WxH` in pixels.

    Raises:
        UsageProblem: not two whole numbers with an x between them.
    """
    match = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", text)
    if not match:
        raise UsageProblem("--size", found=text, expected="WIDTHxHEIGHT, for example 1024x768")
    return int(match[1]), int(match[2])


def parse_interval(text: str) -> tuple[float, float]:
    """`LO,HI`, two numbers.

    Raises:
        UsageProblem: anything else.
    """
    try:
        lo, hi = (float(x) for x in text.split(","))
    except ValueError:
        raise UsageProblem(
            "--cfg-interval", found=text, expected="LO,HI, for example 0,0.8"
        ) from None
    return lo, hi


def options_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Sampler options under their internal names: `size` becomes width and height, and so on."""
    options = {k: row[k] for k in PLAIN if row.get(k) is not None}
    if row.get("size") is not None:
        options["width"], options["height"] = parse_size(row["size"])
    if row.get("cfg_interval") is not None:
        options["cfg_interval"] = parse_interval(row["cfg_interval"])
    return options


def _read(lines: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_bounded(lines, name), 1):
        where = f"{name}: line {number}"
        if len(line) > MAX_LINE:
            raise InputError(f"{where}: length", found=f"over {MAX_LINE} bytes", expected="less")
        if not line.strip():
            continue
        row = load_object(line, where)
        for key, value in row.items():
            wanted = FIELDS.get(key)
            if wanted is None:
                raise InputError(
                    f"{where}: field", found=key, expected=f"one of {', '.join(FIELDS)}"
                )
            odd = isinstance(value, bool) and wanted is not bool
            if key == "images" and isinstance(value, list):
                odd = not all(isinstance(p, str) and p for p in value)
            if odd or not isinstance(value, wanted):
                expected = getattr(wanted, "__name__", "number")
                raise InputError(f"{where}: '{key}'", found=repr(value), expected=expected)
        if "prompt" not in row:
            raise InputError(f"{where}: 'prompt' is missing")
        if row.get("seed", 0) < 0:
            raise InputError(f"{where}: 'seed'", found=row["seed"], expected=">= 0")
        if row.get("output") == "-":
            raise InputError(f"{where}: 'output'", found="'-'", expected="a file name")
        yield row


def _bounded(lines: BinaryIO, name: str) -> Iterable[bytes]:
    total = 0
    while line := lines.readline(MAX_LINE + 1):
        total += max(len(line), LEAST_LINE)
        if total > MAX_TOTAL:
            raise InputError(f"{name}: over {MAX_TOTAL} bytes", expected="less")
        yield line
