"""A set of safetensors files: all files of a folder, or those that an index names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import Any

from ..errors import InputError
from ..progress import step, tracked
from .config import read_config, whatever_is_there
from .folder import NotReadable
from .header import Header
from .index import NUMBERED, Index, read_index
from .remote_file import expected_headers
from .safetensors_header import header_of
from .tensor import Checkpoint, Problem, Tensor, Unlisted

_NAMES_SHOWN = 8
_NAME, _NBYTES = attrgetter("name"), attrgetter("nbytes")


def _tensors(names: Sequence[Any]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def _kinds(tensors: Iterable[Tensor]) -> Counter[tuple[str, tuple[int, ...]]]:
    """How many tensors there are of each dtype and shape."""
    return Counter((t.dtype, t.shape) for t in tensors)


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
        self._index: Index | None = None
        # what the index names; `_cross_off` takes out what headers have shown, or only notes a file
        # that holds just what it should
        self._weight_map: dict[str, str] | None = None
        self._agreed: set[str] = set()
        self._orphans: dict[str, list[str]] = {}
        self._expected: dict[str, int] = {}

    def file(self, name: str, beside: bool = False) -> None:
        """A single file of tensors.

        Args:
            beside: read `config.json` beside it, too.
        """
        if beside and (self.checkpoint.folder.local or self.checkpoint.folder.names()):
            self._config_beside(name)
        self._add(self._header(name))

    def _config_beside(self, file: str) -> None:
        """The config beside a file that the user named. It need not be that of the file, so a bad
        one is only warned of; of a file that is one of several it says nothing about the whole."""
        checkpoint = self.checkpoint
        before = len(checkpoint.problems)
        self._config("config.json")
        found = checkpoint.problems[before:]
        del checkpoint.problems[before:]
        for p in found:
            severity = "warning" if p.severity == "error" else p.severity
            checkpoint.problems.append(replace(p, severity=severity, malformed=False))
        if any(p.malformed for p in found):
            checkpoint.config_hash = None
        checkpoint.partial = self._is_shard(file)
        if checkpoint.partial:
            checkpoint.config = whatever_is_there(checkpoint.config)

    def _is_shard(self, file: str) -> bool:
        """Whether a file is one of several, by its name or an index beside it on this machine."""
        numbered = NUMBERED.fullmatch(file)
        if numbered:
            return int(numbered["n"]) > 1
        folder = self.checkpoint.folder
        names = folder.names() if folder.local else []
        for name in names:
            if not name.lower().endswith(".safetensors.index.json"):
                continue
            try:
                files = read_index(folder, name).files
            except (InputError, OSError):
                continue  # the user has asked for the file
            if file in files and len(files) > 1:
                return True
        return False

    def indexed(self, name: str) -> None:
        """An index and the files that it names, no others."""
        checkpoint = self.checkpoint
        with step(None, "reading the index", ""):
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
        if index is None or not index.names:
            if index is not None and not any(p.malformed for p in index.problems):
                message = "weight_map: found no entry, expected names of tensors"
                checkpoint.problems.append(Problem("bad-index", message, file=name, malformed=True))
            self.folder_of_files()
            return
        self.config()
        files, self._index = index.files, index
        if not checkpoint.folder.local:
            self._expected = expected_headers(index.by_file)
        missing_files = self._shards(files)
        self._compare(index, missing_files)
        self._beside(files)
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
        for name in ("config.json", "generation_config.json"):
            self._config(name)

    def _config(self, name: str) -> None:
        checkpoint = self.checkpoint
        read = self._metadata_file(name, read_config) if checkpoint.folder.exists(name) else None
        if read is None:
            return
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
        headers = self.checkpoint.folder.each(self._header, files)
        for header in tracked(headers, len(files), "reading headers", "file"):
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
        if header.stamp is not None:
            checkpoint.stamps[header.file] = header.stamp
        checkpoint.metadata[header.file] = header.metadata
        self._unsound.update(header.unsound)
        checkpoint.cut.update(zip(map(_NAME, header.cut), header.cut, strict=True))
        if header.problems and not header.tensors and not header.unsound:
            self._nameless.add(header.file)
        tensors, names = header.tensors, list(map(_NAME, header.tensors))
        if component is not None:
            tensors = [t._replace(component=component) for t in tensors]
            names = [f"{component}/{n}" for n in names]
        # one look-up for each name: what is there of that name already stays
        kept = list(map(checkpoint.tensors.setdefault, names, tensors))
        if kept != tensors:
            names = self._without_doubles(header.file, names, tensors, kept)
        if self._index is not None:
            self._cross_off(self._index, header.file, names)

    def _without_doubles(
        self, file: str, names: list[str], tensors: list[Tensor], kept: list[Tensor]
    ) -> list[str]:
        """Note the names of a file that another file has, too; the names that are this file's.

        Args:
            kept: what stood in the place of each tensor, or the tensor itself.
        """
        checkpoint = self.checkpoint
        mine = []
        for name, tensor, there in zip(names, tensors, kept, strict=True):
            if there is not tensor:
                self._homes.setdefault(name, [there.file]).append(file)
                if self._named.get(name) != file:
                    continue
                checkpoint.tensors[name] = tensor
            mine.append(name)
        return mine

    @property
    def _named(self) -> dict[str, str]:
        """{tensor that the index names: file}; looked into only where something is wrong."""
        if self._weight_map is None:
            self._weight_map = self._index.weight_map if self._index is not None else {}
        return self._weight_map

    def _cross_off(self, index: Index, file: str, names: list[str]) -> None:
        """Take the names of a file's tensors out of what the index names; note those it does not
        name, and keep those that it names elsewhere.

        Files that hold just what the index names there, which is the rule, are noted as a whole:
        two short sorted lists are compared sooner than 150,000 names are looked up.
        """
        if sorted(names) == sorted(index.by_file.get(file, ())):
            self._agreed.add(file)
            return
        named = self._named
        for name, place in zip(names, list(map(named.pop, names, repeat(None))), strict=True):
            if place is None:
                self._orphans.setdefault(file, []).append(name)
            elif place != file:
                named[name] = place

    def _left(self, index: Index) -> Iterator[tuple[str, str]]:
        """What the index names and its file has not shown, with that file."""
        if self._agreed.issuperset(index.by_file):
            return
        for name, file in self._named.items():
            if file not in self._agreed:
                yield name, file

    def _duplicates(self) -> None:
        self.checkpoint.doubled = self._homes
        for name, files in self._homes.items():
            message = f"in {len(files)} files: found {' and '.join(files)}, expected one"
            self.checkpoint.problems.append(
                Problem("duplicate-tensor", message, file=files[-1], name=name)
            )

    def _compare(self, index: Index, missing_files: set[str]) -> None:
        """Index against headers: tensors named and absent, present and not named, elsewhere."""
        checkpoint = self.checkpoint
        tensors, problems = checkpoint.tensors, checkpoint.problems
        self._duplicates()
        for name, file in self._left(index):
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

    def _beside(self, files: list[str]) -> None:
        """Files that the index does not name. They are no shards and are not counted; what they
        hold that the checkpoint lacks is told, where looking costs nothing."""
        folder, listed = self.checkpoint.folder, set(files)
        others = [n for n in folder.names() if is_safetensors(n) and n not in listed]
        for name in others:
            header = self._header(name) if folder.local else None
            severity, text = "info", "not named by the index, not read"
            if header is not None and not header.problems:
                severity, text = self._unnamed(header)
            elif header is not None:
                text += f": {header.problems[0].message}"
            code = "unlisted-file" if severity == "info" else "orphan-file"
            self.checkpoint.problems.append(Problem(code, text, severity=severity, file=name))

    def _unnamed(self, header: Header) -> tuple[str, str]:
        """Note the tensors of a file that the index does not name; (severity, message)."""
        checkpoint = self.checkpoint
        checkpoint.bytes_read += header.bytes_read
        known = checkpoint.tensors.keys() | self._named.keys() | self._unsound
        others = [t for t in header.tensors if t.name not in known]
        checkpoint.unlisted[header.file] = Unlisted(header.nbytes, sorted(map(_NAME, others)))
        text = "not named by the index"
        if not others:
            count = _tensors(header.tensors)
            return "info", f"{text}, which names its {count} elsewhere; not counted"
        if len(others) == len(header.tensors) and _kinds(others) == _kinds(
            checkpoint.tensors.values()
        ):
            return "info", f"{text}: dtypes and shapes are those of all tensors; not counted"
        names = checkpoint.unlisted[header.file].tensors
        return "warning", f"{text}; it holds {_tensors(names)} more, not counted: {_some(names)}"

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
