"""How much memory a run needs, from sizes alone, and whether it is there.

S tokens of a prompt, L tokens of a picture, H query heads, KV key heads of hd, D hidden size.
The estimates count what is large: weights, attention scores, rows of the widest layer, the cache.
Measured on the demonstration checkpoint on CPU they are 0.8 to 1.1 times the real growth of a
process for pictures of 512x512 to 2048x2048, and 1.2 to 1.7 times for prompts of 1,000 to 6,000
tokens.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import EnvironmentProblem
from ...package.package import Package

F32 = 4
ARENA = 1.4
"""ONNX Runtime's arena grows in steps and holds freed blocks."""
ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}


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


class Sizes:
    """Sizes of a package that the estimates need."""

    def __init__(self, package: Package, low_memory: bool, device: str) -> None:
        self._package, self._low_memory, self._device = package, low_memory, device
        s: dict[str, Any] = package.manifest["sizes"]
        self.D, self.H, self.KV, self.hd = s["D"], s["H"], s["KV"], s["hd"]
        self.Nl, self.I, self.V = s["Nl"], s["I"], package.manifest["vocab_size"]
        self.vh, self.head_width = s["vh"], s["head_width"]
        self.F: int = package.manifest["workflow"]["positions"]["token_pixels"]

    def weights(self, component: str) -> int:
        """Bytes of a loaded component. On CPU float32 matrices are repacked into memory, 16-bit
        ones widened; with `low_memory` float32 files stay mapped and cost nothing that counts."""
        entry = self._package.manifest["components"].get(component, {})
        stored = sum(_size(self._package.root / f) for f in entry.get("data", []))
        if self._device != "cpu":
            return stored
        if entry.get("weight_dtype") == "float32":
            return 0 if self._low_memory else stored
        return 2 * stored

    def cache(self, tokens: int) -> int:
        """Bytes of keys and values of one branch."""
        dtype = (
            self._package.manifest["cache"][0]["dtype"] if self._package.manifest["cache"] else ""
        )
        return 2 * self.Nl * self.KV * self.hd * tokens * ITEM.get(dtype, F32)

    def layer(self, rows: int, columns: int, *, mask: bool) -> int:
        """Bytes of a backbone layer's largest moment: the scores and their softmax, or the rows of
        the MLP; a mask once more."""
        scores = 2 * self.H * rows * columns * F32 + (2 * rows * columns * F32 if mask else 0)
        return max(scores, 3 * rows * self.I * F32) + 6 * rows * self.D * F32

    def prefill(self, tokens: int, kept: int, picture_tokens: int) -> Phase:
        """A prompt of S tokens, of which `picture_tokens` are pictures'."""
        patches = 4 * picture_tokens
        names = ["embedding", "decoder"] + (["vision_encoder"] if picture_tokens else [])
        return Phase(
            "prefill",
            {n: self.weights(n) for n in names},
            {
                "decoder": self.layer(tokens, tokens, mask=True) + kept * self.V * F32,
                "vision_encoder": 4 * patches * self.vh * F32 if picture_tokens else 0,
            },
            2 * self.cache(tokens),
            patches * 768 * F32 * 2,
        )

    def sampling(self, width: int, height: int, tokens: list[int]) -> Phase:
        """A picture over the prefixes of its branches (their token counts)."""
        L = (width // self.F) * (height // self.F)
        picture = 3 * width * height * F32
        head = 9 * self.D * L * F32 * 2 + self.head_width * 4 * L * F32
        longest = max(tokens, default=0)
        names = ("image_gen_embedding", "image_gen_denoiser")
        return Phase(
            "sampling",
            {n: self.weights(n) for n in names},
            {
                "image_gen_embedding": 2 * picture + 16 * L * self.vh * F32,
                "image_gen_denoiser": max(self.layer(L, longest + L, mask=False), head)
                + self.cache(longest + L) // max(self.Nl, 1),
            },
            sum(self.cache(t) for t in tokens),
            (5 + len(tokens)) * picture,
        )


def rows(phases: list[Phase]) -> list[dict[str, Any]]:
    """Fields of the `memory` records of --plan, one a component and phase; bytes."""
    found = []
    for phase in phases:
        for name in phase.weights:
            found.append(
                {
                    "phase": phase.name,
                    "component": name,
                    "weights": phase.weights[name],
                    "activations": phase.activations.get(name, 0),
                }
            )
        for name, nbytes in (("cache", phase.cache), ("host arrays", phase.other)):
            found.append(
                {"phase": phase.name, "component": name, "weights": 0, "activations": nbytes}
            )
    return found


def check(phases: list[Phase], device: tuple[str, int], *, low_memory: bool) -> None:
    """Refuse a run that cannot fit, before anything is loaded.

    Raises:
        EnvironmentProblem: names the phase, the bytes needed and those that are there.
    """
    there = available(device)
    for phase in phases:
        if there is not None and phase.peak > there:
            hint = "a smaller --size, fewer pixels or a shorter prompt"
            without = phase.peak - sum(phase.weights.values())
            if not low_memory and device[0] == "cpu" and without <= there:
                hint = "--low-memory keeps the weights on disk"
            raise EnvironmentProblem(
                f"{phase.name}: memory on {device[0]}, bytes",
                found=f"{there:,} available",
                expected=f"about {phase.peak:,}",
                hint=hint,
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
