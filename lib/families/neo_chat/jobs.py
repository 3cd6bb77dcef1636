"""Many pictures in one run: jobs from options and from JSON Lines, and where each picture goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from ...checkpoint.regular_file import open_given
from ...checkpoint.strict_json import has_lone_surrogate, load_object
from ...errors import InputError, UsageProblem
from ...plain_numbers import decimal
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
MAX_SEED = 2**64 - 1
RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, MAX_SEED), "steps": (1, 10_000), "cfg": (-(10**6), 10**6),
    "img_cfg": (-(10**6), 10**6), "shift": (1e-3, 1000), "t_eps": (1e-6, 1000),
}  # fmt: skip
"""Least and most of the numbers of a line, as of the options."""
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
        line: the line of a prompts file that gives options of its own, for messages, or "".
    """

    request: Request
    seed: int
    output: str
    options: dict[str, Any] = field(default_factory=dict)
    line: str = ""


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
    if job.seed + count > MAX_SEED + 1:
        raise UsageProblem(
            f"--seed with --count {count}", found=job.seed, expected=f"<= {MAX_SEED + 1 - count}"
        )
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
    return [_job(row, where, base, index, len(rows)) for index, (where, row) in enumerate(rows)]


def _job(row: dict[str, Any], where: str, base: Job, index: int, count: int) -> Job:
    images = tuple(Path(p) for p in row.get("images", ())) or base.request.images
    try:
        request = Request(
            "image-edit" if images else "text-to-image",
            prompt=row["prompt"],
            images=images,
            system=row.get("system", base.request.system),
            think=row.get("think", base.request.think),
            limits=base.request.limits if images else (None, None),
        )
        own = options_of(row)
    except UsageProblem as e:
        raise InputError(f"{where}: {e.message}", hint=e.hint) from e
    return Job(
        request,
        row.get("seed", base.seed),
        row["output"] if "output" in row else numbered(base.output, index, count),
        {**base.options, **own},
        where if own else "",
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
        lo, hi = (decimal(x) for x in text.split(","))
    except ValueError:
        raise UsageProblem(
            "--cfg-interval", found=text, expected="LO,HI, for example 0,0.8"
        ) from None
    if not all(abs(t) <= 1e6 for t in (lo, hi)):
        raise UsageProblem("--cfg-interval", found=text, expected="t, which is 0 to 1")
    return lo, hi


def options_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Sampler options under their internal names: `size` becomes width and height, and so on."""
    options = {k: row[k] for k in PLAIN if row.get(k) is not None}
    if row.get("size") is not None:
        options["width"], options["height"] = parse_size(row["size"])
    if row.get("cfg_interval") is not None:
        options["cfg_interval"] = parse_interval(row["cfg_interval"])
    return options


def _read(lines: BinaryIO, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_bounded(lines, name), 1):
        where = f"{name}: line {number}"
        if len(line) > MAX_LINE:
            raise InputError(f"{where}: length", found=f"over {MAX_LINE} bytes", expected="less")
        if not line.strip():
            continue
        row = load_object(line, where)
        for key, value in row.items():
            check_field(key, value, where)
        if "prompt" not in row:
            raise InputError(f"{where}: 'prompt' is missing")
        yield where, row


def check_field(key: str, value: Any, where: str) -> None:
    """Refuse a field of a line that is not known, or a value of another type, range or form.

    Raises:
        InputError: names `where` and the field.
    """
    wanted = FIELDS.get(key)
    if wanted is None:
        raise InputError(f"{where}: field", found=key, expected=f"one of {', '.join(FIELDS)}")
    fits = isinstance(value, wanted) and (type(value) is not bool or wanted is bool)
    if not fits:
        expected = getattr(wanted, "__name__", "number")
        raise InputError(f"{where}: '{key}'", found=repr(value), expected=expected)
    if key in RANGES:
        least, most = RANGES[key]
        if not least <= value <= most:
            raise InputError(f"{where}: '{key}'", found=value, expected=f"{least} to {most}")
    texts: list[Any] = value if wanted is list else [value] if wanted is str else []
    for text in texts:
        if not isinstance(text, str) or has_lone_surrogate(text):
            raise InputError(f"{where}: '{key}'", found=repr(text), expected="text of UTF-8")
        if key in ("output", "images") and (not text or "\0" in text):
            raise InputError(f"{where}: '{key}'", found=repr(text), expected="a path")
    if key == "output" and value == "-":
        raise InputError(
            f"{where}: 'output'", found="'-'", expected="a path: a line has no standard output"
        )


def _bounded(lines: BinaryIO, name: str) -> Iterable[bytes]:
    total = 0
    while line := lines.readline(MAX_LINE + 1):
        total += max(len(line), LEAST_LINE)
        if total > MAX_TOTAL:
            raise InputError(f"{name}: over {MAX_TOTAL} bytes", expected="less")
        yield line
