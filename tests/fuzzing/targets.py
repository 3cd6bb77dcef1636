"""One function for each reader: any bytes give a verdict, never an exception."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ntool.lib.checkpoint.config import read_config
from ntool.lib.checkpoint.folder import NotReadable, Readable
from ntool.lib.checkpoint.gguf_header import gguf_header_of
from ntool.lib.checkpoint.index import read_index
from ntool.lib.checkpoint.onnx_header import onnx_header_of
from ntool.lib.checkpoint.safetensors_header import header_of
from ntool.lib.checkpoint.tensor import exit_code
from ntool.lib.errors import InputError
from ntool.lib.inspection import counted_records
from ntool.lib.records import dumps, read

from ..checkpoint.header_files import InMemory
from . import package_targets

T = TypeVar("T")
DATA = Path(__file__).parents[1] / "data"


class MemoryFolder:
    """A `Folder` of bytes."""

    root, local, revision, requests = "/memory", True, None, 0

    def __init__(self, **files: bytes) -> None:
        self.files = files

    def names(self, inside: str = "") -> list[str]:
        return [] if inside else sorted(self.files)

    def exists(self, name: str) -> bool:
        return name in self.files

    def is_folder(self, name: str) -> bool:
        return False

    def size(self, name: str) -> int:
        if name not in self.files:
            raise NotReadable(name, "missing-shard", "no such file")
        return len(self.files[name])

    @contextmanager
    def open(self, name: str, expect: int = 0) -> Iterator[Readable]:
        self.size(name)
        yield InMemory(self.files[name])

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
        return map(function, names)


def _told(problems: list[Any], tensors: Sequence[Any]) -> None:
    """What a verdict promises: problems are one printable line each, tensors are plain numbers."""
    assert exit_code(problems) in (0, 1, 3)
    for p in problems:
        line = dumps(p.record())
        assert ("\n" not in line and line.isprintable()) or not line.isascii()
    for t in tensors:
        dumps(t.record())
        assert t.nbytes >= 0 and all(type(d) is int and d >= 0 for d in t.shape)


def safetensors(raw: bytes) -> None:
    header = header_of(nullcontext(InMemory(raw)), "f.safetensors")
    _told(header.problems, header.tensors)
    for t in header.tensors:
        assert t.offset + t.nbytes <= len(raw) or header.problems


def gguf(raw: bytes) -> None:
    header = gguf_header_of(nullcontext(InMemory(raw)), "f.gguf")
    _told(header.problems, header.tensors)
    dumps({"kind": "x", "metadata": header.metadata})


def onnx(raw: bytes) -> None:
    header = onnx_header_of(MemoryFolder(**{"m.onnx": raw, "w.bin": bytes(64)}), "m.onnx")
    _told(header.problems, header.tensors)


def index(raw: bytes) -> None:
    found = read_index(MemoryFolder(i=raw), "i")
    _told(found.problems, [])
    assert all(type(v) is str for v in found.weight_map.values())


def config(raw: bytes) -> None:
    values, digest, nbytes, problems = read_config(MemoryFolder(c=raw), "c")
    _told(problems, [])
    assert len(digest) == 64 and nbytes == len(raw) and isinstance(values, dict)


def records(raw: bytes) -> None:
    try:
        counted = counted_records(read(raw.decode("utf-8", "replace").splitlines()))
    except InputError as e:
        assert "\n" not in e.message
        return
    _told([], counted.tensors)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "safetensors": safetensors,
    "gguf": gguf,
    "onnx": onnx,
    "index": index,
    "config": config,
    "records": records,
    **package_targets.TARGETS,
}
_CASES = {
    "safetensors": "st-*/*.safetensors",
    "gguf": "gg-*/*.gguf",
    "onnx": "ox-*/**/*.onnx",
    "index": "ix-*/**/*.index.json",
    "config": "*/config.json",
}
_STREAM = (
    b'{"kind":"begin","schema":"ntool/1"}\n'
    b'{"kind":"config","values":{"model_type":"x"},"sha256":"0"}\n'
    b'{"kind":"file","path":"f","nbytes":1,"role":"tensors"}\n'
    b'{"kind":"tensor","name":"a","dtype":"F32","shape":[2,1],"file":"f","offset":8,"nbytes":8}\n'
    b'{"kind":"problem","code":"x","severity":"info","message":"m"}\n'
    b'{"kind":"end","count":4}\n'
)
MOST = 40_000
"""Bytes of a seed: mutations of larger ones seldom reach the header."""


@cache
def _cases(folder: str) -> Path:
    with tarfile.open(DATA / "hostile" / "cases.tar.gz") as archive:
        archive.extractall(folder, filter="fully_trusted")
    return Path(folder) / "cases"


def seeds(target: str, folder: str) -> list[bytes]:
    """Files that mutations start from: the small odd files, sound ones among them.

    Args:
        folder: an empty one, for unpacking.
    """
    if target == "records":
        return [_STREAM]
    if target in package_targets.TARGETS:
        return package_targets.seeds(target)
    found = [p for p in sorted(_cases(folder).glob(_CASES[target])) if p.is_file()]
    raw = [p.read_bytes() for p in found if p.stat().st_size <= MOST]
    assert len(raw) > 4, target
    return raw
