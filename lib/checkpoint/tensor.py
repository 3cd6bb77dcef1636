"""What a header says of a tensor, and what is wrong with a file: the currency of all commands."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError, SourceNotFound, Unsupported

if TYPE_CHECKING:
    from .folder import Folder
    from .gguf_set import GgufFacts

BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of one element for each dtype name of the safetensors format (its README and Dtype enum)."""


_COMPONENT = itemgetter(6)
NO_PAYLOAD = -1
"""Offset of a tensor whose values lie nowhere as its dtype has them: varints or strings in a graph.
Records have null."""


class Tensor(NamedTuple):
    """One tensor of a checkpoint; its payload is a byte range of a file and is not read.

    A tuple, because a checkpoint may have a million of them and a frozen dataclass takes five times
    as long to make.

    Attributes:
        name: full name, as stored.
        dtype: safetensors spelling (`BF16`), `GGUF:Q8_0` for GGUF block types.
        shape: dimensions, row-major, outermost first.
        file: path relative to the checkpoint's root, with `/`.
        offset: bytes from the start of the file, or NO_PAYLOAD.
        nbytes: bytes of the payload.
        component: folder of a package that the file is in, else None.
        role: `initializer`, `input` or `output` of an ONNX graph, else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int
    component: str | None = None
    role: str | None = None

    @property
    def params(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def record(self) -> dict[str, Any]:
        """Fields of a `tensor` record."""
        fields: dict[str, Any] = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "file": self.file,
            "offset": self.offset if self.offset >= 0 else None,
            "nbytes": self.nbytes,
            "params": self.params,
        }
        if self.component is not None:
            fields["component"] = self.component
        if self.role is not None:
            fields["role"] = self.role
        return fields


def in_components(tensors: Iterable[Tensor]) -> Sequence[Tensor]:
    """The tensors; those of components called COMPONENT/NAME, as several may have one name."""
    rows = tensors if isinstance(tensors, Sequence) else list(tensors)
    if not any(map(_COMPONENT, rows)):
        return rows
    return [t._replace(name=f"{t[6]}/{t[0]}") if t[6] else t for t in rows]


class Port(NamedTuple):
    """An input or output of an ONNX graph: declared, but not stored.

    Attributes:
        shape: sizes; names of symbolic ones; None for one that is open. None: no shape is declared.
        file: the graph's.
        role: `input` or `output`.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    file: str
    component: str | None
    role: str

    def record(self) -> dict[str, Any]:
        """Fields of a `tensor` record; sums over `params` and `nbytes` are of what is stored."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "file": self.file,
            "offset": None,
            "nbytes": 0,
            "params": 0,
            **({} if self.component is None else {"component": self.component}),
            "role": self.role,
        }


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about a file or tensor.

    Attributes:
        code: stable, lower case with dashes: `truncated`, `overlap`, `missing-tensor`.
        message: one line: what, found, expected.
        severity: `error`, `warning` or `info`.
        malformed: the file cannot be trusted as its format (exit 3), rather than a difference in a
            sound file (exit 1).
    """

    code: str
    message: str
    severity: str = "error"
    file: str | None = None
    name: str | None = None
    malformed: bool = False

    def record(self) -> dict[str, Any]:
        """Fields of a `problem` record."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file,
            "name": self.name,
            "message": self.message,
            "malformed": self.malformed,
        }


def exit_code(problems: list[Problem]) -> int:
    """0 without errors, 1 for differences in sound files, 3 when a file is malformed
    (docs/exit-codes.md).
    """
    errors = [p for p in problems if p.severity == "error"]
    return 3 if any(p.malformed for p in errors) else 1 if errors else 0


def first_of(problems: list[Problem], severity: str, source: str) -> str | None:
    """One line for the worst problem of a severity, and how many others there are.

    Args:
        source: what the user named; it begins the line and is not said twice.
    """
    chosen = [p for p in problems if p.severity == severity]
    if not chosen:
        return None
    worst = next((p for p in chosen if p.malformed), chosen[0])
    where = [source]
    if worst.file and os.path.basename(source) != worst.file:
        where.append(worst.file)
    if worst.name and worst.code != "unexpected":
        where.append(f"tensor '{worst.name}'")
    more = f" (and {len(chosen) - 1} more)" if len(chosen) > 1 else ""
    return ": ".join([*where, worst.message]) + more


class Unlisted(NamedTuple):
    """A file beside those that an index names.

    Attributes:
        nbytes: its size.
        tensors: names in its header that no listed file has and the index does not name.
    """

    nbytes: int
    tensors: list[str]


@dataclass
class Checkpoint:
    """Headers of a whole checkpoint, metadata files included, payload unread.

    Attributes:
        source: as the user wrote it; an address without user, password and query.
        root: absolute folder that `Tensor.file` is relative to; an address for a remote one.
        folder: the same, to read from.
        revision: commit on the Hub, or None.
        tensors: by name; file order of the index, then offset order in a file. In a package the key
            is COMPONENT/NAME, because two components may hold a tensor of one name.
        ports: inputs and outputs of ONNX graphs; they are not counted.
        files: size in bytes of each file of tensors, of graphs and of their data.
        file_facts: further fields of their `file` records, such as another `role` than `tensors`.
        metadata: `__metadata__` of each file of tensors; of a GGUF file its key/value pairs; what a
            graph says of itself.
        problems: everything found wrong, in order.
        index: {path, nbytes, total_size}, or None without an index.
        missing: names that the index gives and no sound header has.
        absent: {file that the index names and that is not there: names of the tensors it should
            hold}.
        orphans: names that headers have and the index does not give.
        unlisted: {safetensors file that the index does not name: what its header says}. Its tensors
            are not among `tensors`.
        doubled: {name that several files hold: those files, as they were read}.
        cut: tensors whose entries are whole, in files that end before their payload does, by name.
            They are not among `tensors`.
        config, generation_config: `config.json`, `generation_config.json`, or {} without one.
        partial: the file that the user named is one of several; completeness cannot be judged, and
            `config` has only what does not depend on it.
        requested_revision: as the user wrote it, or None.
        index_hash, config_hash: SHA-256 (hex) of the bytes of the index and config file, or None.
        bytes_read, requests: what reading the headers cost.
        stamps: {local file of tensors: its size and time of change in ns when its header was read}.
        gguf: what a GGUF model says of itself, None for other formats.
    """

    source: str
    root: str
    folder: Folder
    format: str = "safetensors"
    revision: str | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ports: list[Port] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    file_facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    partial: bool = False
    requested_revision: str | None = None
    index: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    absent: dict[str, list[str]] = field(default_factory=dict)
    unlisted: dict[str, Unlisted] = field(default_factory=dict)
    doubled: dict[str, list[str]] = field(default_factory=dict)
    cut: dict[str, Tensor] = field(default_factory=dict)
    index_hash: str | None = None
    config_hash: str | None = None
    bytes_read: int = 0
    requests: int = 0
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    gguf: GgufFacts | None = None

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            SourceNotFound: no such tensor.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise SourceNotFound(f"{self.source}: no tensor '{name}'") from None

    def path(self, relative: str) -> str:
        """Absolute path of a file of the checkpoint."""
        return os.path.join(self.root, relative)

    def is_plain(self, tensor: Tensor) -> bool:
        """Whether `bands` does no more than read the tensor's bytes from its file."""
        return tensor.offset >= 0

    def bands(self, tensor: Tensor, nbytes: int = 1 << 20) -> Iterator[bytes]:
        """The payload of a tensor in pieces of at most `nbytes` bytes, in order.

        A megabyte: the memory of larger pieces goes back to the system each time, and getting it
        again costs more than reading into it.

        Raises:
            InputError: the file ends before the payload does.
            Unsupported: its values are not stored as its dtype has them.
        """
        if tensor.offset < 0 and tensor.nbytes:
            raise Unsupported(
                f"{tensor.file}: tensor '{tensor.name}': values in typed fields of a graph",
                expected="raw or external data",
            )
        left = tensor.nbytes
        with self.folder.open(tensor.file) as f:
            while left:
                at = tensor.offset + tensor.nbytes - left
                piece = f.read(at, min(left, nbytes))
                if not piece:
                    raise InputError(
                        f"{tensor.file}: tensor '{tensor.name}': payload ends early, bytes",
                        found=tensor.nbytes - left,
                        expected=tensor.nbytes,
                    )
                left -= len(piece)
                yield piece

    def refuse_if_broken(self, *, headers_only: bool = False) -> None:
        """Raise on the first error: converting from a broken checkpoint loses data.

        Args:
            headers_only: let files pass that end in their payload, behind a sound header.
        Raises:
            InputError: the first malformed file, else the first difference.
            SourceNotFound: that is a tensor or file that the index names and that is not there.
        """
        errors = [p for p in self.problems if p.severity == "error"]
        if headers_only:
            short = {t.file for t in self.cut.values()}
            errors = [p for p in errors if p.code != "truncated" or p.file not in short]
        for problem in sorted(errors, key=lambda p: not p.malformed):
            file = problem.file if problem.file != os.path.basename(self.source) else None
            where = ": ".join(x for x in (file, problem.name) if x)
            absent = problem.code == "missing-tensor" or problem.file in self.absent
            kind = SourceNotFound if absent else InputError
            raise kind(f"{self.source}: {where + ': ' if where else ''}{problem.message}")
