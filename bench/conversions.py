"""FP8 to dense and back, experts re-laid; file to file, beside copying the result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import NTOOL, ROOT, Cost, Skipped, in_turn, run
from .table import Bench, Line, Row, spent, verdict

COPY_FACTOR, RSS = 2.0, 100e6
PEERS = "NTOOL_BENCH_PEERS"
"""A Python of an environment with torch, transformers and compressed-tensors, for the rows
of peers."""


def _fresh(out: Path, *options: str, command: str = "convert-fp8") -> Cost:
    """One conversion into a folder that is not there yet, on the disk when it ends."""
    shutil.rmtree(out, ignore_errors=True)
    return run([*NTOOL, command, *options, "-o", str(out)])


def _copy(made: Path, out: Path) -> Cost:
    """`cp` of what was made, flushed to the disk as a conversion is."""
    shutil.rmtree(out, ignore_errors=True)
    script = 'cp -r "$0" "$1" && sync "$1"/*'
    return run(["sh", "-c", script, str(made), str(out)])


def dense(bench: Bench) -> Iterator[Line]:
    """1.07 GB of codes in 128x128 blocks to 2.15 GB of BF16."""
    source, out = str(bench.checkpoint("codes")), bench.folder / "dense"
    made = bench.folder / "made"
    options = [source, "--to", "bf16", "--shard-size", "300MB"]
    _fresh(made, *options)
    one, two, copy = in_turn(
        bench.runs,
        partial(_fresh, out, *options),
        partial(_fresh, out, *options, "--jobs", "2"),
        partial(_copy, made, bench.folder / "copy"),
    )
    for jobs, ours in (("1 job", one), ("2 jobs", two)):
        yield Line(
            f"convert-fp8-dense, {jobs}",
            f"{ours.wall:.2f} s from start to end, {spent(ours)}",
            f"{copy.wall:.2f} s from start to end, {spent(copy, 'cp of the output, sync')}",
            f"{ours.wall / copy.wall:.2f}x",
            f"<= {COPY_FACTOR:.0f}x, {RSS / 1e6:.0f} MB" if jobs == "2 jobs" else "",
            verdict(ours.wall <= COPY_FACTOR * copy.wall, ours.rss <= RSS)
            if jobs == "2 jobs"
            else "-",
        )


def codes(bench: Bench) -> Iterator[Line]:
    """2.15 GB of BF16 to codes and scales, errors measured."""
    source, made, out = str(bench.checkpoint("codes")), bench.folder / "made", bench.folder / "fp8"
    if not made.exists():
        _fresh(made, source, "--to", "bf16", "--shard-size", "300MB")
    options = [str(made), "--to", "fp8", "--shard-size", "300MB", "--jobs", "2"]
    ours, copy = in_turn(
        bench.runs, partial(_fresh, out, *options), partial(_copy, made, bench.folder / "copy")
    )
    yield Line(
        "convert-fp8-codes, 2 jobs",
        f"{ours.wall:.2f} s from start to end, {spent(ours)}",
        f"{copy.wall:.2f} s from start to end, {spent(copy, 'cp of the input, sync')}",
        f"{ours.wall / copy.wall:.2f}x",
        f"{RSS / 1e6:.0f} MB",
        verdict(ours.rss <= RSS),
    )


def experts(bench: Bench) -> Iterator[Line]:
    """1.6 GB of split experts to fused ones and to transposed ones, two jobs."""
    source = str(bench.checkpoint("experts"))
    for to in ("fused", "fused-transposed"):
        made, out = bench.folder / f"made-{to}", bench.folder / to
        options = (source, "--to", to, "--shard-size", "300MB", "--jobs", "2")
        _fresh(made, *options, command="convert-experts")
        ours, copy = in_turn(
            bench.runs,
            partial(_fresh, out, *options, command="convert-experts"),
            partial(_copy, made, bench.folder / "copy"),
        )
        yield Line(
            f"convert-experts, {to}",
            f"{ours.wall:.2f} s from start to end, {spent(ours)}",
            f"{copy.wall:.2f} s from start to end, {spent(copy, 'cp of the output, sync')}",
            f"{copy.wall / ours.wall:.2f}x the speed of cp",
            ">= 0.8x" if to == "fused" else "",
            verdict(copy.wall >= 0.8 * ours.wall) if to == "fused" else "-",
        )


def peer(bench: Bench) -> Iterator[Line]:
    """The same files through compressed-tensors."""
    python = os.environ.get(PEERS)
    if not python:
        raise Skipped(f"{PEERS} names no Python with torch and compressed-tensors")
    source, out = str(bench.checkpoint("codes")), bench.folder / "dense"
    script = str(ROOT / "bench" / "compressed_tensors_child.py")
    ours, theirs = in_turn(
        1,
        partial(_fresh, out, source, "--to", "bf16", "--shard-size", "300MB"),
        partial(run, [python, script, source, str(bench.folder / "peer")]),
    )
    yield Line(
        "convert-fp8-peer",
        spent(ours),
        spent(theirs, "compressed-tensors and safetensors, the files written too"),
        f"{theirs.cpu / ours.cpu:.1f}x faster",
        ">= 6x",
        verdict(theirs.cpu >= 6 * ours.cpu),
    )


ROWS = (
    Row("convert-fp8-dense", "1.07 GB of FP8 in 128x128 blocks to BF16 files", dense),
    Row("convert-fp8-codes", "2.15 GB of BF16 to FP8 files, errors measured", codes),
    Row("convert-experts", "1.6 GB of BF16 experts, split to fused", experts),
    Row("convert-fp8-peer", "the same through compressed-tensors", peer),
)
