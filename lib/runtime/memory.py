"""Memory that a run takes and memory that is there: bytes of phases, of weights, of the machine.

What a family's activations take is in its own `memory.py`.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import EnvironmentProblem
from ..package.package import Package

F32 = 4
SHORTER = "a smaller --size, fewer pixels or a shorter prompt"
ARENA = 1.4
"""ONNX Runtime's arena grows in steps and holds freed blocks."""
ITEM = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8}


@dataclass(frozen=True)
class Phase:
    """What is in memory together.

    Attributes:
        name: `prefill` or `sampling`.
        weights: bytes of the loaded components, by name.
        activations: bytes of the largest moment of a run, by component.
        cache: bytes of keys and values of all branches.
        other: latents, pixels and noise on the host, bytes.
    """

    name: str
    weights: dict[str, int]
    activations: dict[str, int]
    cache: int
    other: int

    @property
    def peak(self) -> int:
        """Bytes at the largest moment: components run one after the other."""
        largest = max(self.activations.values(), default=0)
        return sum(self.weights.values()) + int(ARENA * largest) + self.cache + self.other


def loaded_nbytes(package: Package, component: str, device: str, repacked: bool) -> int:
    """Bytes of a loaded component. On CPU float32 files stay mapped and cost nothing that counts,
    unless they are `repacked` into memory; 16-bit weights are widened there."""
    entry = package.manifest["components"].get(component, {})
    stored = sum(_size(package.root / f) for f in entry.get("data", []))
    if "data_nbytes" in entry:  # files that hold tensors of others too
        stored = min(stored, entry["data_nbytes"])
    if device != "cpu":
        return stored
    if entry.get("weight_dtype") == "float32":
        return stored if repacked else 0
    return 2 * stored


def check(
    phases: list[Phase],
    device: tuple[str, int],
    *,
    shorter: str = SHORTER,
) -> None:
    """Refuse a run that cannot fit, before anything is loaded.

    Args:
        shorter: what would make the run smaller, for the hint.
    Raises:
        EnvironmentProblem: names the phase, the bytes needed and those that are there.
    """
    there = available(device)
    for phase in phases:
        if there is not None and phase.peak > there:
            raise EnvironmentProblem(
                f"{phase.name}: memory on {device[0]}, bytes",
                found=f"{there:,} available",
                expected=f"about {phase.peak:,}",
                hint=shorter,
            )


def available(device: tuple[str, int]) -> int | None:
    """Bytes that a run may take: available host memory within the container's limit, or the
    device's memory; None where the system does not say."""
    return _device_memory(device[1]) if device[0] == "cuda" else _host_memory()


def _host_memory() -> int | None:
    found = []
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            for line in f:
                if line.startswith("MemAvailable:"):
                    found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        if limit.isdigit():
            found.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def _device_memory(index: int) -> int | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle, total = ctypes.c_int(0), ctypes.c_size_t(0)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), index):
        return None
    if driver.cuDeviceTotalMem_v2(ctypes.byref(total), handle):
        return None
    return total.value


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
