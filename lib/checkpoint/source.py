"""SOURCE: what the user wrote -> headers, index and config of a checkpoint, payload unread."""

from __future__ import annotations

import os
import re

from .. import demo
from ..errors import SourceNotFound, Unsupported, UsageProblem
from .folder import Folder, LocalFolder
from .gguf_set import GgufSet, begins_like_gguf, is_gguf
from .safetensors_header import MAX_HEADER
from .safetensors_set import SafetensorsSet
from .strict_json import no_collector
from .tensor import Checkpoint, Problem

INDEX = "model.safetensors.index.json"
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[^/]+)?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FILES = (".safetensors", ".json", ".gguf", ".onnx", ".bin", ".jsonl")


def open_checkpoint(
    source: str,
    *,
    revision: str | None = None,
    max_header: int = MAX_HEADER,
    use_index: bool = True,
    full: bool = False,
) -> Checkpoint:
    """Headers of a checkpoint; what is wrong with its files is in `problems`, not raised.

    Args:
        source: a `.safetensors` or `.onnx` file, a `*.index.json`, a GGUF file (of a split set any
            part), a folder of these (also a snapshot in a Hub cache or a package of
            `export-component`), or `demo:shapes`.
        revision: for sources on the Hub.
        max_header: largest header that is read, bytes.
        use_index: False lists the files of the folder and ignores its index.
        full: long values of GGUF metadata whole.
    Raises:
        SourceNotFound: no such path, or nothing in it that is a checkpoint.
        Unsupported: a form of SOURCE or file that is not read.
        UsageProblem: the source is ambiguous, or a record stream.
    """
    folder, file = locate(source, revision)
    checkpoint = Checkpoint(source=source, root=folder.root, folder=folder)
    checkpoint.revision = folder.revision
    with no_collector():
        if file is not None:
            _read_file(checkpoint, file, max_header, full)
        else:
            _read_folder(checkpoint, max_header, use_index, full)
    checkpoint.requests = folder.requests
    return checkpoint


def locate(source: str, revision: str | None = None) -> tuple[Folder, str | None]:
    """The folder that a SOURCE stands for, and the file in it that it names, if it names one.

    Raises:
        SourceNotFound, Unsupported, UsageProblem: as `open_checkpoint`.
    """
    path = _local(source)
    if revision is not None:
        raise UsageProblem(f"{source}: --revision is for sources on the Hub")
    if os.path.isdir(path):
        return LocalFolder(path), None
    root, name = os.path.split(path)
    return LocalFolder(root, named=name), name


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
    if _HUB.fullmatch(source) and not os.path.isdir(owner) and not source.endswith(_FILES):
        raise Unsupported(
            f"{source}: no such local path, and repositories on the Hub are not read yet",
            hint=f"hf download {source.split('@')[0]} --local-dir DIR, then give DIR",
        )
    raise SourceNotFound(f"{source}: no such file or folder")


def _read_file(checkpoint: Checkpoint, file: str, max_header: int, full: bool) -> None:
    """One file: an index, a graph, or a file of tensors."""
    tells = file.lower().endswith((".safetensors", ".json", ".onnx"))
    if file.endswith(".index.json"):
        SafetensorsSet(checkpoint, max_header).indexed(file)
    elif is_gguf(file) or (not tells and begins_like_gguf(checkpoint, file)):
        GgufSet(checkpoint, max_header, full).file(file)
    elif file.lower().endswith(".onnx"):
        from .onnx_set import OnnxSet  # other sources start quicker without it

        OnnxSet(checkpoint).file(file)
    else:
        SafetensorsSet(checkpoint, max_header).file(file)


def _read_folder(checkpoint: Checkpoint, max_header: int, use_index: bool, full: bool) -> None:
    names = checkpoint.folder.names()
    index = _find_index(names, checkpoint.source) if use_index else None
    reader = SafetensorsSet(checkpoint, max_header)
    if index is not None:
        reader.indexed(index)
        return
    files = [n for n in names if n.endswith(".safetensors")]
    ggufs = [n for n in names if is_gguf(n)]
    if ggufs and not _leads(files, names):
        GgufSet(checkpoint, max_header, full).folder_of_files()
        _left_out(checkpoint, files, "a GGUF model")
    elif files or not _read_graphs(checkpoint, reader):
        reader.folder_of_files()
        _left_out(checkpoint, ggufs, "a safetensors checkpoint")
    if not checkpoint.files and not checkpoint.problems:
        raise SourceNotFound(
            f"{checkpoint.source}: no .safetensors, .gguf or .onnx file in this folder"
        )


def _leads(files: list[str], names: list[str]) -> bool:
    """Whether a folder that also has GGUF files is a safetensors checkpoint or package: something
    in it says so. Loose safetensors files beside a GGUF model (an adapter, a golden) do not."""
    marked = "config.json" in names or any(n.startswith("model") for n in files)
    return "package.json" in names or (bool(files) and marked)


def _left_out(checkpoint: Checkpoint, names: list[str], what: str) -> None:
    """Say which files of a folder with two formats are not read."""
    message = f"not read: the folder is read as {what}"
    checkpoint.problems += [Problem("unlisted-file", message, "info", file=n) for n in names]


def _read_graphs(checkpoint: Checkpoint, reader: SafetensorsSet) -> bool:
    """The ONNX graphs of a folder; False without one."""
    from .onnx_set import OnnxSet, graphs_in  # other sources start quicker without it

    graphs = graphs_in(checkpoint.folder)
    if graphs:
        reader.config()
        OnnxSet(checkpoint).folder_of_graphs(graphs)
    return bool(graphs)


def _find_index(names: list[str], source: str) -> str | None:
    """Name of the index among the files of a folder, or None without one."""
    found = [n for n in names if n.endswith(".safetensors.index.json")]
    if INDEX in found:
        return INDEX
    if len(found) > 1:
        text = ", ".join(found)
        raise UsageProblem(f"{source}: several index files", found=text, hint="name one of them")
    return found[0] if found else None
