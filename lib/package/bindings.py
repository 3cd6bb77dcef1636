"""Binding graph parameters to checkpoint tensors, by name and shape, before any payload is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from onnx import TensorProto

from ..checkpoint.tensor import BITS, Checkpoint, Tensor
from ..errors import InputError, SourceNotFound
from ..numeric import convert

DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "F32",
    TensorProto.FLOAT16: "F16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT64: "I64",
    TensorProto.FLOAT8E4M3FN: "F8_E4M3",
}
"""ONNX element type -> safetensors name."""


STACKED = "stacked"
"""Reason of a parameter whose sources are stacked along a new first axis, in order."""

Stored = tuple[str, tuple[int, ...]]
"""Name and shape of a tensor of the checkpoint."""
Rename = Callable[[str, tuple[int, ...]], tuple[list[Stored], str | None]]
"""(parameter, its shape) -> the checkpoint's tensors whose bytes it is, one after the other, each
with the shape it must have; and why the name differs."""


@dataclass(frozen=True)
class Binding:
    """A parameter of a graph, and the tensors that give its bytes, one after the other.

    Attributes:
        name: of the parameter, and of its entry in the package's data file.
        shape: of the parameter.
        sources: the checkpoint's tensors: one, or several of any shapes. Their elements together
            are those of the parameter.
        dtype: safetensors name of the type in the package.
        reason: why the name differs, else None.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[Tensor, ...]
    dtype: str
    reason: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the package."""
        return math.prod(self.shape) * BITS[self.dtype] // 8

    def share(self, source: Tensor) -> int:
        """Bytes of the parameter that one of its sources gives."""
        return source.params * BITS[self.dtype] // 8


class Bindings:
    """The parameters that one component's graph has claimed. A `graph.builder.WeightSource`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        rename: Rename = lambda name, shape: ([(name, shape)], None),
    ) -> None:
        self._checkpoint, self._rename = checkpoint, rename
        self.bound: dict[str, Binding] = {}

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        """Bind a parameter; returns a provisional location of its bytes.

        Raises:
            SourceNotFound: the checkpoint has no such tensor.
            InputError: it has another shape, or its sources have another number of elements.
            Unsupported: its type cannot become `dtype`.
        """
        stored, reason = self._rename(name, shape)
        wanted = DTYPES[dtype]
        sources = tuple(self._tensor(n, each, wanted) for n, each in stored)
        given = sum(t.params for t in sources)
        if given != math.prod(shape):  # a graph from elsewhere may ask for anything
            raise InputError(
                f"{self._checkpoint.source}: parameter '{name}' {list(shape)}: elements",
                found=f"{given} in {len(sources)} tensors",
                expected=math.prod(shape),
            )
        self.bound[name] = Binding(name, shape, sources, wanted, reason)
        return "model.safetensors"

    def _tensor(self, name: str, shape: tuple[int, ...], wanted: str) -> Tensor:
        c = self._checkpoint
        tensor = c.tensors.get(name)
        if tensor is None:
            raise SourceNotFound(
                f"{c.source}: tensor '{name}' is missing", expected=f"shape {list(shape)}"
            )
        if tuple(tensor.shape) != shape:
            raise InputError(
                f"{tensor.file}: tensor '{name}': shape",
                found=list(tensor.shape),
                expected=f"{list(shape)} from config.json",
            )
        convert.check(tensor.dtype, wanted, f"{c.source}: {tensor.file}: tensor '{name}'")
        return tensor
