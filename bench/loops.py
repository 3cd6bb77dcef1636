"""How much of prefill, decoding and sampling is ours and not ONNX Runtime's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from statistics import median

from .measure import NTOOL, PYTHON, ROOT, in_turn, output_of, run
from .table import Bench, Line, Row, at_most, elapsed

LIMIT = 0.03
"""Share of a loop's wall time outside of InferenceSession.run."""
DECODE = 64
KINDS = ("prefill", "decode", "sample")
PROMPT = "a large red circle on a white background"


def loops(
    size: int,
    bench: Bench,
    source: str = "demo:shapes",
    steps: int = 20,
    kinds: tuple[str, ...] = KINDS,
) -> Iterator[Line]:
    """Medians over processes.

    On a shared machine the wall clock also counts how long other programs ran instead of ours. So
    what is judged is what it would say on an idle one: our CPU time against that of run() divided
    by the cores that run() keeps busy. What the wall clock did say stands beside it.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    package = str(bench.package(source))
    command = [PYTHON, "-m", "bench.loop_child", package, str(size), str(DECODE), str(steps)]
    told = [json.loads(output_of(command, cwd=ROOT)) for _ in range(bench.runs)]
    for kind in kinds:
        wall = median(t[kind]["wall"] for t in told)
        waited = median(1 - t[kind]["run"] / t[kind]["wall"] for t in told)
        ours = median(t[kind]["ours"] for t in told)
        theirs = median(t[kind]["theirs"] for t in told) / (cores or 1)
        share = ours / (ours + theirs)
        count = told[0][kind]["count"]
        speed = f"{wall:.3f} s, {count / wall:.0f} tokens/s"
        if kind == "sample":
            speed = f"{wall:.3f} s a picture of {size}x{size}, {count} steps, two branches"
        each = f"{ours / count * 1e6:.0f} us a {'step' if kind == 'sample' else 'token'}"
        yield Line(
            f"{speed}; outside of run() {each}",
            f"{theirs:.3f} s (InferenceSession.run on {cores} cores)",
            f"{share:.1%} outside ({waited:.0%} by the wall clock)",
            f"<= {LIMIT:.0%} outside",
            at_most(share, LIMIT),
            kind,
        )


def picture(bench: Bench) -> Iterator[Line]:
    """The whole command, with start-up, loading and the PNG."""
    package, out = str(bench.package("demo:shapes")), str(bench.scratch / "picture.png")
    command = [*NTOOL, "sample-image", package, "--prompt", PROMPT, "-o", out]
    (ours,) = in_turn(bench.runs, partial(run, command))
    yield Line(elapsed(ours, "128x128"))


ROWS = (
    Row("loops-128", "share of our own time in prefill, decode and sampling", partial(loops, 128)),
    Row(
        "loops-512",
        "the same for pictures of 512x512",
        partial(loops, 512, kinds=KINDS[2:]),
        most=3,
    ),
    Row(
        "loops-larger",
        "the same with a random model of 100 million parameters and pictures of 512x512",
        partial(loops, 512, source="dense", steps=4),
        most=1,
    ),
    Row("sample-image", "one picture of the demonstration checkpoint, whole command", picture),
)
