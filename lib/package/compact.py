"""A package without the bytes that belong to no tensor: its external data written anew.

Exporters that append to a data file leave the old bytes in it. What the graphs use is copied into
files of the same names, tensors of each file aligned to 64 bytes; offsets in the graphs and in the
weight report follow; everything else is copied as it is.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint.hidden_folder import remove_left
from ..checkpoint.onnx_external import External
from ..checkpoint.regular_file import OpenFile, open_regular
from ..checkpoint.safetensors_header import read_header
from ..checkpoint.strict_json import read_object
from ..checkpoint.tensor import Tensor
from ..checkpoint.writer import (
    ALIGNMENT,
    DataFile,
    Entry,
    alignment,
    check_output,
    check_space,
    encode_header,
    new_folder,
    write_bytes,
    write_data,
)
from ..errors import CheckFailed, Unsupported
from ..progress import step
from . import layout, sums
from .beside import as_json
from .checks.data import safetensors_name
from .checks.external import locate
from .checks.loading_report import MAX_REPORT
from .checks.subject import Part, Subject


@dataclass
class Moved:
    """A data file that is written anew: its used ranges, and where they go.

    Attributes:
        name: relative to the package.
        real: the file that is read.
        nbytes: size of that file.
        ranges: (start, end, tensor that uses it), by start; none overlaps another.
        places: new starts of the ranges.
    """

    name: str
    real: str
    nbytes: int
    ranges: list[tuple[int, int, External]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    data: DataFile | None = None

    def new(self, offset: int) -> int:
        """Where a byte that is used goes."""
        i = bisect_right(self.ranges, offset, key=lambda r: r[0]) - 1
        return self.places[i] + offset - self.ranges[i][0]


def write(
    subject: Subject,
    out: Path,
    *,
    force: bool = False,
) -> tuple[int, int]:
    """Write a package anew; it appears under its name only when it is complete.

    Peak memory is a band, and one graph.

    Args:
        subject: graph.parse, data.path and data.bounds hold for all its graphs.
        force: replace an existing package.
    Returns:
        bytes of all data files before and after.
    Raises:
        CheckFailed: a graph cannot be used.
        Unsupported: tensors that overlap in part.
        UsageProblem: the output is, holds or lies in the package, or exists without `force`.
        EnvironmentProblem: not enough disk space, or it cannot be written.
    """
    check_output(out, [subject.root], force=force, marker=layout.MANIFEST)
    remove_left(out)  # before the room is counted that they take
    moved = _moved(subject)
    graphs = {part.file: part for part in subject.parts}
    others = [n for n in _files(subject) if n not in moved and n not in graphs]
    summed = subject.is_package and os.path.lexists(os.path.join(subject.root, sums.NAME))
    with ExitStack() as stack:
        for m in moved.values():
            _place(m, stack.enter_context(open_regular(m.real, m.name)))
        after = sum(m.data.nbytes for m in moved.values() if m.data)
        check_space(out, after + (16 << 20))
        with (
            new_folder(out, replace=layout.MANIFEST if force else None) as folder,
            step(after, "writing") as bar,
        ):
            for m in moved.values():
                assert m.data is not None
                target = folder / m.name
                target.parent.mkdir(parents=True, exist_ok=True)
                write_data(target, m.data, bar.update)
            for part in subject.parts:
                write_bytes(folder / part.file, _graph(subject, part, moved))
            for name in others:
                if name == layout.REPORT and subject.is_package:
                    write_bytes(folder / name, _report(subject, moved))
                else:
                    _copy(subject, name, folder)
            if summed:
                sums.write(str(folder))
    return sum(m.nbytes for m in moved.values()), after


def _files(subject: Subject) -> Iterable[str]:
    """What there is beside graphs and data; of one graph that was named nothing."""
    return sums.files(subject.root) if subject.is_folder else ()


def _moved(subject: Subject) -> dict[str, Moved]:
    """All data files, by their names in the package, with what is used of them."""
    found: dict[str, Moved] = {}
    for part in subject.parts:
        if part.path is None or part.reading.findings:
            raise CheckFailed(f"{part.file}: graph.parse does not hold: nothing is written")
        folder = os.path.dirname(part.file)
        for e in part.externals:
            real, findings = locate(part, e.location, bare=subject.is_package)
            if real is None:
                raise CheckFailed(f"{findings[0].message}: nothing is written")
            name = os.path.normpath(os.path.join(folder, e.location))
            m = found.setdefault(name, Moved(name, real, os.stat(real).st_size))
            if e.nbytes:
                m.ranges.append((e.start, e.start + e.nbytes, e))
    for m in found.values():
        m.ranges.sort(key=lambda r: (r[0], -r[1]))
        kept: list[tuple[int, int, External]] = []
        for r in m.ranges:
            if r[1] > m.nbytes:
                raise CheckFailed(f"{m.name}: data.bounds does not hold: nothing is written")
            if kept and r[0] < kept[-1][1]:
                if r[1] > kept[-1][1]:
                    names = f"'{kept[-1][2].tensor.name}' and '{r[2].tensor.name}'"
                    raise Unsupported(f"{m.name}: tensors {names} overlap in part")
                continue  # inside another one: it goes with it
            kept.append(r)
        m.ranges = kept
    return found


def _place(m: Moved, source: OpenFile) -> None:
    """Lay the used ranges out anew: as safetensors where the file is called so, else one after the
    other with padding."""
    if not m.name.endswith(".safetensors"):
        entries, at = [], 0
        for start, end, e in m.ranges:
            gap = -at % ALIGNMENT
            if gap:
                entries.append(Entry("", "", (), gap, bands=lambda n=gap: [bytes(n)]))  # type: ignore[misc]
            m.places.append(at + gap)
            entries.append(_entry(e.tensor.name, "", (), source, start, end))
            at += gap + end - start
        m.data = DataFile(m.name, b"", tuple(entries))
        return
    header = read_header(m.real, m.name)
    known: dict[tuple[int, int], Tensor] = {}
    for t in header.tensors:
        known[t.offset, t.offset + t.nbytes] = t
    made: list[tuple[Entry, int]] = []
    for i, (start, end, e) in enumerate(m.ranges):
        entry = known.get((start, end))
        name = entry.name if entry else e.tensor.name
        dtype = entry.dtype if entry else safetensors_name(e.tensor.data_type)
        shape = tuple(entry.shape if entry else e.tensor.dims)
        made.append((_entry(name, dtype, shape, source, start, end), i))
    # sizes that are multiples of 64 first, as the exporter has them: the format allows no gaps
    made.sort(key=lambda pair: (-alignment(pair[0].nbytes), pair[0].name))
    metadata = {k: v for k, v in header.metadata.items() if isinstance(v, str)}
    text = encode_header([x for x, _ in made], metadata)
    m.places = [0] * len(made)
    at = len(text)
    for x, i in made:
        m.places[i] = at
        at += x.nbytes
    m.data = DataFile(m.name, text, tuple(x for x, _ in made))


def _entry(
    name: str, dtype: str, shape: tuple[int, ...], source: OpenFile, start: int, end: int
) -> Entry:
    pieces = [(source, start, end - start)]
    return Entry(name, dtype, shape, end - start, copies=lambda: pieces)


def _graph(subject: Subject, part: Part, moved: dict[str, Moved]) -> bytes:
    """A graph whose external data are where they will be. The checksum of a whole file goes."""
    folder = os.path.dirname(part.file)
    changed = []
    for e in part.externals:
        m = moved[os.path.normpath(os.path.join(folder, e.location))]
        place = m.new(e.start) if e.nbytes else 0
        changed.append((e.tensor, list(e.tensor.external_data)))
        values = {"location": e.location, "offset": str(place), "length": str(e.nbytes)}
        del e.tensor.external_data[:]
        for key, value in values.items():
            e.tensor.external_data.add(key=key, value=value)
    try:
        return part.model.SerializeToString(deterministic=True)
    finally:
        for tensor, entries in changed:  # the subject stays what was read
            del tensor.external_data[:]
            tensor.external_data.extend(entries)


def _report(subject: Subject, moved: dict[str, Moved]) -> bytes:
    """The weight report with the new offsets of its targets."""
    real, why = subject.resolve(layout.REPORT)
    if real is None:
        raise CheckFailed(f"{layout.REPORT}: {why}")
    report: dict[str, Any] = read_object(real, layout.REPORT, MAX_REPORT)
    rows = report.get("tensors")
    for row in rows if isinstance(rows, list) else ():
        for target in row.get("targets", ()):
            m = moved.get(str(target.get("file")))
            if m is not None and type(target.get("offset")) is int and m.ranges:
                target["offset"] = m.new(target["offset"]) if target.get("nbytes") else 0
    return as_json(report)


def _copy(subject: Subject, name: str, folder: Path) -> None:
    """One other file, as it is; what a link leads to, where it may lead there."""
    real, why = subject.resolve(name)
    if real is None:
        raise CheckFailed(f"{name}: {why}")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(real, name) as f:
        entry = _entry(name, "", (), f, 0, f.nbytes)
        write_data(target, DataFile(name, b"", (entry,) if f.nbytes else ()), lambda n: None)


def record(before: int, after: int, out: str) -> dict[str, Any]:
    """Fields of the `file` record of a package that was written."""
    return {"path": out, "role": "package", "nbytes": after, "removed": before - after}
