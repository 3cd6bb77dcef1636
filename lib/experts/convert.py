"""convert-experts from its options to a plan: groups of experts in another layout, by moving bytes.

Everything is decided from headers. The planned result is judged as any checkpoint is, so nothing
is written that could not be told apart, or read back, afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.config import MAX_CONFIG
from ..checkpoint.folder import read_small
from ..checkpoint.strict_json import no_collector
from ..checkpoint.tensor import Checkpoint, Problem, exit_code, first_of
from ..checkpoint.writer import Entry, alignment
from ..conversion.entries import copied, report_row
from ..conversion.open_files import OpenFiles
from ..conversion.plan import CONFIG, SHARD_NBYTES, Plan, files_beside, new_json, shards_of
from ..conversion.run import require_safetensors
from ..errors import CheckFailed, SourceNotFound, UsageProblem
from ..families.gguf import refuse_payload
from ..fp8.pairs import is_scale
from . import config_change, payload, result
from .config_change import Moved
from .detect import Detection, detect_checkpoint
from .group import Group, quantised
from .left_behind import left_behind
from .matrices import CONCATENATED, INTERLEAVED, Stored
from .names import SCALES, SPLIT
from .refusals import order_of, refusals, turns
from .scales import BLOCK
from .target import MODULES_OF, TARGETS, Style, Target, group_name, stays, targets

ORDERS = (CONCATENATED, INTERLEAVED)


KINDS = ("experts",)
"""`convert` of the options of its plans."""


@dataclass(frozen=True)
class Wish:
    """What the command line asks for.

    Attributes:
        to: one of TARGETS.
        order: of gate and up in fused banks, one of ORDERS; None: as their names say.
        names: of split matrices, a key of MODULES_OF.
        shard_nbytes: size of a shard.
    """

    to: str
    order: str | None = None
    names: str = "gate-up-down"
    shard_nbytes: int = SHARD_NBYTES

    def check(self) -> None:
        """Refuse values that are none.

        Raises:
            UsageProblem: names the option.
        """
        for option, value, known in (
            ("--to", self.to, TARGETS),
            ("--gate-up-order", self.order, (None, *ORDERS)),
            ("--names", self.names, tuple(MODULES_OF)),
        ):
            if value not in known:
                expected = ", ".join(k for k in known if k)
                raise UsageProblem(option, found=repr(value), expected=expected)


class Refused(CheckFailed):
    """The experts cannot be converted; exit code 1, or 3 where a file is malformed.

    Attributes:
        problems: everything found, warnings included.
    """

    def __init__(self, source: str, problems: list[Problem]) -> None:
        super().__init__(first_of(problems, "error", source) or source)
        self.problems = problems
        self.exit_code = exit_code(problems)


@dataclass
class _Work:
    """A conversion while it is planned.

    Attributes:
        moved: groups that change, with what they become.
        kept: groups that are in the target layout.
    """

    moved: list[Moved] = field(default_factory=list)
    kept: list[Group] = field(default_factory=list)


def plan(checkpoint: Checkpoint, wish: Wish) -> Plan:
    """What a conversion will write.

    Raises:
        UsageProblem: an option that is none.
        Refused: anything is wrong with the checkpoint, a group cannot be stored so, or the result
            would not be what was asked for.
        SourceNotFound: no experts.
        Unsupported: not a safetensors checkpoint; of a GGUF model with the reasons.
        InputError: config.json changed since it was read.
    """
    wish.check()
    with no_collector():  # a plan of 150,000 tensors is a million objects, none of them garbage
        return _plan(checkpoint, wish)


def _plan(checkpoint: Checkpoint, wish: Wish) -> Plan:
    refuse_payload(checkpoint)
    require_safetensors(checkpoint)
    detection = detect_checkpoint(checkpoint)
    _refuse(checkpoint, [*checkpoint.problems, *_findings(detection)])
    if not detection.groups:
        raise SourceNotFound(f"{checkpoint.source}: routed experts: found none")
    work, files = _Work(), OpenFiles(checkpoint.folder, checkpoint.stamps)
    found = _decide(checkpoint, detection, wish, work)
    _refuse(checkpoint, found)
    entries, rows = _entries(checkpoint, work, files)
    config, found = _config(checkpoint, work, wish, [e.name for e in entries])
    _refuse(checkpoint, found)
    groups = [m.group for m in work.moved]
    _refuse(checkpoint, list(result.judge(entries, config, groups, wish.to)))
    return Plan(
        source=checkpoint,
        options={"convert": "experts", "to": wish.to, "gate_up_order": wish.order,
                 "names": wish.names},
        shards=shards_of(entries, wish.shard_nbytes),
        config=_config_bytes(checkpoint, config),
        beside=files_beside(checkpoint.folder),
        files=files,
        rows=rows,
        report={"expert_layout": wish.to, "storage_preserving": True,
                "groups": list(_groups(work))},
        proofs=dict(_proofs(work, files, {e.name for e in entries if e.bands is not tuple})),
    )  # fmt: skip


def _refuse(checkpoint: Checkpoint, problems: list[Problem]) -> None:
    if any(p.severity == "error" for p in problems):
        raise Refused(checkpoint.source, problems)


def _findings(detection: Detection) -> list[Problem]:
    """What detection found and opening did not tell as an error: tensors that the index does not
    name are one here, because the result would name them."""
    orphans = [p for p in detection.index_problems if p["code"] == "not-in-index"]
    return [*Detection([], orphans).as_problems(), *detection.as_problems(index=False)]


def _decide(checkpoint: Checkpoint, detection: Detection, wish: Wish, work: _Work) -> list[Problem]:
    """Sort the groups into `work`; why some cannot be converted."""
    found, style = [], None
    for group in sorted(detection.groups, key=lambda g: _natural(g.name)):
        order = order_of(group, wish.order)
        if stays(group, wish.to, order):
            work.kept.append(group)
            continue
        refused = refusals(group, wish.to, order)
        found += refused
        if not refused:
            style = style or _style(checkpoint, wish)
            new = targets(Stored(group, order), wish.to, style)
            work.moved.append(Moved(group, new, wish.to == SPLIT))
    moved = [m.group for m in work.moved]
    return found + list(left_behind(moved, checkpoint.tensors.values()))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Layer 2 before layer 10."""
    parts = name.split(".")
    return [(False, int(p), "") if _is_number(p) else (True, 0, p) for p in parts]


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 16


def _style(checkpoint: Checkpoint, wish: Wish) -> Style:
    """Names for split matrices; their scales are called as those of other matrices are."""
    suffixes: Counter[str] = Counter()
    scalars: Counter[tuple[int, ...]] = Counter()
    for name, tensor in checkpoint.tensors.items():
        stem, _, end = name.rpartition(".")
        if end in SCALES:
            weight = checkpoint.tensors.get(f"{stem}.weight")
            if weight is not None and quantised(weight.dtype):
                suffixes[end] += 1
                if tensor.params == 1 and len(tensor.shape) < 3:
                    scalars[tensor.shape] += 1
    suffix = max(suffixes, key=suffixes.__getitem__, default=SCALES[0])
    return Style(wish.names, suffix, max(scalars, key=scalars.__getitem__, default=(1, 1)))


def _entries(
    checkpoint: Checkpoint, work: _Work, files: OpenFiles
) -> tuple[list[Entry], list[dict[str, Any]]]:
    """The tensors of the result, and a row of the report for each of the source.

    What is copied comes first, in the order of the source, then the groups in order of their names;
    tensors of odd sizes come last, so that the offsets of all others are aligned.
    """
    becomes: dict[str, list[str]] = {t.name: [] for m in work.moved for t in m.group.tensors()}
    for m in work.moved:
        for target in m.targets:
            for source in target.sources():
                becomes[source.name].append(target.name)
    entries, rows = [], []
    for name, tensor in checkpoint.tensors.items():
        if name in becomes:
            rows.append(report_row(tensor, "converted", becomes[name], None))
        else:
            rows.append(report_row(tensor, "copied", [name], None))
            entries.append(copied(tensor, files))
    entries += [payload.entry(t, files) for m in work.moved for t in m.targets]
    return sorted(entries, key=lambda e: -alignment(e.nbytes)), rows


def _config(
    checkpoint: Checkpoint, work: _Work, wish: Wish, names: Iterable[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """The config of the result, and groups whose blocks it cannot describe."""
    uneven = [
        m.group for m in work.moved
        if m.group.scale_per == BLOCK and m.group.block and len(set(m.group.block)) > 1
        and turns(m.group, wish.to)
    ]  # fmt: skip
    found: list[Problem] = []
    if uneven:
        inside = {id(g) for g in uneven}
        groups = [*(m.group for m in work.moved), *work.kept]
        others = [g for g in groups if id(g) not in inside]
        ours = {t.name for g in groups for t in g.tensors()}
        alone = not any(
            is_scale(n) and t.params > 1 for n, t in checkpoint.tensors.items() if n not in ours
        )
        if not config_change.can_flip(checkpoint.config, uneven, others, alone):
            for g in uneven:
                assert g.block is not None
                rows, columns = g.block
                message = (
                    f"{g.name}: blocks of {rows}x{columns} become {columns}x{rows}: found others "
                    "that do not, expected one weight_block_size for all"
                )
                found.append(Problem("block-orientation", message))
    flip = bool(uneven) and not found
    return config_change.changed(checkpoint.config, work.moved, set(names), flip), found


def _config_bytes(checkpoint: Checkpoint, config: dict[str, Any]) -> bytes | None:
    """config.json of the result; byte by byte that of the source where nothing changes.

    Raises:
        InputError: it changed since it was read.
    """
    if checkpoint.config_hash is None:
        return None
    if config is not checkpoint.config:
        return new_json(config)
    return read_small(checkpoint.folder, CONFIG, MAX_CONFIG)


def _proofs(
    work: _Work, files: OpenFiles, turned: set[str]
) -> Iterator[tuple[str, Callable[[], Iterator[bytes]]]]:
    """What `--verify` compares turned tensors with; the others with the stretches they are of."""

    def of(target: Target) -> Callable[[], Iterator[bytes]]:
        return lambda: payload.proof(target, files)

    for m in work.moved:
        for target in m.targets:
            if target.name in turned:
                yield target.name, of(target)


def _groups(work: _Work) -> Iterator[dict[str, Any]]:
    """What the report says of each group."""
    moved = {m.group.name: m for m in work.moved}
    for group in sorted([*(m.group for m in work.moved), *work.kept], key=lambda g: g.name):
        yield {
            "group": group.name,
            "action": "converted" if group.name in moved else "copied",
            "target": group_name(group) if group.name in moved else group.name,
            "from": {"layout": group.layout, "orientation": group.orientation},
            "E": group.E, "H": group.H, "I": group.I,
        }  # fmt: skip
