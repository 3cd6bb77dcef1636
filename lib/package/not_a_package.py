"""What a path is that was given as a package and is none, and which command takes it."""

from __future__ import annotations

import os
import shlex

from ..checkpoint.sniff import what_is
from ..errors import SourceNotFound
from ..suggestions import near_path
from . import layout

BYTES = 512
CONFIG = "config.json"
_REMOTE = ("demo:", "hf://", "http://", "https://", "s3://", "gs://")


def no_such(path: str) -> SourceNotFound:
    """The error for a path that is not there: a neighbour of nearly that name, or the command that
    reads what is elsewhere."""
    hint = _export(path) if path.startswith(_REMOTE) else near_path(path)
    return SourceNotFound(f"{path}: no such file or folder", hint=hint)


def refuse_part(path: str) -> None:
    """Refuse a file or folder of a package where the package itself is wanted.

    Raises:
        SourceNotFound: names the package.
    """
    if not os.path.exists(path):
        return
    is_file = os.path.isfile(path)
    if not is_file and os.path.isfile(os.path.join(path, CONFIG)):
        return  # a checkpoint, wherever it lies
    package = package_around(os.path.dirname(path) or "." if is_file else f"{path}/{os.pardir}")
    if package is not None:
        raise SourceNotFound(
            f"{path}: no package here",
            found=f"a {'file' if is_file else 'folder'} of a package",
            hint=f"give the package itself: {shlex.quote(package)}",
        )


def no_graph(path: str) -> SourceNotFound:
    """The error for a file that is no graph."""
    what, hint = _file(path)
    return SourceNotFound(
        f"{path}: no package here", found=what, expected="a folder or a .onnx file", hint=hint
    )


def no_graphs(path: str) -> SourceNotFound:
    """The error for a folder without package.json and without graphs."""
    text = f"{path}: no package here ({layout.MANIFEST} and *.onnx are missing)"
    what, hint = _folder(path)
    return SourceNotFound(text, found=what, hint=hint)


def _file(path: str) -> tuple[str | None, str | None]:
    folder = os.path.dirname(path) or "."
    package = package_around(folder)
    if package is not None:
        return "a file of a package", f"give the package itself: {shlex.quote(package)}"
    quoted, name = shlex.quote(path), os.path.basename(path)
    what = what_is(_first(path))
    if what == "a PNG picture":
        return what, f"ntool verify-package PKG --golden {quoted} draws it again and compares"
    if what == "a GGUF file":
        return what, f"ntool inspect-headers {quoted}"
    if name == CONFIG or name.endswith((".safetensors", ".index.json")):
        if os.path.isfile(os.path.join(folder, CONFIG)):
            return "a file of a checkpoint", _export(folder)
        if name.endswith(".safetensors"):
            return "a safetensors file", f"ntool inspect-headers {quoted}"
    return what, None


def _folder(path: str) -> tuple[str | None, str | None]:
    try:
        names = os.listdir(path)
    except OSError:
        return None, None
    if any(n.lower().endswith(".safetensors") for n in names):
        if CONFIG in names:
            return "a checkpoint", _export(path)
        return "safetensors files", f"ntool inspect-headers {shlex.quote(path)}"
    if any(n.lower().endswith(".gguf") for n in names):
        return "a GGUF model", f"ntool inspect-headers {shlex.quote(path)}"
    package = package_around(os.path.join(path, os.pardir))
    if package is not None:
        return "a folder of a package", f"give the package itself: {shlex.quote(package)}"
    return None, f"{_export('SOURCE')} makes one of a checkpoint"


def package_around(folder: str) -> str | None:
    """The package that a folder is, or is a component of."""
    for place in (folder, os.path.join(folder, os.pardir)):
        if os.path.isfile(os.path.join(place, layout.MANIFEST)):
            return os.path.normpath(place)
    return None


def _first(path: str) -> bytes:
    """The first bytes of a regular file; none of anything else."""
    if not os.path.isfile(path):
        return b""
    try:
        with open(path, "rb") as f:
            return f.read(BYTES)
    except OSError:
        return b""


def _export(given: str) -> str:
    """What makes a package of a checkpoint, for who names the checkpoint."""
    source = given if given == "SOURCE" else shlex.quote(given)
    return f"ntool export-component {source} -o PKG"
