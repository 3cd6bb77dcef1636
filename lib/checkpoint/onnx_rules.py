"""What ONNX demands of tensors, declared types and versions, beyond what its own loader checks.

onnx.load takes a model with negative dimensions, 2^64 elements, raw data of the wrong size, unknown
element types and an opset from the future (seen with onnx 1.23). The messages judged here are
those of the onnx package or of onnx_messages.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .onnx_operators import IR_VERSION, NEWEST
from .onnx_types import FIELDS, TYPES, bits, type_name

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, TypeProto

MAX_ELEMENTS = 2**63 - 1
MAX_FAULTS = 10_000
"""What is kept of one kind of rule and model; a file made to be wrong could have millions."""
KEYS = ("location", "offset", "length", "checksum")
"""Keys of external_data in the standard (ONNX IR.md, "External Tensor Data")."""
_STRING, _COMPLEX = 8, (14, 15)
_EXTERNAL = 1


class Fault(NamedTuple):
    """One thing that is wrong.

    Attributes:
        reason: short stable code of the rule.
        where: path of the node, tensor or value; "" for the model as a whole.
        text: what is wrong, without the values.
        expected, actual: as JSON values, where they have a meaning.
    """

    reason: str
    where: str
    text: str
    expected: Any = None
    actual: Any = None


def canonical(domain: str) -> str:
    """The default domain has two spellings."""
    return "" if domain == "ai.onnx" else domain


def version_faults(model: ModelProto) -> list[Fault]:
    """IR version and opsets: known, each domain once, at least one in model and functions."""
    faults = []
    if not 1 <= model.ir_version <= IR_VERSION:
        text = f"IR version {model.ir_version}, newest known {IR_VERSION}"
        faults.append(Fault("ir-version", "", text, f"1..{IR_VERSION}", model.ir_version))
    imports = [("", model.opset_import)]
    imports += [(f" of function {f.domain}::{f.name}", f.opset_import) for f in model.functions]
    for where, opsets in imports:
        seen: set[str] = set()
        for o in opsets:
            domain = canonical(o.domain)
            shown = domain or "ai.onnx"
            if domain in seen:
                faults.append(Fault("opset", "", f"opset{where}: domain '{shown}' twice"))
            seen.add(domain)
            limit = NEWEST.get(domain)
            if o.version < 1 or (limit is not None and o.version > limit):
                text = f"opset{where} of '{shown}': {o.version}, newest known {limit}"
                faults.append(Fault("opset", "", text, f"1..{limit}", o.version))
        if not seen:
            faults.append(Fault("opset", "", f"no opset import{where}"))
    return faults


def tensor_faults(where: str, t: TensorProto) -> list[Fault]:
    """All that is wrong with one stored tensor; what its external file says is not looked at."""

    def one(reason: str, text: str, expected: Any = None, actual: Any = None) -> list[Fault]:
        return [Fault(reason, where, text, expected, actual)]

    if t.data_type not in TYPES:
        return one("element-type", "unknown element type", "a TensorProto.DataType", t.data_type)
    dims = list(t.dims)
    if any(d < 0 for d in dims):
        return one("negative-dim", "negative dimension", ">= 0", dims)
    elements = 0 if 0 in dims else math.prod(dims)
    width = bits(t.data_type)
    if elements * (width or 8) > MAX_ELEMENTS:
        return one("overflow", "more elements than any machine addresses", None, dims)
    if t.HasField("segment"):
        return one("segment", "stored in segments, which no runtime reads")
    used = [f for f in FIELDS if len(getattr(t, f))]
    if t.data_location == _EXTERNAL:
        faults = _external_keys(where, t)
        if used or t.raw_data:
            faults += one("storage", "external, but with data inside the graph too")
        if t.data_type == _STRING:
            faults += one("storage", "strings cannot be external")
        return faults
    if t.data_location != 0:
        return one("storage", "unknown data_location", "0 or 1", t.data_location)
    if len(t.external_data):
        return one("storage", "external_data without data_location EXTERNAL")
    if len(used) + t.HasField("raw_data") > 1:
        return one("storage", "data in several fields", "one", used)
    if t.HasField("raw_data"):
        if width is None:
            return one("storage", "strings cannot be raw data", "string_data", "raw_data")
        wanted = (elements * width + 7) // 8
        if len(t.raw_data) != wanted:
            return one("raw-size", "raw data, bytes", f"{wanted} for {dims}", len(t.raw_data))
        return []
    field = TYPES[t.data_type].field
    if used and used[0] != field:
        return one("storage", f"data of {type_name(t.data_type)} in {used[0]}", field, used[0])
    # 4-bit and 2-bit elements are packed into bytes, 6-bit ones are not (onnx.proto, int32_data)
    wanted = (elements * width + 7) // 8 if width in (2, 4) else elements
    if t.data_type in _COMPLEX:
        wanted *= 2
    found = len(getattr(t, field))
    if found != wanted:
        return one("data-size", f"values in {field}", f"{wanted} for {dims}", found)
    return []


def _external_keys(where: str, t: TensorProto) -> list[Fault]:
    keys = [e.key for e in t.external_data]
    faults = []
    for key in sorted(set(keys)):
        if key not in KEYS:
            text = f"unknown external_data key '{key}'"
            faults.append(Fault("external-key", where, text, list(KEYS), key))
        elif keys.count(key) > 1:
            values = [e.value for e in t.external_data if e.key == key]
            text = f"external_data key '{key}' twice"
            faults.append(Fault("duplicate-key", where, text, "once", values))
    if "location" not in keys:
        text = "external_data without 'location'"
        faults.append(Fault("no-location", where, text, "location", keys))
    return faults


def value_faults(graphs: Iterable[tuple[str, GraphProto]]) -> Iterator[Fault]:
    """All that is wrong with the declared types of values; `graphs` as `Walk` has them."""
    for path, graph in graphs:
        prefix = f"{path}: " if path else ""
        for v in (*graph.input, *graph.output, *graph.value_info):
            faults = type_faults(v.type)
            if isinstance(v.name, bytes):
                faults = [*faults, _not_text(v.name)]
            if faults:
                where = f"{prefix}value '{v.name}'"
                yield from (f._replace(where=where) for f in faults)


def type_faults(declared: TypeProto) -> list[Fault]:
    """All that is wrong with the declared type of a value."""
    faults: list[Fault] = []
    if declared.HasField("tensor_type"):
        tensor = declared.tensor_type
        if tensor.elem_type not in TYPES:
            faults.append(Fault("element-type", "", "unknown element type", None, tensor.elem_type))
        for d in tensor.shape.dim:
            kind = d.WhichOneof("value")
            if kind == "dim_param":
                if isinstance(d.dim_param, bytes):
                    faults.append(_not_text(d.dim_param))
            elif kind == "dim_value" and d.dim_value < 0:
                faults.append(Fault("negative-dim", "", "negative dimension", ">= 0", d.dim_value))
    return faults


def _not_text(raw: bytes) -> Fault:
    """What protobuf hands out as bytes, unasked."""
    return Fault("not-utf-8", "", f"not UTF-8: {raw[:60]!r}")
