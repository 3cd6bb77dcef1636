"""A set of safetensors files: all files of a folder, or those that an index names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

from ..errors import InputError
from .config import read_config
from .folder import NotReadable
from .header import Header
from .index import Index, read_index
from .remote_file import expected_headers
from .safetensors_header import header_of
from .tensor import Checkpoint, Problem, Tensor

_NAMES_SHOWN = 8
_NAME, _NBYTES = attrgetter("name"), attrgetter("nbytes")


def _tensors(names: Sequence[str]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def is_safetensors(name: str) -> bool:
    """Whether a file is called like one."""
    return name.lower().endswith(".safetensors")


class SafetensorsSet:
    """Fills one `Checkpoint`. The methods `file`, `indexed` and `folder_of_files` are the ways in.

    Args:
        checkpoint: what is filled; its folder is read.
        max_header: largest header that is read, bytes.
    """

    def __init__(self, checkpoint: Checkpoint, max_header: int) -> None:
        self.checkpoint = checkpoint
        self._max_header = max_header
        self._homes: dict[str, list[str]] = {}
        self._unsound: set[str] = set()
        self._nameless: set[str] = set()
        # what the index names and no header has shown yet; what is shown in its place is crossed
        # off at once, so that 150,000 names are not held twice
        self._named: dict[str, str] | None = None
        self._orphans: dict[str, list[str]] = {}
        self._expected: dict[str, int] = {}

    def file(self, name: str) -> None:
        """A single file of tensors."""
        self._add(self._header(name))

    def indexed(self, name: str) -> None:
        """An index and the files that it names, no others."""
        checkpoint = self.checkpoint
        index = self._metadata_file(name, read_index)
        if index is not None:
            checkpoint.bytes_read += index.nbytes
            checkpoint.index_hash = index.sha256
            checkpoint.index = {
                "path": name,
                "nbytes": index.nbytes,
                "total_size": index.total_size,
            }
            checkpoint.problems += index.problems
        if index is None or (index.problems and not index.weight_map):
            self.folder_of_files()
            return
        self.config()
        files, self._named = index.files, index.weight_map
        if not checkpoint.folder.local:
            self._expected = expected_headers(index.weight_map)
        missing_files = self._shards(files)
        self._compare(missing_files)
        self._unlisted(files)
        self._total(index)

    def folder_of_files(self) -> None:
        """All `.safetensors` files of a folder, or of the component folders of a package."""
        names = self.checkpoint.folder.names()
        files = list(filter(is_safetensors, names))
        self.config()
        if not files and "package.json" in names:
            self._package(names)
            return
        self._shards(files)
        self._duplicates()

    def _package(self, names: list[str]) -> None:
        """The component folders of a package; keys of tensors become COMPONENT/NAME."""
        folder = self.checkpoint.folder
        for component in names:
            if not folder.is_folder(component):
                continue
            files = list(filter(is_safetensors, folder.names(component)))
            self._shards([f"{component}/{n}" for n in files], component)
            if files:
                self.checkpoint.format = "package"

    def config(self) -> None:
        """`config.json` and `generation_config.json`, where they are."""
        checkpoint = self.checkpoint
        for name in ("config.json", "generation_config.json"):
            if not checkpoint.folder.exists(name):
                continue
            read = self._metadata_file(name, read_config)
            if read is None:
                continue
            values, digest, nbytes, problems = read
            checkpoint.bytes_read += nbytes
            checkpoint.problems += problems
            if name == "config.json":
                checkpoint.config, checkpoint.config_hash = values, digest
            else:
                checkpoint.generation_config = values

    def _metadata_file(self, name: str, read: Any) -> Any:
        """The result of `read(folder, name)`, or None with the reason in `problems`."""
        try:
            return read(self.checkpoint.folder, name)
        except NotReadable as e:
            problem = Problem(e.code, e.reason, file=name, malformed=True)
        except (InputError, OSError) as e:
            text = e.message if isinstance(e, InputError) else e.strerror or str(e)
            text = text.removeprefix(f"{name}: ")
            problem = Problem("unreadable", text, file=name, malformed=True)
        self.checkpoint.problems.append(problem)
        return None

    def _header(self, file: str) -> Header:
        expect = self._expected.get(file, 0)
        return header_of(self.checkpoint.folder.open(file, expect), file, self._max_header)

    def _shards(self, files: Sequence[str], component: str | None = None) -> set[str]:
        """Read files of tensors; the names of those that are not there."""
        missing = set()
        for header in self.checkpoint.folder.each(self._header, files):
            code = header.problems[0].code if header.problems else ""
            if code in ("missing-shard", "path-escape"):
                self.checkpoint.problems += header.problems
                self._nameless.add(header.file)
                if code == "missing-shard":
                    missing.add(header.file)
            else:
                self._add(header, component)
        return missing

    def _add(self, header: Header, component: str | None = None) -> None:
        checkpoint = self.checkpoint
        checkpoint.problems += header.problems
        checkpoint.bytes_read += header.bytes_read
        checkpoint.files[header.file] = header.nbytes
        checkpoint.metadata[header.file] = header.metadata
        self._unsound.update(header.unsound)
        if header.problems and not header.tensors and not header.unsound:
            self._nameless.add(header.file)
        tensors = dict(zip(map(_NAME, header.tensors), header.tensors, strict=True))
        if component is not None:
            tensors = {
                f"{component}/{n}": t._replace(component=component) for n, t in tensors.items()
            }
        for name in [] if checkpoint.tensors.keys().isdisjoint(tensors) else list(tensors):
            if name not in checkpoint.tensors:
                continue
            homes = self._homes.setdefault(name, [checkpoint.tensors[name].file])
            homes.append(header.file)
            if (self._named or {}).get(name) != header.file:
                del tensors[name]
        checkpoint.tensors.update(tensors)
        if self._named is not None:
            self._cross_off(self._named, header.file, tensors)

    def _cross_off(self, named: dict[str, str], file: str, tensors: dict[str, Tensor]) -> None:
        """Take the names of a file's tensors out of what the index names; note those it does not
        name, and keep those that it names elsewhere."""
        places = list(map(named.pop, tensors, repeat(None)))
        if places.count(file) == len(places):
            return
        for name, place in zip(tensors, places, strict=True):
            if place is None:
                self._orphans.setdefault(file, []).append(name)
            elif place != file:
                named[name] = place

    def _duplicates(self) -> None:
        self.checkpoint.doubled = self._homes
        for name, files in self._homes.items():
            message = f"in {len(files)} files: found {' and '.join(files)}, expected one"
            self.checkpoint.problems.append(
                Problem("duplicate-tensor", message, file=files[-1], name=name)
            )

    def _compare(self, missing_files: set[str]) -> None:
        """Index against headers: tensors named and absent, present and not named, elsewhere."""
        checkpoint = self.checkpoint
        tensors, problems = checkpoint.tensors, checkpoint.problems
        self._duplicates()
        for name, file in (self._named or {}).items():
            tensor = tensors.get(name)
            if tensor is not None:
                message = f"the index says {file}, but it is in {tensor.file}"
                problems.append(Problem("misplaced-tensor", message, file=file, name=name))
            elif file in missing_files:
                checkpoint.missing.append(name)
                checkpoint.absent.setdefault(file, []).append(name)
            elif name not in self._unsound and file not in self._nameless:
                checkpoint.missing.append(name)
                message = "named by the index, absent from the header of its file"
                problems.append(Problem("missing-tensor", message, file=file, name=name))
        for file, names in self._orphans.items():
            names.sort()
            checkpoint.orphans += names
            message = f"{_tensors(names)} that the index does not name: {_some(names)}"
            problems.append(Problem("orphan-tensors", message, severity="warning", file=file))

    def _unlisted(self, files: list[str]) -> None:
        """Files that the index does not name: information, they are not shards."""
        listed = set(files)
        for name in self.checkpoint.folder.names():
            if is_safetensors(name) and name not in listed:
                message = "not named by the index, not read"
                self.checkpoint.problems.append(
                    Problem("unlisted-file", message, severity="info", file=name)
                )

    def _total(self, index: Index) -> None:
        checkpoint = self.checkpoint
        broken = any(p.malformed for p in checkpoint.problems)
        if index.total_size is None or checkpoint.missing or broken:
            return
        nbytes = sum(map(_NBYTES, checkpoint.tensors.values()))
        if nbytes != index.total_size:
            message = f"total_size: found {index.total_size}, expected {nbytes} (the headers' sum)"
            name = (checkpoint.index or {}).get("path")
            checkpoint.problems.append(
                Problem("total-size", message, severity="warning", file=name)
            )
