"""ONNX Runtime sessions: device choice that is confirmed, and errors that name the node.

onnxruntime is imported when the first session is made, not before.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..errors import EnvironmentProblem, InputError, NtoolError, Unsupported, UsageProblem
from ..progress import step
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


@dataclass(frozen=True)
class Settings:
    """How sessions are made.

    Attributes:
        device: (`cpu` or `cuda`, index).
        threads: CPU threads of an operator; 0 takes all cores.
        low_memory: float32 weights stay memory-mapped in the package's files however often they are
            used (`Sessions` says when they else would not).
        placed: the session remembers which provider runs which node, see `Session.placement`.
        note: told what a user may want to know.
    """

    device: tuple[str, int] = ("cpu", 0)
    threads: int = 0
    low_memory: bool = False
    placed: bool = False
    note: Callable[[str], None] = lambda text: None


DEFAULT = Settings()


class Session:
    """One loaded component.

    Attributes:
        inputs: name -> (ONNX type string, declared shape).
        outputs: names in order. output_types: name -> ONNX type string.
    """

    def __init__(
        self,
        model: Path | bytes,
        settings: Settings = DEFAULT,
        *,
        name: str | None = None,
        repack: bool = False,
    ) -> None:
        """Load a graph from its file, or from the bytes of one without external data.

        Args:
            name: how messages call it, for a graph of bytes.
            repack: rearrange float32 weights into memory; else they stay in their mapped files.
        """
        import onnxruntime as ort

        path = model if isinstance(model, Path) else Path(name or "graph")
        if isinstance(model, Path) and not path.is_file():
            raise InputError(f"{path}: no such graph")
        self.path = path
        options = ort.SessionOptions()
        # only what ends the process: errors are raised, and their log lines would be said twice
        options.log_severity_level = 4
        options.intra_op_num_threads = settings.threads
        if not repack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if settings.placed:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        device = settings.device
        providers: list[Any] = ["CPUExecutionProvider"]
        if device[0] == "cuda":
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": device[1]}))
        try:
            if isinstance(model, Path):
                with step(None, f"loading {path.parent.name}", ""):
                    self._session = ort.InferenceSession(str(model), options, providers=providers)
            else:
                self._session = ort.InferenceSession(model, options, providers=providers)
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
        self.output_types = {o.name: o.type for o in self._session.get_outputs()}
        self.outputs = list(self.output_types)
        self._narrow = "tensor(bfloat16)" in self.output_types.values()
        self._device, self._placed = device, settings.placed

    @property
    def on_host(self) -> bool:
        """Whether outputs that are kept lie in host memory."""
        return self._device[0] == "cpu"

    def placement(self) -> dict[str, Counter[str]] | None:
        """{provider: {operator: nodes}} of the main graph as it runs, after optimisation.

        None for a session made without `placed`, or where this ONNX Runtime does not tell.
        """
        ask = getattr(self._session, "get_provider_graph_assignment_info", None)
        if ask is None or not self._placed:
            return None
        found: dict[str, Counter[str]] = {}
        for subgraph in ask():
            nodes = (n.op_type for n in subgraph.get_nodes())
            found.setdefault(subgraph.ep_name, Counter()).update(nodes)
        return found

    def load(self, feeds: Arrays) -> dict[str, Any]:
        """Inputs that many runs share, checked and put on the device once, as OrtValues."""
        return {k: self._value(k, v) for k, v in feeds.items() if k in self._rules}

    def room(self, name: str, shape: Sequence[int], *, on_host: bool = False) -> Room:
        """Memory for an output, in its type, its contents arbitrary.

        Args:
            on_host: in host memory, whatever the device is.
        """
        import onnxruntime as ort

        dtype = _DTYPES[self.output_types[name]]
        if not on_host and not self.on_host:
            element = ONNX_BF16 if dtype == BF16 else dtype.type
            device = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), element, *self._device)
            return Room(device, None)
        array = np.empty(shape, dtype)
        return Room(_host_value(array), array)

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Room]) -> Bound:
        """The component with its inputs and outputs bound, for a loop that runs it many times.

        Args:
            feeds: every input declared: arrays or OrtValues; others are left out.
            outputs: what `room` gave, which each run writes over; other outputs of the component
                are not computed.
        Raises:
            InputError: an input is missing or has another type or shape than declared.
        """
        bound = Bound(self, self._session)
        self._all_there(feeds)
        for name in self._rules:
            bound.feed(name, feeds[name])
        for name, room in outputs.items():
            bound.give(name, room)
        return bound

    def _all_there(self, feeds: Mapping[str, Any]) -> None:
        missing = self._rules.keys() - feeds.keys()
        if missing:
            raise InputError(f"{self.path}: input '{min(missing)}' is missing")

    def run(
        self,
        feeds: Mapping[str, Any],
        outputs: list[str] | None = None,
        *,
        keep: bool | Collection[str] = False,
    ) -> dict[str, Any]:
        """Run the component; feeds that it does not declare are left out.

        Args:
            feeds: arrays, or OrtValues of `load` or of a run that kept its outputs.
            keep: leave the outputs, or those of these names, on the device, as OrtValues for the
                next run.
        Returns:
            outputs by name: arrays, or OrtValues where they are kept.
        Raises:
            InputError: an input is missing or has another type or shape than declared.
        """
        names = outputs or self.outputs
        if isinstance(keep, bool):
            keep = names if keep else ()
        self._all_there(feeds)
        plain = not keep and all(
            isinstance(feeds[k], np.ndarray) and feeds[k].dtype != BF16 for k in self._rules
        )
        try:
            if plain and not self._narrow:
                given = {k: self._checked(k, feeds[k]) for k in self._rules}
                return dict(zip(names, self._session.run(names, given), strict=True))
            values = self._run_values(names, feeds, keep)
        except NtoolError:
            raise
        except Exception as e:
            raise explain(e, f"{self.path}: cannot run") from e
        return {k: v if k in keep else to_numpy(v) for k, v in values.items()}

    def _run_values(
        self, names: list[str], feeds: Mapping[str, Any], keep: Collection[str]
    ) -> dict[str, Any]:
        given = {}
        for k in self._rules:
            value = feeds[k]
            given[k] = self._value(k, value) if isinstance(value, np.ndarray) else value
        if self.on_host:  # binding is for devices, and takes twice as long
            found = self._session.run_with_ort_values(names, given)
            return dict(zip(names, found, strict=True))
        binding = self._session.io_binding()
        for k, value in given.items():
            binding.bind_ortvalue_input(k, value)
        for name in names:
            binding.bind_output(name, *(self._device if name in keep else ("cpu", 0)))
        self._session.run_with_iobinding(binding)
        return dict(zip(names, binding.get_outputs(), strict=True))

    def cast(self, name: str, value: np.ndarray) -> np.ndarray:
        """An array in the float type that an input declares; other arrays as they are."""
        wanted = self._rules[name].dtype if name in self._rules else None
        floats = wanted in FLOATS and value.dtype in FLOATS
        return value.astype(wanted) if floats and value.dtype != wanted else value

    def _checked(self, name: str, value: np.ndarray) -> np.ndarray:
        if not self._rules[name].fits(value):
            kind, shape = self.inputs[name]
            raise InputError(
                f"{self.path}: input '{name}'",
                found=f"{value.dtype} {list(value.shape)}",
                expected=f"{kind} {shape}",
            )
        return value

    def _value(self, name: str, value: np.ndarray) -> Any:
        import onnxruntime as ort

        self._checked(name, value)
        if value.dtype == BF16:
            return _host_value(np.ascontiguousarray(value))
        return ort.OrtValue.ortvalue_from_numpy(value, *self._device)


class Room(NamedTuple):
    """Memory that a session writes an output into.

    Attributes:
        value: as an OrtValue.
        array: the same memory as an array; None on a device.
    """

    value: Any
    array: np.ndarray | None


class Bound:
    """A session with a place for each input and output, so that a run hands over nothing.

    Handing thirty arrays over anew costs a step of a small picture more than its arithmetic.
    `Session.bind` makes one.
    """

    def __init__(self, session: Session, inner: Any) -> None:
        self._session, self._inner = session, inner
        self._binding = inner.io_binding()

    def feed(self, name: str, value: Any) -> None:
        """Give an input this array or OrtValue from now on. On the host an array is not copied:
        what is written into it later is what later runs read.

        Raises:
            InputError: an array of another type or shape than declared.
        """
        if isinstance(value, np.ndarray):
            value = self._session.load({name: value})[name]
        self._binding.bind_ortvalue_input(name, value)

    def give(self, name: str, room: Room) -> None:
        """Have an output written there from now on."""
        self._binding.bind_ortvalue_output(name, room.value)

    def run(self) -> None:
        """Compute the outputs into their places.

        Raises:
            InputError: the component cannot run, or an output does not fit its place.
        """
        try:
            self._inner.run_with_iobinding(self._binding)
        except Exception as e:
            raise explain(e, f"{self._session.path}: cannot run") from e


BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BF16)
ONNX_BF16 = 16
"""`TensorProto.BFLOAT16`; the enumeration itself would load onnx."""


def _host_value(array: np.ndarray) -> Any:
    """An OrtValue that is the memory of a C-contiguous array."""
    import onnxruntime as ort

    if array.dtype == BF16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), ONNX_BF16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def to_numpy(value: Any) -> np.ndarray:
    """An OrtValue in host memory as an array. ONNX Runtime has no NumPy type for bfloat16, so its
    bytes are read from where it lies."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    return host_view(value).copy()


def host_view(value: Any) -> np.ndarray:
    """The array that an OrtValue in host memory is, not copied: valid while the OrtValue lives."""
    dtype, shape = _DTYPES[value.data_type()], value.shape()
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.zeros(shape, dtype)
    memory = (ctypes.c_uint8 * nbytes).from_address(value.data_ptr())
    memory._owner = value  # the view holds the memory, which holds what owns it
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": BF16,
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
        return EnvironmentProblem(
            f"{what}: valid model, no kernel here for {node}",
            hint="the CUDA provider may run it (--device cuda); or export the component in f32",
        )
    if "memory" in text.lower() and ("alloc" in text.lower() or "bad_alloc" in text):
        return EnvironmentProblem(f"{what}: not enough memory ({text[:200]})")
    if kind in ("InvalidProtobuf", "InvalidGraph", "NoSuchFile", "InvalidArgument", "Fail"):
        return InputError(f"{what}: {text[:400]}")
    if kind == "EPFail":
        return EnvironmentProblem(f"{what}: {text[:400]}")
    if "opset" in text.lower() and "support" in text.lower():
        return Unsupported(f"{what}: {text[:400]}")
    return InputError(f"{what}: {kind}: {text[:400]}")
