"""Listing a GGUF set of 1,224 tensors with a vocabulary of 248,000, beside the `gguf` package."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .measure import NTOOL, PYTHON, ROOT, in_turn, output_of, run
from .table import Bench, Line, Row, at_least, at_most, spent

CPU, FACTOR = 0.25, 40
_READ = (
    "import gguf, pathlib, sys; [gguf.GGUFReader(p) for p in pathlib.Path(sys.argv[1]).iterdir()]"
)


def inspect(bench: Bench) -> Iterator[Line]:
    """The peer makes objects of all headers and lists nothing; ours lists them as well."""
    folder = str(bench.scratch / "gguf")
    output_of([PYTHON, "-m", "bench.gguf_files", folder], cwd=ROOT)
    ours, theirs = in_turn(
        bench.runs,
        partial(run, [*NTOOL, "inspect-headers", folder, "--format", "jsonl"]),
        partial(run, [PYTHON, "-c", _READ, folder]),
    )
    yield Line(
        spent(ours),
        spent(theirs, "gguf.GGUFReader"),
        f"{theirs.cpu / ours.cpu:.0f}x faster",
        f"<= {CPU} s, at least {FACTOR}x",
        max(at_most(ours.cpu, CPU), at_least(theirs.cpu / ours.cpu, FACTOR)),
    )


ROWS = (
    Row(
        "inspect-headers-gguf",
        "a GGUF set of 1,224 tensors and 248,000 tokens as JSON Lines to /dev/null",
        inspect,
        most=1,
    ),
)
