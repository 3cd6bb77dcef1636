"""A checkpoint's headers as records, and records back as what census counts."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from operator import itemgetter
from typing import Any

from .census import Counted
from .checkpoint.config import layout_values
from .checkpoint.header_text import PLAIN
from .checkpoint.regular_file import reading, standard_input
from .checkpoint.safetensors_header import MAX_HEADER
from .checkpoint.source import open_checkpoint
from .checkpoint.strict_json import MAX_INTEGER
from .checkpoint.tensor import BITS, Checkpoint, Problem, Tensor
from .errors import InputError, UsageProblem
from .experts.detect import detect_checkpoint
from .records import Stream, dumps
from .records import read as records_of_stream

Record = dict[str, Any]
HEADER_KINDS = {"tensor", "metadata", "config", "file"}
"""Kinds that inspect-headers writes; a stream with none of them is of another command."""
_NAME = itemgetter(0)

TOO_LARGE = -1
"""Bytes of a tensor that no file holds, or whose number of elements is none of a file's."""


def wanted(name: str, include: Sequence[str] | None, exclude: Sequence[str] | None) -> bool:
    """Whether a name matches one of `include` (or there is none) and none of `exclude`."""
    if include and not any(fnmatchcase(name, g) for g in include):
        return False
    return not (exclude and any(fnmatchcase(name, g) for g in exclude))


def names(checkpoint: Checkpoint) -> set[str]:
    """Names of all tensors and ports, which patterns may match."""
    found = {t.name for t in checkpoint.tensors.values()}
    return found | {p.name for p in checkpoint.ports}


def write_records(
    stream: Stream,
    checkpoint: Checkpoint,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    full: bool = False,
) -> None:
    """Write the records of a checkpoint: config, files, tensors, metadata, expert groups, problems.

    Args:
        include, exclude: patterns of tensor names.
        full: long lists of the config in full.
    """
    if checkpoint.config or checkpoint.config_hash is not None:
        values = layout_values(checkpoint.config, full)
        digest = checkpoint.config_hash
        partial = {"partial": True} if checkpoint.partial else {}
        stream.write("config", path="config.json", values=values, sha256=digest, **partial)
    stream.write_all("file", _files(checkpoint))
    orphans = frozenset(checkpoint.orphans)
    chosen: Iterable[Tensor] = checkpoint.tensors.values()
    if include or exclude:
        chosen = (t for t in chosen if wanted(t.name, include, exclude))
    rows = ({**t.record(), **({"orphan": True} if t.name in orphans else {})} for t in chosen)
    stream.write_lines("tensor", rows, _lines(chosen, orphans))
    ports = (p for p in checkpoint.ports if wanted(p.name, include, exclude))
    stream.write_all("tensor", (p.record() for p in ports))
    for file, pairs in checkpoint.metadata.items():
        for key, value in pairs.items():
            stream.write("metadata", file=file, key=key, value=value)
    experts = detect_checkpoint(checkpoint)
    stream.write_all("expert-group", experts.records())
    checkpoint.problems += experts.as_problems(index=False)
    stream.write_all("problem", (p.record() for p in checkpoint.problems))


def _files(checkpoint: Checkpoint) -> Iterator[Record]:
    index = checkpoint.index
    if index is not None:
        yield {
            "path": index["path"],
            "nbytes": index["nbytes"],
            "role": "index",
            "sha256": checkpoint.index_hash,
            "total_size": index["total_size"],
        }
    for path, nbytes in checkpoint.files.items():
        facts = checkpoint.file_facts.get(path, {})
        yield {"path": path, "nbytes": nbytes, "role": "tensors", **facts}
    for path, names in checkpoint.absent.items():
        yield {"path": path, "nbytes": None, "role": "absent", "tensors": names}
    for path, unlisted in checkpoint.unlisted.items():
        yield {"path": path, "role": "unlisted", **unlisted._asdict()}


_BATCH = 500
"""Tensors whose lines are made and written together."""


class _Texts(dict[tuple[str, tuple[int, ...], str, int], tuple[str, str]]):
    """What stands between name and offset of a line, and after the offset, for each dtype, shape,
    file and size: a checkpoint has 150,000 tensors and a few dozen of these a file."""

    def __missing__(self, key: tuple[str, tuple[int, ...], str, int]) -> tuple[str, str]:
        dtype, shape, file, nbytes = key
        sizes = ",".join(map(str, shape))
        quoted = dumps({"": file})[4:-1]
        before = f'","dtype":"{dtype}","shape":[{sizes}],"file":{quoted},"offset":'
        texts = self[key] = before, f',"nbytes":{nbytes},"params":{math.prod(shape)}}}'
        return texts


def _lines(chosen: Iterable[Tensor], orphans: Collection[str]) -> Iterator[list[str]]:
    """`tensor` records as JSON, each the line that `dumps` makes of it, in batches.

    A batch with a name that JSON or a terminal needs escaped takes the general way.
    """
    texts = _Texts()
    rest = iter(chosen)
    while batch := list(islice(rest, _BATCH)):
        names = "\n".join(map(_NAME, batch))
        seams = b"\n" * (len(batch) - 1)
        special = not names.isascii() or names.encode().translate(None, PLAIN) != seams
        lines = []
        for t in batch:
            name, dtype, shape, file, offset, nbytes, component, role = t
            if special or component or role or name in orphans:
                mark = {"orphan": True} if name in orphans else {}
                lines.append(dumps({"kind": "tensor", **t.record(), **mark}))
                continue
            before, after = texts[dtype, shape, file, nbytes]
            lines.append(f'{{"kind":"tensor","name":"{name}{before}{offset}{after}')
        yield lines


def read(source: str, max_header: int = MAX_HEADER, revision: str | None = None) -> Counted:
    """What a SOURCE holds, or the record streams on standard input for `-`.

    Raises:
        InputError: a stream that is malformed or has no end.
        SourceNotFound, Unsupported: as `open_checkpoint`.
    """
    if source != "-":
        found = open_checkpoint(source, max_header=max_header, revision=revision, beside=True)
        return counted(found)
    if revision is not None:
        raise UsageProblem("'-': --revision is for sources on the Hub")
    lines = io.TextIOWrapper(standard_input(), encoding="utf-8", newline="\n")
    with reading("standard input"):
        return counted_records(records_of_stream(lines))


def counted(checkpoint: Checkpoint) -> Counted:
    """A checkpoint as census counts it."""
    duplicates = [p.name for p in checkpoint.problems if p.code == "duplicate-tensor" and p.name]
    return Counted(
        tensors=list(checkpoint.tensors.values()),
        files=list(checkpoint.files),
        problems=list(checkpoint.problems),
        config=checkpoint.config,
        missing=checkpoint.missing,
        orphans=checkpoint.orphans,
        duplicates=duplicates,
        absent=checkpoint.absent,
        unlisted={name: u.tensors for name, u in checkpoint.unlisted.items()},
        partial=checkpoint.partial,
        index_hash=checkpoint.index_hash,
        config_hash=checkpoint.config_hash,
        index_total_size=(checkpoint.index or {}).get("total_size"),
        folder=checkpoint.folder if checkpoint.format == "safetensors" else None,
        gguf=checkpoint.gguf,
        architecture=checkpoint.gguf.architecture if checkpoint.gguf else None,
        revision=checkpoint.revision,
        format=checkpoint.format,
        read=_read_here(checkpoint),
        index=checkpoint.path(checkpoint.index["path"]) if checkpoint.index else None,
    )


def _read_here(checkpoint: Checkpoint) -> list[str]:
    """Paths of the files of a checkpoint on this machine that were read or looked up."""
    if not checkpoint.folder.local:
        return []
    index = [checkpoint.index["path"]] if checkpoint.index else []
    names = [*index, "config.json", "generation_config.json", *checkpoint.files]
    names += checkpoint.unlisted
    return [checkpoint.path(name) for name in names]


def counted_records(lines: Iterable[Record]) -> Counted:
    """Record streams, checked and whole (`records.read`), summed.

    Unknown kinds and fields are skipped.
    What belongs to one checkpoint (hashes, config) stays only if one stream gives it, or all the
    same.

    Raises:
        InputError: a `tensor` or `problem` record lacks a field or has one of a wrong type.
    """
    out = Counted()
    named: list[str] = []
    configs: list[tuple[Record, str | None]] = []
    architectures: set[str | None] = set()
    indexes: list[Record] = []
    kinds: set[str] = set()
    seen: set[str | tuple[str, str]] = set()
    starts: list[int] = []
    for record in lines:
        kind = record["kind"]
        kinds.add(kind)
        if kind == "begin" or not out.parts:
            seen.clear()
            starts.append(len(out.tensors))
            out.parts.append(Counted())
        if kind == "begin":
            continue
        if kind == "tensor":
            if record.get("role") in ("input", "output"):
                continue  # a port of a graph: nothing is stored
            tensor = _tensor(record)
            place = (tensor.component, tensor.name) if tensor.component else tensor.name
            if place in seen:
                message = "twice in one stream, counted once"
                told = Problem("duplicate-tensor", message, file=tensor.file, name=tensor.name)
                out.problems.append(told)
                out.duplicates.append(tensor.name)
                continue
            seen.add(place)
            out.tensors.append(tensor)
            if record.get("orphan") is True:
                out.orphans.append(tensor.name)
        elif kind == "problem":
            problem = _problem(record)
            out.problems.append(problem)
            if problem.name and problem.code == "missing-tensor":
                out.missing.append(problem.name)
            if problem.name and problem.code == "duplicate-tensor":
                out.duplicates.append(problem.name)
        elif kind == "gguf":
            architectures.add(_text(record.get("architecture")))
            out.parts[-1].architecture = _text(record.get("architecture"))
        elif kind == "config":
            values = record.get("values")
            if isinstance(values, dict):
                configs.append((values, _text(record.get("sha256"))))
                out.parts[-1].config = values
                out.parts[-1].partial |= record.get("partial") is True
                out.partial |= record.get("partial") is True
        elif kind == "file":
            path = _text(record.get("path")) or ""
            if record.get("role") in ("tensors", "graph", "data"):
                named.append(path)
            elif record.get("role") == "index":
                indexes.append(record)
            elif record.get("role") == "absent" and isinstance(record.get("tensors"), list):
                names = [n for n in record["tensors"] if isinstance(n, str)]
                out.absent.setdefault(path, []).extend(names)
                out.missing += names
            elif record.get("role") == "unlisted" and isinstance(record.get("tensors"), list):
                names = [n for n in record["tensors"] if isinstance(n, str)]
                out.unlisted.setdefault(path, []).extend(names)
    if not kinds & HEADER_KINDS and kinds - {"begin", "end"}:
        found = ", ".join(sorted(kinds - {"begin", "end"}))
        raise InputError(
            "standard input: records", found=found, expected="the output of inspect-headers"
        )
    ends = [*starts[1:], len(out.tensors)][: len(starts)]
    for part, start, end in zip(out.parts, starts, ends, strict=True):
        part.tensors = out.tensors[start:end] if len(starts) > 1 else out.tensors
    out.files = named or list(dict.fromkeys(t.file for t in out.tensors))
    if configs and all(c == configs[0] for c in configs):
        out.config, out.config_hash = configs[0]
    if len(architectures) == 1:
        (out.architecture,) = architectures
    if len(indexes) == 1:
        out.index_hash = _text(indexes[0].get("sha256"))
        total = indexes[0].get("total_size")
        out.index_total_size = total if _count(total) else None
    return out


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INTEGER


@cache
def _nbytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of a tensor of a safetensors type; None of another type; TOO_LARGE."""
    bits, params = BITS.get(dtype), math.prod(shape)
    if params > MAX_INTEGER:
        return TOO_LARGE
    return None if bits is None else (params * bits + 7) // 8


def _tensor(record: Record) -> Tensor:
    name, dtype, shape = record.get("name"), record.get("dtype"), record.get("shape")
    offset, nbytes = record.get("offset", 0), record.get("nbytes")
    if not isinstance(name, str):
        raise InputError("tensor record: 'name'", found=repr(name)[:40], expected="a string")
    if not isinstance(dtype, str):
        raise InputError(
            f"tensor record '{name}': 'dtype'", found=repr(dtype)[:40], expected="a string"
        )
    if not isinstance(shape, list) or not all(map(_count, shape)):
        found = repr(shape)[:40]
        raise InputError(
            f"tensor record '{name}': 'shape'", found=found, expected="a list of sizes"
        )
    if not isinstance(nbytes, int) or not _count(nbytes):
        raise InputError(
            f"tensor record '{name}': 'nbytes'", found=repr(nbytes)[:40], expected="a size"
        )
    sizes = tuple(shape)
    size = _nbytes(dtype, sizes)
    if size == TOO_LARGE:
        what = f"tensor record '{name}': 'shape': elements"
        raise InputError(what, found="more", expected=f"<= {MAX_INTEGER}")
    if size is not None and nbytes != size:
        raise InputError(
            f"tensor record '{name}': 'nbytes'",
            found=nbytes,
            expected=f"{size} for {dtype} {shape}",
        )
    return Tensor(
        name,
        dtype,
        sizes,
        _text(record.get("file")) or "",
        offset if _count(offset) else 0,
        nbytes,
        _text(record.get("component")),
        _text(record.get("role")),
    )


def _problem(record: Record) -> Problem:
    severity = record.get("severity", "error")
    if severity not in ("error", "warning", "info"):
        expected = "error, warning or info"
        raise InputError("problem record: 'severity'", found=repr(severity)[:40], expected=expected)
    return Problem(
        _text(record.get("code")) or "unknown",
        _text(record.get("message")) or "",
        severity=severity,
        file=_text(record.get("file")),
        name=_text(record.get("name")),
        malformed=record.get("malformed") is True,
    )
