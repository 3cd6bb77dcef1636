"""Which components a file of ports is about, and the arrays that they are fed.

What a file leaves out is filled only where package.json says with what (state before the first
token, a value that feeds several ports) or the family does (features of no picture).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.tensor import Tensor
from ..errors import InputError
from ..runtime.arrays import ArrayFile, Arrays
from .small_run import MAX_ELEMENTS

Shape = Sequence[int | str | None]
MASK = "attention_mask"
"""Input that is 0 at padding; what stands at padding is nobody's business."""


@dataclass(frozen=True)
class Ports:
    """Inputs and outputs of a component: name -> (NumPy type, dimensions)."""

    inputs: dict[str, tuple[str, Shape]]
    outputs: dict[str, tuple[str, Shape]]


def fed(
    file: ArrayFile, component: str, ports: Ports, manifest: Mapping[str, Any], implied: Any
) -> tuple[Arrays, list[str]]:
    """(feeds, inputs that nothing gives) of a component for the tensors of a golden file.

    Args:
        manifest: package.json, {} without one; valid by the schema.
        implied: `implied` of the family's trial module, or None: an input that need not be given.
    Raises:
        InputError: a tensor that does not fit its port, or dimensions of one name that differ;
            names file, tensor, found and expected.
    """
    sources = {name: _source(file, component, name, manifest) for name in ports.inputs}
    sizes: dict[str, int] = {}
    feeds: Arrays = {}
    for name, source in sources.items():
        if source is not None:
            dtype, shape = ports.inputs[name]
            _fit(file, file.tensors[source], dtype, shape, sizes)
    missing = []
    for name, (dtype, shape) in ports.inputs.items():
        source = sources[name]
        if source is not None:
            feeds[name] = as_type(file.read(source), dtype)
            continue
        value = _initial(component, name, dtype, sizes, manifest)
        if value is None and implied is not None:
            given = {k: t.shape for k, t in file.tensors.items()}
            value = implied(component, name, shape, given)
        if value is None:
            missing.append(name)
        else:
            feeds[name] = as_type(value, dtype)
    return feeds, missing


def _source(file: ArrayFile, component: str, name: str, manifest: Mapping[str, Any]) -> str | None:
    """The tensor that feeds a port: of its name, or of another port that gets the same value."""
    if name in file.tensors:
        return name
    groups = (manifest.get("workflow") or {}).get("inputs") or {}
    for readers in groups.values():
        if f"{component}.{name}" in readers:
            others = (reader.partition(".")[2] for reader in readers)
            return next((o for o in others if o in file.tensors), None)
    return None


def _fit(file: ArrayFile, t: Tensor, dtype: str, shape: Shape, sizes: dict[str, int]) -> None:
    """Refuse a tensor that is none for its port; remember the lengths of symbolic dimensions."""
    what = f"{file.path}: tensor '{t.name}'"
    expected = f"{dtype} [{', '.join('n' if d is None else str(d) for d in shape)}]"
    found = f"{t.dtype} {list(t.shape)}"
    if not _castable(t.dtype, dtype) or len(t.shape) != len(shape):
        raise InputError(what, found=found, expected=expected)
    for length, d in zip(t.shape, shape, strict=True):
        if isinstance(d, int) and d != length:
            raise InputError(what, found=found, expected=expected)
        if isinstance(d, str) and sizes.setdefault(d, length) != length:
            raise InputError(f"{what}: dimension '{d}'", found=length, expected=sizes[d])


_FLOATS = ("F64", "F32", "F16", "BF16")
_INTEGERS = {
    "int64": ("I64", "I32", "I16", "I8", "U8"),
    "int32": ("I32", "I16", "I8", "U8"),
    "uint8": ("U8",),
    "int8": ("I8",),
    "bool": ("BOOL",),
}


def _castable(stored: str, wanted: str) -> bool:
    """Floats are given in any floating type, integers where no value can be lost."""
    return stored in (_FLOATS if "float" in wanted else _INTEGERS.get(wanted, ()))


def as_type(value: NDArray[Any], dtype: str) -> NDArray[Any]:
    """An array in a type of package.json."""
    wanted = _numpy(dtype)
    return value if value.dtype == wanted else value.astype(wanted)


def _numpy(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _initial(
    component: str, name: str, dtype: str, sizes: Mapping[str, int], manifest: Mapping[str, Any]
) -> NDArray[Any] | None:
    """State before the first token, where the port is one of the package's cache."""
    for e in manifest.get("cache") or ():
        if e["input"] != name:
            continue
        shape = []
        for axis, d in enumerate(e["shape"]):
            length = 0 if axis == e.get("grows") else sizes.get(d, 1) if isinstance(d, str) else d
            shape.append(length)
        if np.prod(shape, dtype=object) > MAX_ELEMENTS:
            raise InputError(f"{component}: state '{name}'", found=shape, expected=MAX_ELEMENTS)
        return np.full(shape, e.get("initial", 0), _numpy(dtype))
    return None


def real_elements(
    name: str, shape: Sequence[int], ports: Ports, feeds: Arrays
) -> NDArray[np.bool_] | None:
    """Which elements of an output belong to real tokens, to be broadcast; None: all.

    The mask's second axis names the axis of cached and new tokens; outputs may have that axis, or
    the shorter one of the new tokens, which are the last.
    """
    mask = feeds.get(MASK)
    if mask is None or mask.ndim != 2 or (mask != 0).all():
        return None
    total = ports.inputs[MASK][1][1]
    new = {s[1] for n, (_, s) in ports.inputs.items() if n != MASK and len(s) == 2}
    declared = ports.outputs[name][1]
    batch = ports.inputs[MASK][1][0]
    if batch not in declared:
        return None
    rows = list(declared).index(batch)
    for axis, d in enumerate(declared):
        if isinstance(d, str) and axis > rows and (d == total or d in new):
            kept = mask[:, mask.shape[1] - shape[axis] :] != 0
            if kept.shape != (shape[rows], shape[axis]):
                return None
            view = [1] * len(shape)
            view[rows], view[axis] = kept.shape
            return kept.reshape(view)
    return None
