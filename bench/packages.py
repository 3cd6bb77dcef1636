"""Exporting and checking packages."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .checkpoints import TINY
from .conversions import PEERS
from .measure import NTOOL, PYTHON, Cost, Failed, Skipped, in_turn, output_of, run
from .table import Bench, Line, Row, spent, verdict

GENERATION = ("image_gen_embedding", "image_gen_denoiser")
"""The components whose weights the checkpoint of these rows stores as F32 already."""
COPY_FACTOR, COPY_EXTRA = 1.5, 0.5
DRY_CPU, DRY_RSS = 1.5, 400e6
UNDERSTANDING = ("vision_encoder", "embedding", "decoder")
"""The components whose weights the checkpoints of these rows store as BF16."""
LINKED = ("inplace", "hardlink", "reflink")
TOKENIZER = ("vocab.json", "merges.txt", "tokenizer_config.json")
VERIFY_FACTOR = 1.5
HASH_SPEED, HASH_RSS = 0.7, 300e6
"""Speed beside hashlib over the same bytes, and memory, of the checks that read all bytes."""
LARGE = "dense-large"


def export(
    components: tuple[str, ...],
    name: str,
    bench: Bench,
    kind: str = "dense",
    options: tuple[str, ...] = (),
) -> Iterator[Line]:
    """An export beside `cp` of what it wrote. Both write a new folder every time."""
    source, out = str(bench.checkpoint(kind)), bench.folder / f"{name}.pkg"
    how = ["--data", "copy", *options]
    command = [*NTOOL, "export-component", source, *components, "-o", str(out), *how]
    told = output_of(command)
    summary = next(r for r in map(json.loads, told.splitlines()) if r["kind"] == "summary")

    def ours() -> Cost:
        shutil.rmtree(out)
        return run(command)

    def copy() -> Cost:
        target = bench.folder / "copied"
        shutil.rmtree(target, ignore_errors=True)
        return run(["cp", "-r", str(out), str(target)])

    made, copied = in_turn(bench.runs, ours, copy)
    shutil.rmtree(bench.folder / "copied")
    shutil.rmtree(out)
    what = f"{summary['bytes_written'] / 1e6:.0f} MB written; {summary['copied']} tensors copied"
    limit = COPY_FACTOR * copied.cpu + COPY_EXTRA
    budget, judged = f"<= {COPY_FACTOR}x + {COPY_EXTRA} s = {limit:.2f} s", made.cpu <= limit
    if summary["converted"]:
        made_of = "F16" if "f16" in options else "F32"
        what += f", {summary['converted']} made {made_of} of BF16"
        budget = ""  # the promise is about bytes that stay as they are
    yield Line(
        name,
        spent(made, what),
        spent(copied, "cp -r of the package"),
        f"{made.cpu / copied.cpu:.1f}x",
        budget,
        verdict(judged) if budget else "-",
    )


def dry_run(bench: Bench) -> Iterator[Line]:
    """Everything that is decided before the first byte is written, at the released model's size."""
    source = str(bench.checkpoint("u15"))
    (ours,) = in_turn(bench.runs, partial(run, [*NTOOL, "export-component", source, "--dry-run"]))
    yield Line(
        "export-dry-run",
        spent(ours, "1,116 tensors, 50 GB of holes"),
        budget=f"<= {DRY_CPU} s, {DRY_RSS / 1e6:.0f} MB",
        verdict=verdict(ours.cpu <= DRY_CPU, ours.rss <= DRY_RSS),
    )


def linked(bench: Bench) -> Iterator[Line]:
    """Weights that stay where they are, at the released model's size."""
    source, out = bench.checkpoint("u15"), bench.folder / "linked.pkg"
    for name in TOKENIZER:
        shutil.copy(TINY / name, source)
    command = [*NTOOL, "export-component", str(source), *UNDERSTANDING, "--dtype", "bf16"]
    for how in LINKED:
        to = ["--force"] if how == "inplace" else ["-o", str(out), "--force"]
        try:
            (ours,) = in_turn(bench.runs, partial(run, [*command, "--data", how, *to]))
        except Failed as e:
            if "cannot be" not in str(e):
                raise
            yield Line("export-linked", f"{how}: {str(e).rpartition('cannot be ')[2]}",
                       verdict="skipped")  # fmt: skip
            continue
        yield Line(
            "export-linked",
            spent(ours, f"{how}, 18.7 GB of BF16 in holes"),
            budget=f"<= {DRY_CPU} s, {DRY_RSS / 1e6:.0f} MB",
            verdict=verdict(ours.cpu <= DRY_CPU, ours.rss <= DRY_RSS),
        )


def checker(package: Path, options: str) -> list[str]:
    """A process that runs onnx.checker by path on every graph of a package."""
    graphs = [str(p) for p in sorted(package.glob("*/model.onnx"))]
    code = f"import onnx.checker as c\nfor g in {graphs!r}: c.check_model(g{options})"
    return [PYTHON, "-c", code]


def structure(bench: Bench) -> Iterator[Line]:
    """All checks that neither run a graph nor read weights."""
    package = bench.package("dense")
    command = [*NTOOL, "verify-package", str(package), "--no-run", "--skip", "weights.*"]
    ours, start, plain, full = in_turn(
        bench.runs,
        partial(run, command),
        partial(run, [*NTOOL, "--version"]),
        partial(run, checker(package, "")),
        partial(run, checker(package, ", full_check=True")),
    )
    yield Line(
        "verify-structure",
        spent(ours, "--no-run --skip 'weights.*'"),
        f"{spent(plain, 'onnx.checker by path')}, {spent(full, 'its full check')}",
        f"{ours.cpu / plain.cpu:.2f}x, {ours.cpu / full.cpu:.2f}x of the full check",
        f"<= {VERIFY_FACTOR}x onnx.checker by path + {start.cpu:.2f} s of start-up",
        verdict(ours.cpu <= VERIFY_FACTOR * plain.cpu + start.cpu),
    )


def digests(package: Path) -> list[str]:
    """A process that hashes the data files of a package and does nothing else."""
    files = [str(p) for p in sorted(package.glob("*/*.safetensors"))]
    code = f"import hashlib\nfor p in {files!r}:\n with open(p, 'rb') as f: "
    return [PYTHON, "-c", f"{code}hashlib.file_digest(f, 'sha256').digest()"]


def every_byte(name: str, options: list[str], bench: Bench) -> Iterator[Line]:
    """Checks that read all bytes of a large package, beside hashing them."""
    package = bench.package(LARGE)
    nbytes = sum(p.stat().st_size for p in package.glob("*/*.safetensors"))
    if name == "verify-data":
        output_of([*NTOOL, "verify-package", str(package), "--no-run", "--write-manifest"])
    else:
        options = [*options, "--against", str(bench.checkpoint(LARGE))]
    command = [*NTOOL, "verify-package", str(package), "--no-run", *options]
    ours, plain = in_turn(bench.runs, partial(run, command), partial(run, digests(package)))
    speed = plain.cpu / ours.cpu
    yield Line(
        name,
        f"{spent(ours, f'{nbytes / 1e9:.1f} GB')}, {ours.wall:.2f} s from start to end",
        f"{spent(plain, 'hashlib.file_digest')}, {plain.wall:.2f} s from start to end",
        f"{speed:.2f}x the speed",
        f">= {HASH_SPEED}x, {HASH_RSS / 1e6:.0f} MB",
        verdict(speed >= HASH_SPEED, ours.rss <= HASH_RSS),
    )


def peers(bench: Bench) -> Iterator[Line]:
    """One graph with its weights beside it, through the checkers of others."""
    python = os.environ.get(PEERS)
    if not python:
        raise Skipped(f"{PEERS} names no Python with onnx and polygraphy")
    made = bench.folder / "peers.pkg"
    source = str(bench.checkpoint(LARGE))
    # check-model puts graph and weights into one message, which ends at 2 GB
    output_of([*NTOOL, "export-component", source, "decoder", "--dtype", "f16", "-o", str(made)])
    folder = made / "decoder"  # it looks for the weights where it runs
    graph = str(folder / "model.onnx")
    command = [*NTOOL, "verify-package", graph, "--no-run"]
    check = "import sys; from onnx.bin.checker import check_model; sys.exit(check_model())"
    poly = "import sys; from polygraphy.tools import main; sys.exit(main())"
    others = {
        "check-model of onnx": [python, "-c", check, graph],
        "polygraphy inspect model": [python, "-c", poly, "inspect", "model", graph],
        "polygraphy check lint": [python, "-c", poly, "check", "lint", graph],
    }
    for name, other in others.items():
        ours, theirs = in_turn(1, partial(run, command), partial(run, other, cwd=folder))
        yield Line(
            f"verify-peers, {name}",
            spent(ours, "--no-run"),
            spent(theirs, name),
            f"{theirs.cpu / ours.cpu:.1f}x faster",
        )


ROWS = (
    Row(
        "export-copy",
        "export of F32 weights that stay as they are, 198 MB",
        partial(export, GENERATION, "export-copy"),
    ),
    Row(
        "export-all",
        "export of a whole checkpoint, half BF16",
        partial(export, (), "export-all"),
    ),
    Row(
        "export-copy-large",
        "export of 2.8 GB of F32 weights that stay as they are",
        partial(export, GENERATION, "export-copy-large", kind="dense-large"),
    ),
    Row(
        "export-widened",
        "export of 1.4 GB of BF16 weights as F32",
        partial(export, UNDERSTANDING, "export-widened", kind="dense-large"),
    ),
    Row(
        "export-narrowed",
        "export of 1.4 GB of BF16 weights as F16",
        partial(
            export, UNDERSTANDING, "export-narrowed", kind="dense-large", options=("--dtype", "f16")
        ),
    ),
    Row("export-linked", "export without copying, of a sparse 50 GB checkpoint", linked),
    Row("export-dry-run", "dry run of a sparse 50 GB checkpoint", dry_run),
    Row("verify-structure", "structure checks of that package", structure),
    Row(
        "verify-data",
        "data.* of a package of 2.8 GB with SHA256SUMS",
        partial(every_byte, "verify-data", ["--check", "data.*"]),
    ),
    Row(
        "verify-values",
        "its weights against its checkpoint, half of them BF16 there",
        partial(every_byte, "verify-values", ["--check", "weights.values"]),
    ),
    Row("verify-peers", "a graph with 1.4 GB of weights through other checkers", peers),
)
