"""FP8 to dense and back, experts re-laid; file to file, beside copying the result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import NTOOL, PYTHON, ROOT, Cost, in_turn, output_of, run
from .table import Bench, Line, Row, at_least, at_most, elapsed, spent

COPY_FACTOR, RSS = 2.0, 100e6
PEER_FACTOR = 6
"""At least so many times as fast as the libraries whose job it is."""
COPY_SPEED = 0.8
SHARDS = ("--shard-size", "300MB")


def _fresh(out: Path, *options: str, command: str = "convert-fp8") -> Cost:
    """One conversion into a folder that is not there yet, on the disk when it ends."""
    shutil.rmtree(out, ignore_errors=True)
    return run([*NTOOL, command, *options, "-o", str(out)])


def _copy(made: Path, out: Path) -> Cost:
    """`cp` of what was made, flushed to the disk as a conversion is."""
    shutil.rmtree(out, ignore_errors=True)
    script = 'cp -r "$0" "$1" && sync "$1"/*'
    return run(["sh", "-c", script, str(made), str(out)])


def _peer(command: list[str], out: Path) -> Cost:
    shutil.rmtree(out, ignore_errors=True)
    return run([*command, str(out)])


def _dense(bench: Bench) -> Path:
    """2.15 GB of BF16, made of 1.07 GB of codes."""
    made = bench.scratch / "made"
    _fresh(made, str(bench.checkpoint("codes")), "--to", "bf16", *SHARDS)
    return made


def dense(bench: Bench) -> Iterator[Line]:
    """1.07 GB of codes in 128x128 blocks to 2.15 GB of BF16."""
    source, out, made = str(bench.checkpoint("codes")), bench.scratch / "dense", _dense(bench)
    options = [source, "--to", "bf16", *SHARDS]
    one, two, copy = in_turn(
        bench.runs,
        partial(_fresh, out, *options),
        partial(_fresh, out, *options, "--jobs", "2"),
        partial(_copy, made, bench.scratch / "copy"),
    )
    for jobs, ours in ((1, one), (2, two)):
        excess = max(at_most(ours.wall, COPY_FACTOR * copy.wall), at_most(ours.rss, RSS))
        yield Line(
            elapsed(ours),
            elapsed(copy, "cp of the output, sync"),
            f"{ours.wall / copy.wall:.2f}x",
            f"<= {COPY_FACTOR:.0f}x, {RSS / 1e6:.0f} MB" if jobs == 2 else "",
            excess if jobs == 2 else None,
            f"{jobs} job{'s' if jobs > 1 else ''}",
        )


def codes(bench: Bench) -> Iterator[Line]:
    """2.15 GB of BF16 to codes and scales, errors measured."""
    made = _dense(bench)
    options = [str(made), "--to", "fp8", *SHARDS, "--jobs", "2"]
    ours, copy = in_turn(
        bench.runs,
        partial(_fresh, bench.scratch / "fp8", *options),
        partial(_copy, made, bench.scratch / "copy"),
    )
    yield Line(
        elapsed(ours),
        elapsed(copy, "cp of the input, sync"),
        f"{ours.wall / copy.wall:.2f}x",
        f"{RSS / 1e6:.0f} MB",
        at_most(ours.rss, RSS),
        "2 jobs",
    )


def experts(bench: Bench) -> Iterator[Line]:
    """1.6 GB of split experts to fused ones and to transposed ones, two jobs."""
    source = str(bench.checkpoint("experts"))
    for to in ("fused", "fused-transposed"):
        made, out = bench.scratch / f"made-{to}", bench.scratch / to
        options = (source, "--to", to, *SHARDS, "--jobs", "2")
        _fresh(made, *options, command="convert-experts")
        ours, copy = in_turn(
            bench.runs,
            partial(_fresh, out, *options, command="convert-experts"),
            partial(_copy, made, bench.scratch / "copy"),
        )
        yield Line(
            elapsed(ours),
            elapsed(copy, "cp of the output, sync"),
            f"{copy.wall / ours.wall:.2f}x the speed of cp",
            f">= {COPY_SPEED}x" if to == "fused" else "",
            at_least(copy.wall / ours.wall, COPY_SPEED) if to == "fused" else None,
            to,
        )


def peer(to: str, script: str, what: str, bench: Bench) -> Iterator[Line]:
    """The same files through the library whose job it is."""
    source = bench.checkpoint("codes") if to == "bf16" else _dense(bench)
    theirs_by = [bench.peer, str(ROOT / "bench" / script), str(source)]
    ours, theirs = in_turn(
        bench.runs,
        partial(_fresh, bench.scratch / "ours", str(source), "--to", to, *SHARDS),
        partial(_peer, theirs_by, bench.scratch / "theirs"),
        warm=False,
    )
    yield Line(
        spent(ours),
        spent(theirs, what),
        f"{theirs.cpu / ours.cpu:.1f}x faster",
        f">= {PEER_FACTOR}x",
        at_least(theirs.cpu / ours.cpu, PEER_FACTOR),
    )


def kernels(bench: Bench) -> Iterator[Line]:
    """Nanoseconds an element in memory: the best of the runs."""
    command = [PYTHON, "-m", "bench.fp8_kernels", str(bench.runs)]
    for told in map(json.loads, output_of(command, cwd=ROOT).splitlines()):
        one, limit = told["one"], told["limit"]
        yield Line(
            f"{one:.2f} ns, two threads {told['two']:.2f} ns",
            f"{told['copy']:.2f} ns (numpy copy of the output)",
            f"{one / told['copy']:.1f}x",
            f"<= {limit:.0f} ns" if limit else "",
            at_most(one, limit) if limit else None,
            told["part"],
        )


ROWS = (
    Row("convert-fp8-dense", "1.07 GB of FP8 in 128x128 blocks to BF16 files", dense),
    Row("convert-fp8-codes", "2.15 GB of BF16 to FP8 files, errors measured", codes, most=3),
    Row("convert-experts", "1.6 GB of BF16 experts, split to fused", experts),
    Row(
        "convert-fp8-peer",
        "1.07 GB of FP8 to BF16 files, beside compressed-tensors",
        partial(
            peer,
            "bf16",
            "compressed_tensors_child.py",
            "compressed-tensors and safetensors, the files written too",
        ),
        peer="torch",
        most=1,
    ),
    Row(
        "convert-fp8-codes-peer",
        "2.15 GB of BF16 to FP8 files, beside llm-compressor",
        partial(peer, "fp8", "llm_compressor_child.py", "llm-compressor, model_free_ptq"),
        peer="llm-compressor",
        most=1,
    ),
    Row("fp8-kernels", "FP8 kernels in memory, nanoseconds an element", kernels),
)
