"""Nanoseconds an element of the FP8 kernels, beside a NumPy copy of what they write.

A matrix of 4096 x 4096 in memory, bands of 256 rows, the best of several runs. With two threads
each has half of the rows, and the figure is wall time over all elements. It is a program of its
own, `python -m bench.fp8_kernels RUNS`: the process that measures others must not load NumPy. It
prints a JSON object for each kernel: its name (`part`), nanoseconds with `one` and `two` threads
and of the `copy`, and the `limit` of the first where there is one.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from ntool.lib.numeric.blocks import Blocks
from ntool.lib.numeric.convert import f32_to_bf16
from ntool.lib.numeric.dequantize import Dequantized, Dequantizer
from ntool.lib.numeric.quantize import Quantized, Quantizer

SIDE, BAND = 4096, 256
LIMIT = 4.0
"""Nanoseconds an element of quantising."""
Kernel = Callable[[int, int], None]
"""Does the rows from the first to before the second."""


def _best(runs: int, work: Callable[[], None]) -> float:
    """Nanoseconds an element of the fastest of some runs, after one that does not count."""
    work()
    least = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - started)
    return least / SIDE**2 * 1e9


def _halves(kernel: Kernel) -> None:
    half = SIDE // 2
    threads = [threading.Thread(target=kernel, args=(i * half, (i + 1) * half)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _dequantizing(to: str, block: tuple[int, int], out: np.ndarray) -> Kernel:
    rng = np.random.default_rng(0)
    blocks = Blocks(1, SIDE, SIDE, block)
    scales = rng.random(blocks.grid, np.float32) * np.float32(1e-3) + np.float32(1e-4)
    codes = rng.normal(0, 25, (SIDE, SIDE)).clip(-126, 126).astype(np.int8).view(np.uint8)

    def kernel(first: int, end: int) -> None:
        dequantizer = Dequantizer(scales, blocks, to, met=Dequantized())
        for row in range(first, end, BAND):
            dequantizer.rows(codes[row : row + BAND], row, out[row : row + BAND])

    return kernel


def _quantizing(dtype: str, out: np.ndarray) -> Kernel:
    values = np.random.default_rng(0).normal(0, 0.02, (SIDE, SIDE)).astype(np.float32)
    stored = {"F32": values, "F16": values.astype(np.float16), "BF16": f32_to_bf16(values)}[dtype]

    def kernel(first: int, end: int) -> None:
        quantizer = Quantizer(Blocks(1, SIDE, SIDE, (128, 128)), dtype, met=Quantized())
        for row in range(first, end, BAND):
            quantizer.rows(stored[row : row + BAND], row, out=out[row : row + BAND])

    return kernel


def kernels(runs: int) -> Iterator[dict[str, object]]:
    """What is known of each type and block."""
    whole, single = (SIDE, SIDE), (128, 128)
    plans: list[tuple[str, str, Callable[[np.ndarray], Kernel], float | None]] = []
    for to, item in (("BF16", "<u2"), ("F16", "<f2"), ("F32", "<f4")):
        for name, block in (("blocks", single), ("one scale", whole), ("rows", (1, SIDE))):
            make = partial(_dequantizing, to, block)
            plans.append((f"F8_E4M3 to {to} in {name}", item, make, None))
    for dtype in ("BF16", "F32", "F16"):
        plans.append((f"{dtype} to F8_E4M3 in blocks", "u1", partial(_quantizing, dtype), LIMIT))
    for name, item, making, limit in plans:
        out, source = np.empty((SIDE, SIDE), item), np.ones((SIDE, SIDE), item)
        kernel = making(out)
        yield {
            "part": name,
            "copy": _best(runs, partial(np.copyto, out, source)),
            "one": _best(runs, partial(kernel, 0, SIDE)),
            "two": _best(runs, partial(_halves, kernel)),
            "limit": limit,
        }


if __name__ == "__main__":
    for found in kernels(int(sys.argv[1])):
        print(json.dumps(found), flush=True)
