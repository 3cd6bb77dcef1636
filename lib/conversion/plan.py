"""A conversion, decided from headers: every output tensor, its shard, the files beside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.folder import Folder, read_small
from ..checkpoint.tensor import Checkpoint
from ..checkpoint.writer import DataFile, Entry, encode_header
from ..errors import InputError, SourceNotFound
from .open_files import OpenFiles

SHARD_NBYTES = 5_000_000_000
"""Default size of a shard; what the Hub's tools write."""
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
REPORT = "weight-loading-report.json"
MAX_BESIDE = 256_000_000
"""Largest file beside the weights that is copied, bytes."""
_WEIGHTS = (".safetensors", ".gguf", ".onnx", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ckpt")


@dataclass
class Plan:
    """What a conversion will write.

    Attributes:
        source: the checkpoint, opened.
        options: what the result depends on beside the source; two runs that share work must agree.
        shards: the data files, in order.
        config: the new config.json, or None without one.
        beside: names of files of the source that are copied as they are.
        files: the source's files, opened as entries ask for them.
        rows: one row of the report for each source tensor: `name`, `action`, `targets`, `reason`.
        report: the other fields of the report.
        proofs: output tensor -> its payload by another way than it was written, to verify it.
        made: path in the output -> what makes the content of a small file that stands beside the
            shards.
        companions: shard -> such files (a graph over its tensors, say) that are made together with
            it: by the same part, and finished before the shard is.
        indexed: whether the output has an index of its shards.
    """

    source: Checkpoint
    options: dict[str, Any]
    shards: list[DataFile]
    config: bytes | None
    beside: list[str]
    files: OpenFiles
    rows: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    proofs: dict[str, Callable[[], Iterator[bytes]]] = field(default_factory=dict)
    made: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    companions: dict[str, dict[str, Callable[[], bytes]]] = field(default_factory=dict)
    indexed: bool = True
    _counts: dict[str, int] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all data files."""
        return sum(s.nbytes for s in self.shards)

    def counts(self) -> dict[str, int]:
        """Number of source tensors by what became of them.

        Raises:
            InputError: they do not add up to the tensors of the source.
        """
        if self._counts is not None:
            return self._counts
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row["action"]] = counts.get(row["action"], 0) + 1
        total = len(self.source.tensors)
        if sum(counts.values()) != total:
            raise InputError(
                f"{self.source.source}: source tensors accounted for",
                found=sum(counts.values()),
                expected=total,
            )
        self._counts = counts
        return counts

    def identity(self) -> str:
        """SHA-256 (hex) of what the result is, whatever became of its source meanwhile."""
        digest = hashlib.sha256(json.dumps(self.options).encode())
        for shard in self.shards:
            digest.update(f"{shard.name}\0".encode("utf-8", "surrogateescape"))
            digest.update(shard.header)
        digest.update(self.config or b"")
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that the bytes of the result follow from but the payloads."""
        digest = hashlib.sha256()
        source = self.source
        stamps = {name: list(stamp) for name, stamp in source.stamps.items()}
        digest.update(json.dumps([source.files, source.revision, stamps]).encode())
        digest.update(self.identity().encode())
        digest.update(json.dumps([[*self.made], [[*c] for c in self.companions.values()]]).encode())
        return digest.hexdigest()

    def index(self) -> bytes | None:
        """The text of the index; None where one shard needs none."""
        if not self.indexed:
            return None
        if len(self.shards) == 1 and self.shards[0].name == "model.safetensors":
            return None
        weight_map = {e.name: s.name for s in self.shards for e in s.entries}
        total = sum(e.nbytes for s in self.shards for e in s.entries)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        return new_json(index)


def shards_of(entries: Sequence[Entry], shard_nbytes: int = SHARD_NBYTES) -> list[DataFile]:
    """Lay entries out in their order, in shards of at most `shard_nbytes`; a larger tensor has its
    own. The order of the source keeps reading sequential.

    Raises:
        InputError: two of them have one name, or there are none.
    """
    if not entries:
        raise SourceNotFound("tensors to write: found none", hint="see --include and --exclude")
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise InputError(
                f"tensor '{entry.name}' of the result", found="two of that name", expected="one"
            )
        seen.add(entry.name)
    groups: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if groups[-1] and size + entry.nbytes > shard_nbytes:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.nbytes
    count = len(groups)
    names = ["model.safetensors"]
    if count > 1:
        names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    return [DataFile(n, encode_header(g), tuple(g)) for n, g in zip(names, groups, strict=True)]


def files_beside(folder: Folder, besides: Iterable[str] = ()) -> list[str]:
    """Files of a checkpoint that are neither weights, index nor config: tokenizer, licence, ...

    Args:
        besides: names that are left out, too.
    Raises:
        NotReadable: one leads outside the checkpoint or nowhere, or is no regular file.
        InputError: one is larger than MAX_BESIDE.
    """
    left_out = {CONFIG, REPORT, *besides}
    found = [
        name
        for name in folder.names()
        if not name.startswith(".")
        and not name.lower().endswith((*_WEIGHTS, ".index.json"))
        and name not in left_out
        and not folder.is_folder(name)
    ]
    for name in found:
        if (nbytes := folder.size(name)) > MAX_BESIDE:
            raise InputError(
                f"{name}: bytes of a file beside the weights", found=nbytes,
                expected=f"<= {MAX_BESIDE}",
            )  # fmt: skip
    return found


def read_beside(folder: Folder, name: str) -> bytes:
    """All bytes of such a file.

    Raises:
        InputError: it leads outside the checkpoint, is no regular file, or is larger than
            MAX_BESIDE.
    """
    return read_small(folder, name, MAX_BESIDE)


def new_json(value: Any) -> bytes:
    """JSON as the files of a checkpoint have it. Names that are no text, which JSON may hold all
    the same, are escaped as they were."""
    return json_text(value, 2) + b"\n"


def json_text(value: Any, indent: int | None = None) -> bytes:
    """JSON in UTF-8; all escaped where something in it cannot be."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent).encode()
