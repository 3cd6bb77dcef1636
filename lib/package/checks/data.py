"""data.*: the files that hold the weights, against what the graphs say of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace

from ...checkpoint.header import Header
from ...checkpoint.onnx_external import External, by_location, overlaps, range_fault
from ...checkpoint.onnx_rules import Fault
from ...checkpoint.onnx_types import TYPES, type_name
from ...checkpoint.regular_file import open_regular
from ...checkpoint.safetensors_header import read_header
from ...errors import NtoolError
from .. import layout, sums
from .external import locate
from .subject import MAX_LISTED, Check, Finding, Part, Subject, bad, not_applicable, warn

PADDING = 65536
"""Longest run of zero bytes between tensors that passes as alignment (writers align to a page)."""
BAND = 8 << 20
_DTYPES = {t.dtype: type_name(n) for n, t in TYPES.items() if not t.dtype.startswith("ONNX:")}
_STORED = {v: k for k, v in _DTYPES.items()}


def safetensors_name(data_type: int) -> str:
    """The safetensors spelling of an ONNX element type; its own name where the format has none."""
    name = type_name(data_type)
    return _STORED.get(name, name)


def path(subject: Subject, part: Part) -> list[Finding]:
    """Each location is plain and leads to a regular file inside the graph's folder."""
    findings = []
    listed = set(part.entry.get("data", ())) if subject.is_package else set()
    folder = os.path.dirname(part.file)
    for location, tensors in by_location(part.externals).items():
        _, found = locate(part, location, bare=subject.is_package)
        for f in found:
            if f.reason == "missing" and os.path.join(folder, location) in listed:
                see = "layout.files"
                found = [not_applicable(f"{f.message}: see {see}", see=see)]
                break
        where = f" ({tensors[0].where}" + (
            f" and {len(tensors) - 1} more)" if len(tensors) > 1 else ")"
        )
        findings += [f if f.ok else _extended(f, where) for f in found]
    return _limited(findings)


def _extended(f: Finding, where: str) -> Finding:
    return replace(f, message=f.message + where)


def bounds(subject: Subject, part: Part) -> list[Finding]:
    """Each tensor's bytes lie in its file, are as many as type and shape need, and are its own."""
    findings = []
    for location, tensors in by_location(part.externals).items():
        real, _ = locate(part, location, bare=subject.is_package)
        assert real is not None, "data.path holds"
        size = os.stat(real).st_size
        header = _header(real, location)
        sound = []
        for e in tensors:
            fault = range_fault(e, size)
            if fault is None:
                sound.append(e)
            else:
                findings.append(_in(part, _finding(fault, f"{fault.where}: ")))
        strict = subject.is_package
        for fault in overlaps(sound):
            if fault.reason == "shared" and part.is_linked:
                continue  # a tied matrix is one in the checkpoint; weights.complete knows of both
            mild = fault.reason == "shared" and not strict
            findings.append(_in(part, _finding(fault, f"{fault.where} ", warning=mild)))
        if header is not None and not header.problems:
            found = (
                _stretches(sound, header, location)
                if part.is_linked
                else _entries(sound, header, location, strict)
            )
            findings += [_in(part, f) for f in found]
    return _limited(findings)


def _in(part: Part, f: Finding) -> Finding:
    return replace(f, message=f"{part.file}: {f.message}")


def _limited(findings: list[Finding]) -> list[Finding]:
    if len(findings) <= MAX_LISTED:
        return findings
    first = sorted(findings, key=lambda f: f.ok is not False)
    more = first[MAX_LISTED]
    text = f"and {len(findings) - MAX_LISTED} more"
    return [*first[:MAX_LISTED], Finding(more.ok, text, see=more.see)]


def _finding(f: Fault, where: str, *, warning: bool = False) -> Finding:
    report = warn if warning else bad
    reason = f.reason if f.reason != "shared" or warning else "overlap"
    return report(f"{where}{f.text}", f.expected, f.actual, reason=reason)


def _header(real: str, location: str) -> Header | None:
    """The safetensors header of a data file, None for a file of another kind."""
    return read_header(real, location) if location.endswith(".safetensors") else None


def _entries(
    tensors: list[External], header: Header, location: str, strict: bool
) -> Iterator[Finding]:
    """Each tensor is behind the safetensors header; in a package, the entry of its name."""
    entries = {t.offset: t for t in header.tensors if t.nbytes}
    start = min(entries, default=header.nbytes)
    for e in tensors:
        if not e.nbytes:
            continue
        entry = entries.get(e.start)
        if not strict:
            if e.start < start:
                text = f"{e.where}: begins inside the header of {location}"
                yield bad(text, f">= {start}", e.start, reason="in-header")
            continue
        found = None
        if entry is not None:
            found = [entry.name, _DTYPES.get(entry.dtype, entry.dtype), list(entry.shape)]
        wanted = [e.tensor.name, type_name(e.tensor.data_type), list(e.tensor.dims)]
        if found != wanted:
            text = f"{e.where}: entry of {location} at byte {e.start}"
            yield bad(text, wanted, found, reason="entry")


def _stretches(tensors: list[External], header: Header, location: str) -> Iterator[Finding]:
    """In a shard of the checkpoint: each tensor is one entry or several that follow each other, of
    its type. Names may differ (weights.complete compares them); those of a bank always do."""
    entries = {t.offset: t for t in header.tensors if t.nbytes}
    for e in tensors:
        at, end, kind = e.start, e.start + e.nbytes, type_name(e.tensor.data_type)
        while at < end:
            entry = entries.get(at)
            if entry is None or _DTYPES.get(entry.dtype, entry.dtype) != kind:
                found = None if entry is None else [entry.name, entry.dtype]
                text = f"{e.where}: entry of {location} at byte {at}"
                yield bad(text, f"one of type {kind}", found, reason="entry")
                break
            at += entry.nbytes
        else:
            if at > end:
                text = f"{e.where}: ends inside a tensor of {location}"
                yield bad(text, at, end, reason="entry")


def orphans(subject: Subject, part: Part) -> list[Finding]:
    """Every byte of a data file belongs to a tensor, the safetensors header or alignment."""
    covered: dict[str, list[tuple[int, int]]] = {}
    names: dict[str, str] = {}
    for other in subject.parts:
        if other.path is None or other.reading.findings:
            continue
        for location, tensors in by_location(other.externals).items():
            real, _ = locate(other, location, bare=subject.is_package)
            if real is not None:
                covered.setdefault(real, []).extend(
                    (e.start, e.start + e.nbytes) for e in tensors if not e.numbers
                )
                if other is part:
                    names[real] = location
    for name in part.entry.get("data", ()) if subject.is_package else ():
        real, _ = subject.resolve(name)
        if real is not None:
            names.setdefault(real, name)
            covered.setdefault(real, [])
    findings = []
    for real, name in names.items():
        findings += _file(part, real, name, covered[real], subject.is_package)
    return findings


def _not_ours(header: Header, holes: list[tuple[int, int]]) -> list[str] | None:
    """Names of the tensors of a shard that fill its holes; None where one is cut."""
    starts = {t.offset: t for t in header.tensors if t.nbytes}
    names = []
    for at, end in holes:
        while at < end:
            tensor = starts.get(at)
            if tensor is None:
                return None
            names.append(tensor.name)
            at += tensor.nbytes
        if at != end:
            return None
    return names


def _file(
    part: Part, real: str, name: str, ranges: list[tuple[int, int]], strict: bool
) -> list[Finding]:
    header = _header(real, name)
    where = f"{part.file}: {name}"
    report = bad if strict else warn
    if header is not None and header.problems:
        p = header.problems[0]
        tensor = f"tensor '{p.name}': " if p.name else ""
        text = f"{where}: not a sound safetensors file: {tensor}{p.message}"
        return [report(text, reason=p.code)]
    size = os.stat(real).st_size
    at = 0
    if header is not None:
        at = min((t.offset for t in header.tensors), default=size)
    start = at
    holes = []
    for begin, end in sorted(ranges):
        if begin > at:
            holes.append((at, begin))
        at = max(at, end)
    if at < size:
        holes.append((at, size))
    orphan = [h for h in holes if header is not None or not _is_padding(real, h, size)]
    lost = sum(b - a for a, b in orphan)
    total = f"covered {size - start - lost}, header {start}, orphan {lost}, file {size} bytes"
    others = _not_ours(header, orphan) if header is not None and part.is_linked else None
    if orphan and others is not None:
        total = f"covered {size - start - lost}, header {start}, file {size} bytes"
        text = f"{lost} of {len(others)} tensors of the checkpoint that are not this component's"
        return [Finding(True, f"{name}: {total}, {text}")]
    if orphan:
        first = ", ".join(f"{a}..{b}" for a, b in orphan[:4])
        return [report(f"{where}: bytes of no tensor: {first} ({total})", 0, lost, reason="orphan")]
    return [Finding(True, f"{name}: {total}", 0, 0)]


def _is_padding(real: str, hole: tuple[int, int], size: int) -> bool:
    begin, end = hole
    if end - begin >= PADDING or end == size:
        return False
    with open_regular(real, real) as f:
        return not any(f.read(begin, end - begin))


def hashes(subject: Subject) -> list[Finding]:
    """SHA256SUMS (or --manifest) lists every file with its hash; `checksum` keys hold."""
    findings = []
    for part in subject.parts:
        if part.path is not None and not part.reading.findings:
            findings += _checksums(subject, part)
    listed = subject.options.manifest or os.path.join(subject.root, sums.NAME)
    if subject.options.manifest is None and (
        subject.options.writing or not os.path.lexists(listed)
    ):
        if not findings:
            what = "it will be written" if subject.options.writing else f"no {sums.NAME}"
            findings.append(not_applicable(what))
        return findings
    try:
        wanted = sums.read(listed)
        found = sums.files(subject.root)
    except NtoolError as e:
        return [*findings, bad(e.message, reason="unreadable")]
    for name in sorted(wanted.keys() - set(found)):
        findings.append(bad(f"{name}: listed, but not there", reason="missing"))
    # beside a package in place there may be the checkpoint's own list, which knows nothing of it
    own = layout.MANIFEST in wanted or not any(p.is_in_place for p in subject.parts)
    for name in sorted(set(found) - wanted.keys()) if own else ():
        findings.append(bad(f"{name}: there, but not listed", reason="extra"))
    for name in sorted(wanted.keys() & set(found)):
        try:
            actual = sums.digest(subject.root, name)
        except NtoolError as e:
            findings.append(bad(e.message, reason="unreadable"))
            continue
        if actual != wanted[name]:
            findings.append(bad(f"{name}: SHA-256", wanted[name], actual, reason="hash"))
    return _limited(findings)


def _checksums(subject: Subject, part: Part) -> list[Finding]:
    """The `checksum` key, SHA-1 of the whole data file (ONNX IR.md); no library verifies it."""
    findings = []
    known: dict[str, str] = {}
    for e in part.externals:
        if e.checksum is None:
            continue
        real, _ = locate(part, e.location, bare=subject.is_package)
        if real is None:
            continue
        if real not in known:
            h = hashlib.sha1(usedforsecurity=False)
            with open_regular(real, e.location) as f:
                for at in range(0, f.nbytes, BAND):
                    h.update(f.read(at, BAND))
            known[real] = h.hexdigest()
        if e.checksum.lower() != known[real]:
            text = f"{part.file}: {e.where}: checksum of {e.location}"
            more = {"component": part.name, "reason": "checksum"}
            findings.append(bad(text, known[real], e.checksum[:80], **more))
    return findings


CHECKS = (
    Check(
        "data.path", "locations are plain and inside the folder", path, ("graph.parse",), plain=True
    ),
    Check(
        "data.bounds",
        "every tensor has its own bytes, of the right number",
        bounds,
        ("graph.parse", "data.path"),
        plain=True,
    ),
    Check(
        "data.orphans",
        "no bytes of no tensor",
        orphans,
        ("graph.parse", "data.path", "data.bounds"),
        plain=True,
    ),
    Check("data.hash", "SHA-256 of every file agrees", hashes, package=True, plain=True),
)
