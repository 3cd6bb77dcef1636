"""What this machine offers: versions, providers, memory, disk, caches, as facts with advice."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from ctypes import CDLL
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..version import VERSION

NEEDED = (
    "typer",
    "numpy",
    "ml_dtypes",
    "onnx",
    "safetensors",
    "gguf",
    "huggingface_hub",
    "fsspec",
    "tokenizers",
    "minijinja",
    "pillow",
    "jsonschema",
    "tqdm",
)
RUNTIMES = ("onnxruntime-gpu", "onnxruntime")
"""One of them is needed."""
EXTRAS = {"plot": "matplotlib", "patchgen": "libcst"}
"""Extra of ntool -> what it brings."""
CUDA_LIBRARIES = ("libcuda.so.1", "libcudart.so.12", "libcublas.so.12", "libcudnn.so.9")
"""The driver, and what the CUDA provider of ONNX Runtime loads."""
LITTLE_MEMORY, LITTLE_DISK = 4 << 30, 10 << 30
"""Bytes below which large models meet trouble."""


@dataclass(frozen=True)
class Fact:
    """One thing that is so on this machine.

    Attributes:
        area: `version`, `device`, `memory`, `disk`, `cache` or `hub`.
        value: a number is of bytes, or a count.
        ok: False where something that ntool needs is missing, None where it might be missed.
        hint: what to do about it.
    """

    area: str
    name: str
    value: Any
    ok: bool | None = True
    hint: str | None = None


def facts() -> Iterator[Fact]:
    """Everything, in order; nothing is loaded but ONNX Runtime, no network is used."""
    yield from versions()
    yield from devices()
    yield from room()
    yield from caches()


def versions() -> Iterator[Fact]:
    """ntool, Python, and the packages that ntool uses."""
    yield Fact("version", "ntool", VERSION)
    yield Fact("version", "python", platform.python_version())
    yield Fact(
        "version", "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    )
    for name in NEEDED:
        found = _version(name)
        hint = None if found else f"pip install {name}"
        yield Fact("version", name, found, found is not None, hint)
    there = {name: found for name in RUNTIMES if (found := _version(name))}
    for name, found in there.items():
        yield Fact("version", name, found)
    if not there:
        yield Fact("version", RUNTIMES[0], None, False, f"pip install {RUNTIMES[0]}")
    if len(there) > 1:  # both own the module `onnxruntime`, and the one that came last is loaded
        hint = f"pip uninstall {' '.join(RUNTIMES)}, then install one"
        yield Fact("version", "onnxruntime twice", ", ".join(there), False, hint)
    for extra, name in EXTRAS.items():
        found = _version(name)
        hint = None if found else f"pip install 'ntool[{extra}]', if you want it"
        yield Fact("version", name, found, True if found else None, hint)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def devices() -> Iterator[Fact]:
    """Processors, providers of ONNX Runtime, CUDA devices and libraries."""
    yield Fact("device", "cpu cores", _cores())
    try:
        import onnxruntime as ort
    except ImportError as e:
        yield Fact("device", "providers", None, False, f"onnxruntime cannot be imported: {e}")
        return
    from .runtime.memory import available
    from .runtime.session import cuda_device_count

    names = ort.get_available_providers()
    yield Fact("device", "providers", ", ".join(names))
    count = cuda_device_count()
    built = "CUDAExecutionProvider" in names
    hint = f"pip install {RUNTIMES[0]}" if count and not built else None
    yield Fact("device", "cuda devices", count, None if hint else True, hint)
    for index in range(count):
        yield Fact("device", f"cuda:{index} memory", available(("cuda", index)))
    for library in CUDA_LIBRARIES if count else ():
        there = _loads(library)
        hint = None if there else "pip install 'ntool[cuda]'"
        yield Fact("device", library, "found" if there else None, there or None, hint)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _loads(library: str) -> bool:
    try:
        CDLL(library)
    except OSError:
        return False
    return True


def room() -> Iterator[Fact]:
    """Memory that a run may take, and free disk where ntool writes."""
    from .runtime.memory import available

    memory = available(("cpu", 0))
    low = memory is not None and memory < LITTLE_MEMORY
    hint = "close other programs; float32 weights stay in their files" if low else None
    yield Fact("memory", "available", memory, None if low else True, hint)
    for name, folder in (("here", os.getcwd()), ("temporary", tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free
        low = free < LITTLE_DISK
        yield Fact(
            "disk", f"{name} ({folder})", free, None if low else True, "little" if low else None
        )
    yield Fact("disk", "clones of files", _clones())


def _clones() -> str:
    """Whether `--data reflink` works in the current folder."""
    from .checkpoint.sharing import clone_fault

    with tempfile.NamedTemporaryFile() as source:
        try:
            source.write(b"\0" * (1 << 16))
            source.flush()
            fault = clone_fault(os.path.realpath(source.name), Path.cwd())
        except OSError as e:
            fault = e
    return "yes" if fault is None else f"no: {fault.strerror or fault}"


def caches() -> Iterator[Fact]:
    """The cache of exports, that of the Hub, and how the Hub is reached. No token is shown."""
    from .package.cache import cache_folder

    own = cache_folder()
    yield Fact("cache", f"exports ({own})", _nbytes(own))
    from huggingface_hub import constants, get_token

    yield Fact("cache", f"hub ({constants.HF_HUB_CACHE})", _nbytes(Path(constants.HF_HUB_CACHE)))
    yield Fact("hub", "address", constants.ENDPOINT)
    yield Fact("hub", "token", "there" if get_token() else "none")
    yield Fact("hub", "offline", bool(constants.HF_HUB_OFFLINE))


def _nbytes(folder: Path) -> int:
    """Bytes of the files below a folder, each once; 0 where there is none."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                s = os.lstat(os.path.join(root, name))
            except OSError:
                continue
            if (s.st_dev, s.st_ino) not in seen:
                seen.add((s.st_dev, s.st_ino))
                total += s.st_size
    return total


def version_lines() -> None:
    """Print what `ntool --version --verbose` says: a line for each version."""
    for fact in versions():
        print(f"{fact.name} {fact.value or 'not installed'}")
