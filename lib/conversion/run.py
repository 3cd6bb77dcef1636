"""Carrying out a plan: shards in parallel, each whole or not at all."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint.tensor import Checkpoint
from ..checkpoint.writer import DataFile, check_output, check_space, write_data
from ..errors import InputError, SourceNotFound, Unsupported, UsageProblem
from ..families.gguf import refuse_payload
from ..progress import Bar, step
from .plan import CONFIG, INDEX, REPORT, Plan, read_beside
from .work import Work, begin, naming

SPARE = 16 << 20
"""Bytes that are left free for index, report and what others write."""


@dataclass
class Options:
    """How a plan is carried out; nothing here changes a byte of the result.

    Attributes:
        jobs: shards at a time.
        part: (i, n): only every n-th shard, from the i-th on; `merge` finishes.
        resume: go on with an unfinished conversion.
        force: replace an output.
        statistics: filled by the entries of a shard while they are written: tensor -> numbers.
    """

    jobs: int = 1
    part: tuple[int, int] = (1, 1)
    resume: bool = False
    force: bool = False
    statistics: dict[str, Any] = field(default_factory=dict)


class Stopped(Exception):
    """Another shard has failed, or the user has interrupted."""


def run(plan: Plan, out: Path, options: Options) -> list[str]:
    """Write the output of a plan, or a part of it; names of the shards that were written now.

    Raises:
        UsageProblem: the output exists, is or holds the source, or is being made by another
            conversion.
        EnvironmentProblem: not enough disk space, or it cannot be written.
        InputError: the source is damaged, or changed.
    """
    i, n = options.part
    inputs = [plan.source.root] if plan.source.folder.local else []
    alone = n == 1
    check_output(out, inputs, force=options.force or options.resume, marker=REPORT)
    plan.counts()
    if options.resume and not options.force and (out / REPORT).is_file():
        _require_finished(plan, out)
        plan.files.require_unchanged()
        Work(out).forget_if_renamed()
        return []
    mine = plan.shards[i - 1 :: n]
    share = options.resume or not alone
    work, made = begin(
        out, _state(plan), _beside(plan), plan.rows, share=share, force=options.force
    )
    plan.rows.clear()  # on the disk now; of 150,000 tensors they are 100 MB
    try:
        todo = [s for s in mine if not work.is_done(s, plan.companions.get(s.name, ()))]
        check_space(work.root, sum(s.nbytes for s in todo) + SPARE)
        _write_all(work, todo, plan, options)
        plan.files.require_unchanged()
        if alone:
            finish(work, force=options.force)
    except (UsageProblem, SourceNotFound):
        if not share or not _is_told(plan, out):
            raise
        work.remove()  # another process that shared the work has finished it meanwhile
    except BaseException:
        if made and not share:
            work.remove()
        raise
    return [s.name for s in todo]


def _is_told(plan: Plan, out: Path) -> bool:
    return (out / REPORT).is_file() and _told(out / REPORT) == plan.identity()


def _require_finished(plan: Plan, out: Path) -> None:
    """What `--resume` finds where the output stands already: all shards, as planned.

    Raises:
        UsageProblem: it is another output.
    """
    hint = "--force replaces it"
    told = _told(out / REPORT)
    if told is not None and told != plan.identity():
        raise UsageProblem(f"output '{out}' exists, made with other options or of another source",
                           hint=hint)  # fmt: skip
    small = {INDEX: plan.index(), CONFIG: plan.config}
    for name, content in small.items():
        if content is not None and not _holds(out / name, content):
            raise UsageProblem(
                f"output '{out}' exists, and its {name} is not what is to be written", hint=hint
            )
    written = (out / REPORT).stat().st_mtime_ns
    for name, stamp in plan.source.stamps.items():
        if stamp[1] > written:
            raise UsageProblem(
                f"output '{out}' exists, but {name} of the source is newer", hint=hint
            )
    for shard in plan.shards:
        path = out / shard.name
        beside = plan.companions.get(shard.name, ())
        if not all((out / name).is_file() for name in beside):
            raise UsageProblem(
                f"output '{out}' exists, and lacks {next(iter(beside))}",
                hint="--force replaces it",
            )
        if path.is_file() and path.stat().st_size == shard.nbytes:
            with open(path, "rb") as f:
                if f.read(len(shard.header)) == shard.header:
                    continue
        raise UsageProblem(
            f"output '{out}' exists, and its {shard.name} is not what is to be written",
            hint="--force replaces it",
        )


def _told(report: Path) -> str | None:
    """The identity that a report tells, without reading all of its rows."""
    with open(report, "rb") as f:
        match = re.search(rb'"identity": "([0-9a-f]{64})"', f.read(1 << 16))
    return match[1].decode() if match else None


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def finish(work: Work, *, force: bool) -> dict[str, Any]:
    """Let the output take its place when all shards are there; its state.

    Raises:
        UsageProblem: shards are missing, or the output exists.
    """
    state = work.state()
    beside = state.get("companions", {})
    missing = [
        name
        for name, nbytes in state["shards"]
        if not work.finished(name, nbytes, companions=beside.get(name, ()))
    ]
    if missing:
        shown = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        count = len(state["shards"])
        raise UsageProblem(
            f"output '{work.out}': {len(missing)} of {count} shards are not finished: {shown}",
            hint="run the parts that are missing, with --resume where one was interrupted",
        )
    with work.alone() as unfinished:
        if not unfinished:
            raise UsageProblem(f"output '{work.out}': another conversion has finished it")
        work.finish(state, replace=REPORT if force else None)
    return state


def merge(out: Path, *, force: bool, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Finish a conversion that was done in parts: index, report, and the output's name.

    Raises:
        SourceNotFound: none is under way there.
        UsageProblem: a part is missing, the output exists, or it is none of `kinds`.
    """
    work = Work(out)
    kind = work.state()["options"].get("convert")
    if kind not in kinds:
        raise UsageProblem(f"output '{out}': the conversion there is of another command ({kind})")
    check_output(out, [], force=force, marker=REPORT)
    return finish(work, force=force)


def _state(plan: Plan) -> dict[str, Any]:
    index = plan.index()
    counts = {**plan.report.get("counts", {}), **plan.counts()}
    report = {"identity": plan.identity(), **plan.report, "counts": counts}
    return {
        "fingerprint": plan.fingerprint(),
        "options": {**plan.options, "shards": len(plan.shards)},
        "shards": [[s.name, s.nbytes] for s in plan.shards],
        "companions": {shard: [*files] for shard, files in plan.companions.items()},
        "index_name": INDEX if index is not None else None,
        "index": index.decode() if index is not None else None,
        "report_name": REPORT,
        "report": report,
    }


def _beside(plan: Plan) -> Iterator[tuple[str, bytes]]:
    for name in plan.beside:
        yield name, read_beside(plan.source.folder, name)
    if plan.config is not None:
        yield CONFIG, plan.config
    for name, make in plan.made.items():
        yield name, make()


def _write_all(work: Work, shards: list[DataFile], plan: Plan, options: Options) -> None:
    with step(sum(s.nbytes for s in shards), "converting") as bar:
        _write_each(work, shards, plan, options, bar)


def _write_each(work: Work, shards: list[DataFile], plan: Plan, options: Options, bar: Bar) -> None:
    stop = threading.Event()

    def progress(count: int) -> None:
        if stop.is_set():
            raise Stopped
        bar.update(count)

    if options.jobs == 1 or len(shards) < 2:
        for shard in shards:
            _write(work, shard, plan, progress, options.statistics)
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(_write, work, s, plan, progress, options.statistics) for s in shards]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise


def _write(
    work: Work,
    shard: DataFile,
    plan: Plan,
    progress: Callable[[int], object],
    statistics: dict[str, Any],
) -> None:
    """One shard under a temporary name, flushed, then under its own; its companions before that."""
    temporary = work.temporary(shard.name)
    with naming(work.out, work.root):
        with suppress(FileNotFoundError):
            temporary.unlink()
        try:
            write_data(temporary, shard, progress)
            for name, make in plan.companions.get(shard.name, {}).items():
                work.write_companion(name, make())
            measured = {e.name: statistics[e.name] for e in shard.entries if e.name in statistics}
            work.note(shard.name, measured)
            (work.data / shard.name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(temporary, work.data / shard.name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def part_of(text: str) -> tuple[int, int]:
    """`I/N` of `--part`.

    Raises:
        UsageProblem: not two numbers with 1 <= I <= N.
    """
    first, slash, second = text.partition("/")
    numbers = [t for t in (first, second) if t.isascii() and t.isdigit() and len(t) < 7]
    if slash and len(numbers) == 2 and 1 <= int(first) <= int(second):
        return int(first), int(second)
    raise UsageProblem("--part", found=repr(text), expected="I/N with 1 <= I <= N")


def require_safetensors(checkpoint: Checkpoint) -> None:
    """Refuse what is no checkpoint of safetensors files.

    Raises:
        Unsupported: it is another format.
    """
    if checkpoint.format == "safetensors":
        return
    made = checkpoint.format in ("package", "onnx")
    raise Unsupported(
        f"{checkpoint.source}: format",
        found=checkpoint.format,
        expected="safetensors",
        hint="give the checkpoint that it was made of" if made else None,
    )


def require_whole(checkpoint: Checkpoint) -> None:
    """Refuse what cannot be converted: another format, and a checkpoint with an error, whose
    conversion would lose data.

    Raises:
        Unsupported: not safetensors; of a GGUF model, why its payload is not converted.
        InputError, SourceNotFound: the first error, by file and tensor.
    """
    refuse_payload(checkpoint)
    require_safetensors(checkpoint)
    checkpoint.refuse_if_broken()
    if not checkpoint.tensors:
        raise InputError(f"{checkpoint.source}: no tensors", expected="a checkpoint")
