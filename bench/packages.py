"""Exporting packages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .checkpoints import TINY
from .measure import NTOOL, Cost, Failed, in_turn, output_of, run
from .table import Bench, Line, Row, at_most, spent

GENERATION = ("image_gen_embedding", "image_gen_denoiser")
"""The components whose weights the checkpoints of these rows store as F32 already."""
UNDERSTANDING = ("vision_encoder", "embedding", "decoder")
"""The components whose weights they store as BF16."""
COPY_FACTOR, COPY_EXTRA = 1.5, 0.5
DRY_CPU, DRY_RSS = 1.5, 400e6
LINKED = ("inplace", "hardlink", "reflink")
PROMISED = ("inplace", "reflink")
TOKENIZER = ("vocab.json", "merges.txt", "tokenizer_config.json")


def _anew(command: list[str], out: Path) -> Cost:
    shutil.rmtree(out, ignore_errors=True)
    return run(command)


def _copied(out: Path, target: Path) -> Cost:
    return _anew(["cp", "-r", str(out), str(target)], target)


def export(
    components: tuple[str, ...],
    bench: Bench,
    kind: str = "dense",
    options: tuple[str, ...] = (),
) -> Iterator[Line]:
    """An export beside `cp` of what it wrote. Both write a new folder every time."""
    source, out = str(bench.checkpoint(kind)), bench.scratch / "out.pkg"
    how = ["--data", "copy", *options]
    command = [*NTOOL, "export-component", source, *components, "-o", str(out), *how]
    told = output_of(command)
    summary = next(r for r in map(json.loads, told.splitlines()) if r["kind"] == "summary")
    made, copied = in_turn(
        bench.runs, partial(_anew, command, out), partial(_copied, out, bench.scratch / "copied")
    )
    what = f"{summary['bytes_written'] / 1e6:.0f} MB written; {summary['copied']} tensors copied"
    limit = COPY_FACTOR * copied.cpu + COPY_EXTRA
    unchanged = not summary["converted"]  # the promise is about bytes that stay as they are
    if not unchanged:
        made_of = "F16" if "f16" in options else "F32"
        what += f", {summary['converted']} made {made_of} of BF16"
    yield Line(
        spent(made, what),
        spent(copied, "cp -r of the package"),
        f"{made.cpu / copied.cpu:.1f}x",
        f"<= {COPY_FACTOR}x + {COPY_EXTRA} s = {limit:.2f} s" if unchanged else "",
        at_most(made.cpu, limit) if unchanged else None,
    )


def peer(bench: Bench) -> Iterator[Line]:
    """1.4 GB of F32 matrices of the same sizes: ours of a neo_chat, mobius' of a Qwen3."""
    ours, theirs = bench.scratch / "ours.pkg", bench.scratch / "theirs"
    source, qwen3 = str(bench.checkpoint("dense-mid")), str(bench.checkpoint("qwen3"))
    export = [*NTOOL, "export-component", source, *GENERATION, "--data", "copy", "-o", str(ours)]
    program = str(Path(bench.peer).with_name("mobius"))
    build = [bench.peer, program, "build", "--config", qwen3, "--dtype", "f32", str(theirs)]
    made, copied, built, copied_too = in_turn(
        bench.runs,
        partial(_anew, export, ours),
        partial(_copied, ours, bench.scratch / "copied"),
        partial(_anew, build, theirs),
        partial(_copied, theirs, bench.scratch / "copied"),
    )
    limit = COPY_FACTOR * copied.cpu + COPY_EXTRA
    yield Line(
        spent(made, f"{made.cpu / copied.cpu:.1f}x cp -r of it"),
        spent(built, f"mobius, {built.cpu / copied_too.cpu:.1f}x cp -r of it"),
        f"{built.cpu / made.cpu:.1f}x faster",
        f"<= {COPY_FACTOR}x + {COPY_EXTRA} s = {limit:.2f} s",
        at_most(made.cpu, limit),
    )


def dry_run(bench: Bench) -> Iterator[Line]:
    """Everything that is decided before the first byte is written, at the released model's size."""
    source = str(bench.checkpoint("u15"))
    (ours,) = in_turn(bench.runs, partial(run, [*NTOOL, "export-component", source, "--dry-run"]))
    yield Line(
        spent(ours, "1,116 tensors, 50 GB of holes"),
        budget=f"<= {DRY_CPU} s, {DRY_RSS / 1e6:.0f} MB",
        excess=max(at_most(ours.cpu, DRY_CPU), at_most(ours.rss, DRY_RSS)),
    )


def linked(bench: Bench) -> Iterator[Line]:
    """Weights that stay where they are, at the released model's size."""
    source, out = bench.checkpoint("u15"), bench.scratch / "linked.pkg"
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
            why = "cannot be " + str(e).rpartition("cannot be ")[2]
            yield Line(why, part=how, state="skipped")
            continue
        promised = how in PROMISED
        yield Line(
            spent(ours, "18.7 GB of BF16 in holes"),
            budget=f"<= {DRY_CPU} s, {DRY_RSS / 1e6:.0f} MB" if promised else "",
            excess=max(at_most(ours.cpu, DRY_CPU), at_most(ours.rss, DRY_RSS))
            if promised
            else None,
            part=how,
        )


ROWS = (
    Row(
        "export-copy",
        "export of F32 weights that stay as they are, 198 MB",
        partial(export, GENERATION),
    ),
    Row("export-all", "export of a whole checkpoint, half BF16", partial(export, ())),
    Row(
        "export-copy-large",
        "export of 1.4 GB of F32 weights that stay as they are",
        partial(export, GENERATION, kind="dense-mid"),
    ),
    Row(
        "export-peer",
        "the same beside mobius and a Qwen3 of that size",
        peer,
        peer="mobius",
        most=2,
    ),
    Row(
        "export-widened",
        "export of 0.7 GB of BF16 weights as F32",
        partial(export, UNDERSTANDING, kind="dense-mid"),
        most=3,
    ),
    Row(
        "export-narrowed",
        "export of 0.7 GB of BF16 weights as F16",
        partial(export, UNDERSTANDING, kind="dense-mid", options=("--dtype", "f16")),
        most=3,
    ),
    Row("export-linked", "export without copying, of a sparse 50 GB checkpoint", linked),
    Row("export-dry-run", "dry run of a sparse 50 GB checkpoint", dry_run),
)
