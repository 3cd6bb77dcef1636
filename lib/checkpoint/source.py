"""SOURCE: what the user wrote -> headers, index and config of a checkpoint, payload unread."""

from __future__ import annotations

import os
import re

from .. import demo
from ..errors import SourceNotFound, Unsupported, UsageProblem, without_secrets
from ..suggestions import did_you_mean, near_path
from . import hub_address
from .folder import Folder, LocalFolder
from .gguf_files import begins_like_gguf, is_gguf
from .safetensors_header import MAX_HEADER
from .safetensors_set import SafetensorsSet, is_safetensors
from .strict_json import no_collector
from .tensor import Checkpoint, Problem

INDEX = "model.safetensors.index.json"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FILES = (".safetensors", ".json", ".gguf", ".onnx", ".bin", ".jsonl")


def open_checkpoint(
    source: str,
    *,
    revision: str | None = None,
    max_header: int = MAX_HEADER,
    use_index: bool = True,
    full: bool = False,
    local: bool = False,
    beside: bool = False,
) -> Checkpoint:
    """Headers of a checkpoint; what is wrong with its files is in `problems`, not raised.

    Args:
        source: a `.safetensors` or `.onnx` file, a `*.index.json`, a GGUF file (of a split set any
            part), a folder of these (also a snapshot in a Hub cache or a package of
            `export-component`), `demo:shapes`, a repository on the Hub (`OWNER/NAME[@REV]`,
            `hf://OWNER/NAME[@REV][/FILE]`), or another address.
        revision: for sources on the Hub.
        max_header: largest header that is read, bytes.
        use_index: False lists the files of the folder and ignores its index.
        full: long values of GGUF metadata whole.
        local: the caller needs more than headers, from this machine.
        beside: of a single safetensors file read `config.json` beside it, to judge it by.
    Raises:
        SourceNotFound: no such path or repository, or nothing in it that is a checkpoint.
        Unsupported: a form of SOURCE or file that is not read.
        UsageProblem: the source is ambiguous, or a record stream.
        EnvironmentProblem: a remote source cannot be reached or read.
    """
    folder, file = locate(source, revision, local=local)
    shown = source if folder.local else without_secrets(source)
    checkpoint = Checkpoint(source=shown, root=folder.root, folder=folder)
    checkpoint.revision = folder.revision
    checkpoint.requested_revision = revision or _asked(source)
    with no_collector():
        if file is not None:
            _read_file(checkpoint, file, max_header, full, beside)
        else:
            _read_folder(checkpoint, max_header, use_index, full)
    checkpoint.requests = folder.requests
    if not folder.local:
        checkpoint.bytes_read = folder.bytes_read
    return checkpoint


def locate(
    source: str, revision: str | None = None, *, local: bool = False
) -> tuple[Folder, str | None]:
    """The folder that a SOURCE stands for, and the file in it that it names, if it names one.

    Args:
        local: refuse what is not on this machine.
    Raises:
        SourceNotFound, Unsupported, UsageProblem, EnvironmentProblem: as `open_checkpoint`.
    """
    path = _local(source)
    if path is None:
        return _remote(source, revision, local)
    if revision is not None:
        raise UsageProblem(f"{source}: --revision is for sources on the Hub")
    if os.path.isdir(path):
        return LocalFolder(path), None
    root, name = os.path.split(path)
    return LocalFolder(root, named=name), name


def local_wins(source: str) -> str | None:
    """What to tell a user whose SOURCE is a local path and may have been meant for the Hub."""
    named = _on_hub(source)
    if named is None or not os.path.lexists(source):
        return None
    return f"{source}: reading the local path; the repository on the Hub is hf://{source}"


def _asked(source: str) -> str | None:
    """The revision in a SOURCE on the Hub; None of another, or where it names none."""
    scheme = _SCHEME.match(source)
    if _local(source) is not None or (scheme and scheme[1].lower() != "hf"):
        return None
    named = hub_address.long(source) if scheme else hub_address.short(source)
    return named.revision if named else None


def _on_hub(source: str) -> hub_address.Address | None:
    """The repository that OWNER/NAME[@REV] may stand for; not where it ends as files do."""
    return None if source.lower().endswith(_FILES) else hub_address.short(source)


def _local(source: str) -> str | None:
    """The absolute path that a SOURCE stands for, or None of one that is elsewhere."""
    if source == "-":
        raise UsageProblem("'-': a record stream is not a checkpoint", hint="ntool census -")
    if "\0" in source or not source:
        raise SourceNotFound(f"'{source}': not a path")
    if source.startswith("demo:"):
        try:
            return demo.path(source.removeprefix("demo:"))
        except KeyError:
            known = [f"demo:{name}" for name in demo.NAMES]
            hint = did_you_mean(source, known)
            raise SourceNotFound(source, expected=", ".join(known), hint=hint) from None
    if os.path.lexists(source):
        return os.path.abspath(source)
    scheme = _SCHEME.match(source)
    if scheme and scheme[1].lower() in ("file", "local"):
        from urllib.parse import unquote  # 2 ms

        # not through fsspec, whose open() hangs at a pipe and follows any link
        path = "/" + unquote(source[scheme.end() :]).removeprefix("localhost").lstrip("/")
        if not os.path.lexists(path):
            raise SourceNotFound(f"{source}: no such file or folder")
        return path
    if scheme:
        return None
    if _on_hub(source) is not None:
        owner = source.split("/")[0]
        if not os.path.isdir(owner):
            return None
        raise SourceNotFound(
            f"{source}: no such file or folder in '{owner}'",
            hint=near_path(source) or f"for the repository on the Hub: hf://{source}",
        )
    raise SourceNotFound(f"{source}: no such file or folder", hint=near_path(source))


def _remote(source: str, revision: str | None, local: bool) -> tuple[Folder, str | None]:
    """What an address or OWNER/NAME stands for. Modules of the network are loaded here."""
    scheme = _SCHEME.match(source)
    name = scheme[1].lower() if scheme else "hf"
    if name == "hf":
        named = hub_address.long(source) if scheme else hub_address.short(source)
        assert named is not None
        address = hub_address.with_revision(source, named, revision)
        from .hub import open_hub

        return open_hub(address, source, local=local)
    if revision is not None:
        raise UsageProblem(f"{source}: --revision is for sources on the Hub")
    if local:
        raise Unsupported(
            f"{source}: this command reads no remote source; inspect-headers, census, convert-fp8, "
            "convert-experts and export-component do",
            hint="download it first",
        )
    if name in ("http", "https"):
        from .http_folder import open_http

        return open_http(source)
    from .remote_folder import open_remote

    return open_remote(source)


def _read_file(
    checkpoint: Checkpoint, file: str, max_header: int, full: bool, beside: bool
) -> None:
    """One file: an index, a graph, or a file of tensors."""
    tells = file.lower().endswith((".safetensors", ".json", ".onnx"))
    if file.lower().endswith(".index.json"):
        SafetensorsSet(checkpoint, max_header).indexed(file)
    elif is_gguf(file) or (not tells and begins_like_gguf(checkpoint, file)):
        from .gguf_set import GgufSet  # other sources start quicker without it

        GgufSet(checkpoint, max_header, full).file(file)
    elif file.lower().endswith(".onnx"):
        from .onnx_set import OnnxSet  # other sources start quicker without it

        OnnxSet(checkpoint).file(file)
    else:
        SafetensorsSet(checkpoint, max_header).file(file, beside)


def _read_folder(checkpoint: Checkpoint, max_header: int, use_index: bool, full: bool) -> None:
    names = checkpoint.folder.names()
    index = _find_index(names, checkpoint.source) if use_index else None
    reader = SafetensorsSet(checkpoint, max_header)
    files = list(filter(is_safetensors, names))
    ggufs = list(filter(is_gguf, names))
    graphs = [n for n in names if n.lower().endswith(".onnx") and not n.startswith(".")]
    if index is not None:
        reader.indexed(index)
        _left_out(checkpoint, [*ggufs, *graphs], "a safetensors checkpoint")
    elif ggufs and not _leads(files, names):
        from .gguf_set import GgufSet  # other sources start quicker without it

        GgufSet(checkpoint, max_header, full).folder_of_files()
        _left_out(checkpoint, [*files, *graphs], "a GGUF model")
    elif files or not _read_graphs(checkpoint, reader):
        reader.folder_of_files()
        _left_out(checkpoint, [*ggufs, *graphs], "a safetensors checkpoint")
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
    found = [n for n in names if n.lower().endswith(".safetensors.index.json")]
    if INDEX in found:
        return INDEX
    if len(found) > 1:
        text = ", ".join(found)
        raise UsageProblem(f"{source}: several index files", found=text, hint="name one of them")
    return found[0] if found else None
