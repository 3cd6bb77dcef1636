"""ONNX Runtime sessions: device choice that is confirmed, and errors that name the node.

onnxruntime is imported when the first session is made, not before.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import EnvironmentProblem, InputError, NtoolError, Unsupported, UsageProblem
from .arrays import Arrays


def cuda_device_count() -> int:
    """CUDA devices that the driver reports; 0 without a driver.

    Asks the driver itself: `onnxruntime.get_available_providers` lists CUDA wherever the wheel was
    built with it, also on machines without a GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def resolve_device(device: str, note: Callable[[str], None]) -> tuple[str, int]:
    """(`cpu` or `cuda`, index) for auto, cpu, cuda or cuda:I; says what `auto` took.

    Raises:
        UsageProblem: another word.
        EnvironmentProblem: CUDA asked for and not there.
    """
    match = re.fullmatch(r"(auto|cpu|cuda)(?::(\d{1,3}))?", device, re.ASCII)
    if not match or (match[2] and match[1] != "cuda"):
        raise UsageProblem("--device", found=device, expected="auto, cpu, cuda or cuda:INDEX")
    kind, index = match[1], int(match[2] or 0)
    if kind == "cpu":
        return "cpu", 0
    count = cuda_device_count()
    if kind == "auto":
        kind = "cuda" if count and _has_provider() else "cpu"
        note(f"device: {kind}")
        return kind, 0
    if index >= count:
        raise EnvironmentProblem(
            f"--device {device}: CUDA devices", found=count, expected=f"at least {index + 1}"
        )
    return kind, index


def _has_provider() -> bool:
    import onnxruntime as ort

    return "CUDAExecutionProvider" in ort.get_available_providers()


class Session:
    """One loaded component.

    Attributes:
        inputs: name -> (ONNX type string, declared shape).
        outputs: names in order.
    """

    def __init__(self, path: Path, device: tuple[str, int] = ("cpu", 0), threads: int = 0) -> None:
        import onnxruntime as ort

        if not path.is_file():
            raise InputError(f"{path}: no such graph")
        self.path = path
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        providers: list[Any] = ["CPUExecutionProvider"]
        if device[0] == "cuda":
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": device[1]}))
        try:
            self._session = ort.InferenceSession(str(path), options, providers=providers)
        except Exception as e:  # onnxruntime raises pybind classes of no common base
            raise explain(e, f"{path}: cannot load") from e
        if device[0] == "cuda" and "CUDAExecutionProvider" not in self._session.get_providers():
            raise EnvironmentProblem(
                f"{path}: session provider",
                found=", ".join(self._session.get_providers()),
                expected="CUDAExecutionProvider",
                hint="pip install 'ntool[cuda]', and compare driver and CUDA versions",
            )
        self.inputs = {i.name: (i.type, i.shape) for i in self._session.get_inputs()}
        self._rules = {name: _rule(*declared) for name, declared in self.inputs.items()}
        self.outputs = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Arrays, outputs: list[str] | None = None) -> Arrays:
        """Run the component; feeds that it does not declare are left out.

        Raises:
            InputError: an input is missing or has another type or shape than declared.
        """
        given = {}
        for name, rule in self._rules.items():
            if name not in feeds:
                raise InputError(f"{self.path}: input '{name}' is missing")
            value = given[name] = feeds[name]
            if not rule.fits(value):
                kind, shape = self.inputs[name]
                raise InputError(
                    f"{self.path}: input '{name}'",
                    found=f"{value.dtype} {list(value.shape)}",
                    expected=f"{kind} {shape}",
                )
        names = outputs or self.outputs
        try:
            return dict(zip(names, self._session.run(names, given), strict=True))
        except Exception as e:
            raise explain(e, f"{self.path}: cannot run") from e


_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(float16)": np.dtype(np.float16),
}


class _Rule(NamedTuple):
    """What an input's declaration asks of an array, ready to be compared: a step of a small picture
    checks some thirty arrays, and spelling their types out took a tenth of its time.

    Attributes:
        dtype: None where any is left to ONNX Runtime.
        fixed: (axis, length) of the dimensions that are numbers.
    """

    dtype: np.dtype[Any] | None
    rank: int
    fixed: tuple[tuple[int, int], ...]

    def fits(self, value: np.ndarray) -> bool:
        shape = value.shape
        if len(shape) != self.rank or (self.dtype is not None and value.dtype != self.dtype):
            return False
        for axis, length in self.fixed:  # noqa: SIM110 (a generator costs more than the rest)
            if shape[axis] != length:
                return False
        return True


def _rule(kind: str, shape: list[Any]) -> _Rule:
    fixed = tuple((axis, d) for axis, d in enumerate(shape) if isinstance(d, int))
    return _Rule(_DTYPES.get(kind), len(shape), fixed)


def explain(error: Exception, what: str) -> NtoolError:
    """An ONNX Runtime failure as the class that says whose problem it is, on one line."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    missing = re.search(
        r"Could not find an implementation for (\S+?)\((\d+)\) node with name '([^']*)'", text
    )
    if kind == "NotImplemented" or missing:
        node = f"{missing[1]}({missing[2]}) at node '{missing[3]}'" if missing else text[:200]
        return EnvironmentProblem(f"{what}: valid model, no kernel here for {node}")
    if "memory" in text.lower() and ("alloc" in text.lower() or "bad_alloc" in text):
        return EnvironmentProblem(f"{what}: not enough memory ({text[:200]})")
    if kind in ("InvalidProtobuf", "InvalidGraph", "NoSuchFile", "InvalidArgument", "Fail"):
        return InputError(f"{what}: {text[:400]}")
    if kind == "EPFail":
        return EnvironmentProblem(f"{what}: {text[:400]}")
    if "opset" in text.lower() and "support" in text.lower():
        return Unsupported(f"{what}: {text[:400]}")
    return InputError(f"{what}: {kind}: {text[:400]}")
