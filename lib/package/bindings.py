"""Binding graph parameters to checkpoint tensors, by name and shape, before any payload is read."""

from __future__ import annotations

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
}
"""ONNX element type -> safetensors name."""


@dataclass(frozen=True)
class Binding:
    """A parameter of a graph, and the tensor that gives its bytes.

    Attributes:
        name: of the parameter, and of its entry in the package's data file.
        source: the checkpoint's tensor; its name differs where the family renames it.
        dtype: safetensors name of the type in the package.
        reason: why the name differs, else None.
    """

    name: str
    source: Tensor
    dtype: str
    reason: str | None = None

    @property
    def action(self) -> str:
        """`copied` (bytes unchanged) or `converted`."""
        return "copied" if self.source.dtype == self.dtype else "converted"

    @property
    def nbytes(self) -> int:
        """Bytes in the package."""
        return self.source.params * BITS[self.dtype] // 8


class Bindings:
    """The parameters that one component's graph has claimed. A `graph.builder.WeightSource`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        rename: Callable[[str], tuple[str, str | None]] = lambda name: (name, None),
    ) -> None:
        self._checkpoint, self._rename = checkpoint, rename
        self.bound: dict[str, Binding] = {}

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        """Bind a parameter; returns a provisional location of its bytes.

        Raises:
            SourceNotFound: the checkpoint has no such tensor.
            InputError: it has another shape.
            Unsupported: its type cannot become `dtype`.
        """
        stored, reason = self._rename(name)
        c = self._checkpoint
        tensor = c.tensors.get(stored)
        if tensor is None:
            raise SourceNotFound(
                f"{c.source}: tensor '{stored}' is missing", expected=f"shape {list(shape)}"
            )
        if tensor.shape != shape:
            raise InputError(
                f"{tensor.file}: tensor '{stored}': shape",
                found=list(tensor.shape),
                expected=f"{list(shape)} from config.json",
            )
        wanted = DTYPES[dtype]
        convert.check(tensor.dtype, wanted, stored)
        self.bound[name] = Binding(name, tensor, wanted, reason)
        return "model.safetensors"
