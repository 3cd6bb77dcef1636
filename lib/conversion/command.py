"""What both converting commands do with a plan: carry it out, check it, tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.tensor import Problem
from .plan import Plan
from .run import Options, merge, run
from .verify import differences
from .work import work_folder

Record = dict[str, Any]


@dataclass
class Outcome:
    """What was done.

    Attributes:
        files: fields of `file` records.
        summary: fields of the `summary` record.
        problems: what verifying found.
    """

    files: list[Record]
    summary: Record
    problems: list[Problem]


def carry_out(plan: Plan, out: Path, options: Options, *, dry_run: bool, verify: bool) -> Outcome:
    """Write what a plan says, and verify it if asked.

    Raises:
        UsageProblem, EnvironmentProblem, InputError: as `run`.
    """
    i, n = options.part
    mine = plan.shards[i - 1 :: n]
    written: list[str] = []
    problems: list[Problem] = []
    if not dry_run:
        with plan.files:
            written = run(plan, out, options)
            if verify:
                shared = n > 1 and work_folder(out).is_dir()
                made = work_folder(out) / "data" if shared else out
                problems = list(differences(plan, made, mine))
    files = [
        {"path": s.name, "nbytes": s.nbytes, "role": "tensors",
         "written": s.name in written, "tensors": len(s.entries)}
        for s in mine
    ]  # fmt: skip
    files += [
        {"path": name, "nbytes": _size(out, name), "role": "graph", "written": s.name in written}
        for s in mine
        for name in plan.companions.get(s.name, ())
    ]
    sound = verify and not problems
    return Outcome(files, _summary(plan, mine, written, dry_run, sound), problems)


def _size(out: Path, name: str) -> int | None:
    """Bytes of a file of the output, wherever it is by now; None where it is not made."""
    for folder in (work_folder(out) / "data", out):
        if (folder / name).is_file():
            return (folder / name).stat().st_size
    return None


def _summary(plan: Plan, mine: list[Any], written: list[str], dry: bool, verified: bool) -> Record:
    return {
        "tensors": sum(len(s.entries) for s in plan.shards),
        "nbytes": plan.nbytes,
        "shards": len(plan.shards),
        "shards_of_part": len(mine),
        "shards_written": len(written),
        "counts": plan.counts(),
        "bytes_written": sum(s.nbytes for s in mine if s.name in written),
        "dry_run": dry,
        "verified": verified and not dry,
    }


def merged(out: Path, force: bool, kinds: tuple[str, ...]) -> tuple[list[Record], Record]:
    """Finish what was done in parts: fields of `file` records, and of the summary.

    Raises:
        SourceNotFound, UsageProblem: as `run.merge`.
    """
    state = merge(out, force=force, kinds=kinds)
    files = [{"path": n, "nbytes": size, "role": "tensors"} for n, size in state["shards"]]
    made = state.get("companions", {}).values()
    graphs = [{"path": name, "role": "graph"} for names in made for name in names]
    nbytes = sum(size for _, size in state["shards"])
    summary = {"nbytes": nbytes, "shards": len(files), "counts": state["report"]["counts"]}
    return files + graphs, summary
