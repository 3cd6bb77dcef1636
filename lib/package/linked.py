"""Components whose weights stay in the checkpoint's own files: clones, hard links, or in place.

Graphs then point into the checkpoint's shards, so every parameter must be bytes that stand in one
shard as they are needed: of one tensor whose type stays, or of several that follow each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint import sharing
from ..checkpoint.onnx_external import location_fault
from ..checkpoint.paths import contained
from ..checkpoint.tensor import Checkpoint, Tensor
from ..checkpoint.writer import Placed
from ..errors import InputError, NtoolError, Unsupported, UsageProblem
from .bindings import Binding
from .layout import INPLACE, LINKED, REFLINK

if TYPE_CHECKING:
    from .export import Component

AUTO, COPY = "auto", "copy"
HOW = (AUTO, COPY, *LINKED)
"""What `--data` takes. `auto`: clones where they work and pay, component by component, else
copies."""
WORTH_IT = 64 << 20
"""Bytes of a component from which on `auto` clones. Less is copied in no time, and such a package
is the same whatever file system it was made on."""


@dataclass(frozen=True)
class Shard:
    """A file of the checkpoint that is a data file of a component.

    Attributes:
        name: location in the graph, a plain file name.
        file: path in the checkpoint. real: where it is, without links.
        nbytes: of the whole file.
    """

    name: str
    file: str
    real: str
    nbytes: int


def choose(
    how: str, checkpoint: Checkpoint, components: Iterable[Component], out: Path | None
) -> None:
    """Decide the form of each component's data, and place its parameters if it is linked.

    Args:
        how: one of HOW.
        checkpoint: as it is stored, not a view of it.
        out: of the package, to see what its file system can do; None: not known yet.
    Raises:
        UsageProblem: another word; `inplace` with another output than the checkpoint's folder.
        Unsupported: a parameter that is no stretch of a shard, named; a checkpoint that is not on
            this machine, or whose shards are no plain files of its folder.
        EnvironmentProblem: the file system cannot do that.
    """
    if how not in HOW:
        raise UsageProblem("--data", found=how, expected=" or ".join(HOW))
    if how == COPY or (how == AUTO and (out is None or not checkpoint.folder.local)):
        return
    if not checkpoint.folder.local:
        raise Unsupported(f"--data {how}: {checkpoint.source} is not on this machine", hint=_HINT)
    if how == INPLACE:
        _check_folder(checkpoint, out)
    form = REFLINK if how == AUTO else how
    works: dict[int, OSError | None] = {}
    found = {}
    for component in components:
        if how == AUTO and component.nbytes < WORTH_IT:
            continue
        try:
            placed = place(form, checkpoint, component)
            shards = _shards(form, checkpoint, component)
        except NtoolError:
            if how == AUTO:
                continue
            raise
        faults = [_fault(form, s, out, works) for s in shards]
        wrong = next(((s, e) for s, e in zip(shards, faults, strict=True) if e), None)
        if wrong is None:
            found[component.name] = (placed, shards)
        elif how != AUTO:
            assert out is not None
            tell = sharing.no_clone if form == REFLINK else sharing.no_link
            raise tell(wrong[1], wrong[0].file, wrong[0].real, out.parent)
    for component in components:
        if component.name in found:
            component.form = form
            component.placed, component.shards = found[component.name]


_HINT = "--data copy"


def place(form: str, checkpoint: Checkpoint, component: Component) -> dict[str, Placed]:
    """Where the parameters of a component stand in the checkpoint's shards.

    Raises:
        Unsupported: the first parameter that stands nowhere as it is needed.
    """
    placed = {}
    for b in component.bindings.values():
        stored = [checkpoint.tensors[t.name] for t in b.sources]
        _refuse_changed(form, component.name, b, stored)
        first = stored[0]
        placed[b.name] = Placed(os.path.basename(first.file), first.offset, b.nbytes)
    return placed


def _refuse_changed(form: str, name: str, b: Binding, stored: list[Tensor]) -> None:
    where = f"--data {form}: {name}"
    for t in stored:
        if t.dtype != b.dtype:
            raise Unsupported(
                f"{where}: {t.file}: tensor '{t.name}': a linked tensor keeps its type",
                found=t.dtype,
                expected=f"{b.dtype}, which the component is exported in",
                hint=_HINT,
            )
    for before, t in pairwise(stored):
        if (t.file, t.offset) != (before.file, before.offset + before.nbytes):
            raise Unsupported(
                f"{where}: '{b.name}' is joined from {len(stored)} tensors, which do not follow "
                f"each other in one file: '{before.name}' and '{t.name}'",
                hint=_HINT,
            )


def _shards(form: str, checkpoint: Checkpoint, component: Component) -> list[Shard]:
    """The files that a component's parameters are in, in the order of their names."""
    files = {t.file for b in component.bindings.values() for t in b.sources}
    shards: dict[str, Shard] = {}
    for file in sorted(files):
        name = os.path.basename(file)
        real, problem = contained(checkpoint.root, file)
        if problem is not None:
            raise InputError(f"{checkpoint.source}: {file}: {problem.message}")
        fault = location_fault(name)
        if name in shards:
            fault = ("twice", f"has the name of {shards[name].file}")
        if form == INPLACE and os.path.realpath(checkpoint.root) != os.path.dirname(real):
            fault = ("outside", "lies in another folder, and a runtime reads data beside a graph")
        if form == INPLACE and os.path.islink(os.path.join(checkpoint.root, file)):
            fault = ("link", "is a symbolic link, which most readers of a graph's data refuse")
        if fault is not None:
            text = f"--data {form}: {checkpoint.source}: shard '{file}' {fault[1]}"
            raise Unsupported(text, hint=_HINT)
        shards[name] = Shard(name, file, real, checkpoint.files[file])
    return list(shards.values())


def _check_folder(checkpoint: Checkpoint, out: Path | None) -> None:
    """Refuse what no graph may be put into."""
    if checkpoint.source.startswith("demo:"):
        text = f"--data inplace: {checkpoint.source} is part of this program"
        raise UsageProblem(text, expected="a checkpoint of your own", hint=_HINT)
    if out is not None and os.path.realpath(out) != os.path.realpath(checkpoint.root):
        raise UsageProblem(
            "--data inplace: output",
            found=str(out),
            expected=f"the checkpoint's folder {checkpoint.root}, or no -o",
        )


def _fault(
    form: str, shard: Shard, out: Path | None, works: dict[int, OSError | None]
) -> OSError | None:
    """Why a shard cannot be linked into the output; asked once for each device."""
    if form == INPLACE or out is None:
        return None
    device = os.stat(shard.real).st_dev
    if device not in works:
        ask = sharing.clone_fault if form == REFLINK else sharing.link_fault
        works[device] = ask(shard.real, Path(os.path.realpath(out)).parent)
    return works[device]


def write_shards(component: Component, folder: Path, stamps: Mapping[str, tuple[int, int]]) -> None:
    """Clone or link the shards of a component into its folder.

    Args:
        stamps: size and time of change of each file when its header was read.
    Raises:
        EnvironmentProblem: the file system cannot do that.
        InputError: a file is another one by now.
    """
    make = sharing.clone_file if component.form == REFLINK else sharing.link_file
    for shard in component.shards:
        stamp = make(shard.real, shard.file, folder / shard.name)
        if stamps.get(shard.file, stamp) != stamp:
            raise InputError(f"{shard.file}: changed since its header was read")


def require_unchanged(checkpoint: Checkpoint) -> None:
    """Refuse a package of files that moved since their headers were read: its graphs would point at
    other bytes, or its weights be of two checkpoints.

    Raises:
        InputError: names the file.
    """
    for file, stamp in checkpoint.stamps.items():
        try:
            status = os.stat(checkpoint.path(file))
            now = (status.st_size, status.st_mtime_ns)
        except OSError:
            now = (-1, 0)
        if now != stamp:
            raise InputError(f"{checkpoint.source}: {file}: changed while it was exported")
