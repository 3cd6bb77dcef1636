"""SOURCE: what the user wrote -> headers, index and config of a checkpoint, payload unread."""

from __future__ import annotations

import os
import re
from itertools import repeat
from operator import attrgetter
from typing import Any

from .. import demo
from ..errors import InputError, NtoolError, SourceNotFound, Unsupported, UsageProblem
from .config import read_config
from .index import Index, contained, read_index
from .safetensors_header import MAX_HEADER, Header, read_header
from .strict_json import no_collector
from .tensor import Checkpoint, Problem, Tensor

INDEX = "model.safetensors.index.json"
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[^/]+)?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAMES_SHOWN = 8
_NAME, _NBYTES = attrgetter("name"), attrgetter("nbytes")


def open_checkpoint(
    source: str,
    *,
    revision: str | None = None,
    max_header: int = MAX_HEADER,
    use_index: bool = True,
) -> Checkpoint:
    """Headers of a local checkpoint; what is wrong with its files is in `problems`, not raised.

    Args:
        source: a `.safetensors` file, a `*.index.json`, a folder of either (also a snapshot in a
            Hub cache or a package of `export-component`), or `demo:shapes`.
        revision: for sources on the Hub.
        max_header: largest safetensors header that is read, bytes.
        use_index: False lists the files of the folder and ignores its index.
    Raises:
        SourceNotFound: no such path, or nothing in it that is a checkpoint.
        Unsupported: a form of SOURCE or file that is not read.
        UsageProblem: the source is ambiguous, or a record stream.
    """
    path = _local(source)
    if revision is not None:
        raise UsageProblem(f"{source}: --revision is for sources on the Hub")
    reader = _Reader(Checkpoint(source=source, root=path), max_header)
    with no_collector():
        if not os.path.isdir(path):
            reader.file(path)
        elif use_index and (index := _find_index(path, source)):
            reader.indexed(index)
        else:
            reader.folder()
    return reader.checkpoint


def _local(source: str) -> str:
    """The absolute path that a SOURCE stands for."""
    if source == "-":
        raise UsageProblem("'-': a record stream is not a checkpoint", hint="ntool census -")
    if "\0" in source or not source:
        raise SourceNotFound(f"'{source}': not a path")
    if source.startswith("demo:"):
        try:
            return demo.path(source.removeprefix("demo:"))
        except KeyError:
            known = ", ".join(f"demo:{name}" for name in demo.NAMES)
            raise SourceNotFound(source, expected=known) from None
    if os.path.lexists(source):
        return os.path.abspath(source)
    if _SCHEME.match(source):
        raise Unsupported(
            f"{source}: remote sources are not read yet",
            hint="download it first: hf download OWNER/NAME",
        )
    owner = source.split("/")[0]
    if _HUB.fullmatch(source) and not os.path.isdir(owner) and not _names_a_file(source):
        raise Unsupported(
            f"{source}: no such local path, and repositories on the Hub are not read yet",
            hint=f"hf download {source.split('@')[0]} --local-dir DIR, then give DIR",
        )
    raise SourceNotFound(f"{source}: no such file or folder")


def _names_a_file(source: str) -> bool:
    return source.endswith((".safetensors", ".json", ".gguf", ".onnx", ".bin", ".jsonl"))


def _refuse_other_formats(path: str, source: str) -> None:
    """GGUF and ONNX inputs are well formed, but have no reader yet."""
    for ending, name in ((".gguf", "GGUF"), (".onnx", "ONNX")):
        if path.lower().endswith(ending):
            raise Unsupported(
                f"{source}: {name} files are not read yet",
                expected="a .safetensors file, a *.index.json or a folder of them",
            )


def _find_index(folder: str, source: str) -> str | None:
    """Path of the index of a folder, or None without one."""
    found = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors.index.json"))
    if INDEX in found:
        return os.path.join(folder, INDEX)
    if len(found) > 1:
        names = ", ".join(found)
        raise UsageProblem(f"{source}: several index files", found=names, hint="name one of them")
    return os.path.join(folder, found[0]) if found else None


class _Reader:
    """Fills one `Checkpoint`. The methods `file`, `indexed` and `folder` are the three ways in."""

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

    def file(self, path: str) -> None:
        """A single file: an index, or a file of tensors. A link that the user names is followed."""
        if path.endswith(".index.json"):
            self.indexed(path)
            return
        _refuse_other_formats(path, self.checkpoint.source)
        self.checkpoint.root, name = os.path.split(path)
        self._add(read_header(os.path.realpath(path), name, self._max_header))

    def indexed(self, path: str) -> None:
        """An index and the files that it names, no others."""
        checkpoint = self.checkpoint
        root, name = os.path.split(path)
        checkpoint.root = root
        index = self._metadata_file(name, lambda real: read_index(real, name))
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
            self.folder()
            return
        self._config()
        files, self._named = index.files, index.weight_map
        missing_files = {file for file in files if not self._shard(file)}
        self._compare(missing_files)
        self._unlisted(files)
        self._total(index)

    def folder(self) -> None:
        """All `.safetensors` files of a folder, or of the component folders of a package."""
        checkpoint = self.checkpoint
        names = sorted(os.listdir(checkpoint.root))
        files = [n for n in names if n.endswith(".safetensors")]
        self._config()
        if not files and "package.json" in names and self._package(names):
            return
        for file in files:
            self._shard(file)
        if not files and not checkpoint.problems:
            for name in names:
                _refuse_other_formats(name, os.path.join(checkpoint.source, name))
            raise SourceNotFound(f"{checkpoint.source}: no .safetensors file in this folder")
        self._duplicates()

    def _package(self, names: list[str]) -> bool:
        """The component folders of a package; keys of tensors become COMPONENT/NAME."""
        root, found = self.checkpoint.root, False
        for component in names:
            folder = os.path.join(root, component)
            real, problem = contained(root, component)
            if not os.path.isdir(folder) or problem:
                continue
            for file in sorted(os.listdir(real)):
                if file.endswith(".safetensors"):
                    found = True
                    self._shard(f"{component}/{file}", component)
        if found:
            self.checkpoint.format = "package"
        return found

    def _config(self) -> None:
        """`config.json` and `generation_config.json`, where they are."""
        checkpoint = self.checkpoint
        for name in ("config.json", "generation_config.json"):
            if not os.path.lexists(os.path.join(checkpoint.root, name)):
                continue
            read = self._metadata_file(name, lambda real, name=name: read_config(real, name))
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
        """The result of `read(real path)`, or None with the reason in `problems`."""
        real, problem = contained(self.checkpoint.root, name)
        if problem is None:
            try:
                return read(real)
            except (InputError, OSError) as e:
                text = e.message if isinstance(e, NtoolError) else e.strerror or str(e)
                text = text.removeprefix(f"{name}: ")
                problem = Problem("unreadable", text, file=name, malformed=True)
        self.checkpoint.problems.append(problem)
        return None

    def _shard(self, file: str, component: str | None = None) -> bool:
        """Read one file of tensors; False if it is not there."""
        real, problem = contained(self.checkpoint.root, file)
        if problem is not None:
            self.checkpoint.problems.append(problem)
            self._nameless.add(file)
            return problem.code != "missing-shard"
        self._add(read_header(real, file, self._max_header), component)
        return True

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
            shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
            message = f"{len(names)} tensors that the index does not name: {shown}"
            problems.append(Problem("orphan-tensors", message, severity="warning", file=file))

    def _unlisted(self, files: list[str]) -> None:
        """Files that the index does not name: information, they are not shards."""
        listed = set(files)
        for name in sorted(os.listdir(self.checkpoint.root)):
            if name.endswith(".safetensors") and name not in listed:
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
