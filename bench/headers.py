"""Listing and counting 152,089 tensors in 131 shards from their headers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import NTOOL, PYTHON, ROOT, Skipped, in_turn, output_of, run
from .table import Bench, Line, Row, at_most, elapsed, spent

INSPECT_FACTOR, INSPECT_RSS = 3, 100e6
CENSUS_CPU, CENSUS_RSS = 0.8, 150e6
PEER = "get_local_safetensors_metadata"
"""A function of huggingface_hub that reads the same headers from a local folder."""


def inspect(bench: Bench) -> Iterator[Line]:
    """The budget is start-up, and three times what bare reading and parsing costs."""
    folder = str(bench.checkpoint("fp8"))
    ours, loop, bare, start = in_turn(
        bench.runs,
        partial(run, [*NTOOL, "inspect-headers", folder, "--format", "jsonl"]),
        partial(run, [PYTHON, str(ROOT / "bench" / "bare_loop.py"), folder]),
        partial(run, [PYTHON, "-c", "pass"]),
        partial(run, [*NTOOL, "--version"]),
    )
    limit = INSPECT_FACTOR * (loop.cpu - bare.cpu) + start.cpu
    yield Line(
        spent(ours),
        f"{spent(loop, 'bare loop')}, {spent(start, 'start-up')}",
        f"{(ours.cpu - start.cpu) / (loop.cpu - bare.cpu):.1f}x without start-up",
        f"<= {INSPECT_FACTOR}x + start-up = {limit:.2f} s, {INSPECT_RSS / 1e6:.0f} MB",
        max(at_most(ours.cpu, limit), at_most(ours.rss, INSPECT_RSS)),
    )


def census(bench: Bench) -> Iterator[Line]:
    """Direct: census reads the headers itself."""
    folder = str(bench.checkpoint("fp8"))
    ours, loop = in_turn(
        bench.runs,
        partial(run, [*NTOOL, "census", folder]),
        partial(run, [PYTHON, str(ROOT / "bench" / "bare_loop.py"), folder]),
    )
    yield Line(
        spent(ours),
        spent(loop, "bare loop"),
        f"{ours.cpu / loop.cpu:.1f}x",
        f"<= {CENSUS_CPU} s, {CENSUS_RSS / 1e6:.0f} MB",
        max(at_most(ours.cpu, CENSUS_CPU), at_most(ours.rss, CENSUS_RSS)),
    )


def pipe(bench: Bench) -> Iterator[Line]:
    """Both processes together; the memory is that of the bigger one."""
    folder = str(bench.checkpoint("fp8"))
    inspect_command = [*NTOOL, "inspect-headers", folder, "--format", "jsonl"]
    both, direct = in_turn(
        bench.runs,
        partial(run, inspect_command, [*NTOOL, "census", "-"]),
        partial(run, [*NTOOL, "census", folder]),
    )
    yield Line(
        elapsed(both),
        spent(direct, "census of the folder"),
        f"{both.cpu / direct.cpu:.1f}x",
    )


def peer(bench: Bench) -> Iterator[Line]:
    """The peer makes objects of all headers and lists nothing; ours lists them as well."""
    found = output_of([PYTHON, "-c", f"import huggingface_hub as h; print(hasattr(h, '{PEER}'))"])
    if found.strip() != "True":
        raise Skipped(f"this huggingface_hub has no {PEER}")
    folder = str(bench.checkpoint("fp8"))
    ours, theirs = in_turn(
        bench.runs,
        partial(run, [*NTOOL, "inspect-headers", folder, "--format", "jsonl"]),
        partial(run, [PYTHON, "-c", f"from huggingface_hub import {PEER} as f; f({folder!r})"]),
    )
    yield Line(
        spent(ours),
        spent(theirs, f"huggingface_hub.{PEER}"),
        f"{ours.cpu / theirs.cpu:.2f}x",
    )


def listing(bench: Bench) -> Iterator[Line]:
    """Names, dtypes and shapes of all tensors through the official library, as a user writes it."""
    folder = str(bench.checkpoint("fp8"))
    ours, theirs = in_turn(
        bench.runs,
        partial(run, [*NTOOL, "inspect-headers", folder, "--format", "jsonl"]),
        partial(run, [PYTHON, str(ROOT / "bench" / "safe_open_listing.py"), folder]),
    )
    yield Line(
        spent(ours),
        spent(theirs, "safetensors.safe_open, get_slice"),
        f"{ours.cpu / theirs.cpu:.2f}x",
    )


def modelinfo(bench: Bench) -> Iterator[Line]:
    """The peer reads the headers and prints sizes of groups; ours counts the same, and more."""
    folder = str(bench.checkpoint("fp8"))
    program = str(Path(bench.peer).with_name("modelinfo"))
    index = f"{folder}/model.safetensors.index.json"
    ours, theirs = in_turn(
        bench.runs,
        partial(run, [*NTOOL, "census", folder]),
        partial(run, [bench.peer, program, index]),
    )
    yield Line(spent(ours, "census"), spent(theirs, "modelinfo"), f"{ours.cpu / theirs.cpu:.2f}x")


ROWS = (
    Row("inspect-headers", "131 shards, 152,089 tensors as JSON Lines to /dev/null", inspect),
    Row("census", "census of the same, direct", census),
    Row("census-pipe", "census of the same, through a pipe from inspect-headers", pipe, most=3),
    Row("inspect-headers-peer", "the same headers through huggingface_hub", peer),
    Row("inspect-headers-listing", "the same listing through safetensors", listing),
    Row("census-peer", "the same headers through modelinfo-cli", modelinfo, peer="modelinfo"),
)
