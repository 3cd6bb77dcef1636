"""graph.parse: bytes to a model, with the rules that onnx's own loader does not enforce.

onnx.load takes a model with negative dimensions, 2^64 elements, raw data of the wrong size, unknown
element types, unsorted nodes, an opset from the future, and the empty file (seen with onnx 1.23).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.helper import VERSION_TABLE

from ...checkpoint.regular_file import open_regular
from ...checkpoint.sniff import what_is
from ...errors import NtoolError
from .scopes import scope_findings
from .subject import MAX_LISTED, Finding, bad, one_line
from .walk import Walk, walk

MAX_GRAPH = 2**31 - 1
"""Bytes of one protobuf message (protobuf's own limit)."""
MAX_ELEMENTS = 2**63 - 1
KEYS = ("location", "offset", "length", "checksum")
"""Keys of external_data in the standard (ONNX IR.md, "External Tensor Data")."""

T = TensorProto
_TYPES: dict[int, str] = {v: k for k, v in T.DataType.items() if v != T.UNDEFINED}
_BITS: dict[int, int] = {
    T.FLOAT: 32, T.UINT8: 8, T.INT8: 8, T.UINT16: 16, T.INT16: 16, T.INT32: 32, T.INT64: 64,
    T.BOOL: 8, T.FLOAT16: 16, T.DOUBLE: 64, T.UINT32: 32, T.UINT64: 64, T.COMPLEX64: 64,
    T.COMPLEX128: 128, T.BFLOAT16: 16,
}  # fmt: skip
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_FIELD: dict[int, str] = {
    T.FLOAT: "float_data", T.COMPLEX64: "float_data", T.DOUBLE: "double_data",
    T.COMPLEX128: "double_data", T.INT64: "int64_data", T.UINT32: "uint64_data",
    T.UINT64: "uint64_data", T.STRING: "string_data",
}  # fmt: skip


def bits(data_type: int) -> int | None:
    """Bits of one element; None for strings and unknown types."""
    if data_type in _BITS:
        return _BITS[data_type]
    name = _TYPES.get(data_type, "")
    if name.startswith("FLOAT8"):
        return 8
    small = re.fullmatch(r"(?:U?INT|FLOAT)([246])(?:E\dM\d)?", name)
    return int(small[1]) if small else None


def nbytes(tensor: TensorProto) -> int | None:
    """Bytes of a sound tensor as type and shape say; None where they say nothing."""
    width = bits(tensor.data_type)
    return None if width is None else (math.prod(tensor.dims) * width + 7) // 8


def type_name(data_type: int) -> str:
    """`float32`, `int64`, ...: the NumPy-like name of an element type, its number if unknown."""
    name = _TYPES.get(data_type, str(data_type)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


@dataclass(frozen=True)
class Reading:
    """What graph.parse made of a file.

    Attributes:
        findings: all that is wrong; the rest is not to be used then.
        model, walk: None when no model could be made of the bytes.
    """

    findings: list[Finding]
    model: ModelProto | None = None
    walk: Walk | None = None


def read_model(path: str, file: str) -> Reading:
    """The model in a file, and all that graph.parse finds.

    Args:
        path: absolute, resolved and judged.
        file: name for messages.
    """
    try:
        with open_regular(path, file) as f:
            size = f.nbytes
            if size == 0:
                return Reading([bad(f"{file}: empty file", actual=0, reason="empty")])
            kind = what_is(f.read(0, 512))
            if kind:
                return Reading([bad(f"{file}: not ONNX: it is {kind}", reason="not-onnx")])
            if size > MAX_GRAPH:
                text = f"{file}: larger than one protobuf message can be"
                return Reading([bad(text, f"<= {MAX_GRAPH} bytes", size, reason="too-large")])
            raw = f.read(0, size)
            if len(raw) != size or not f.unchanged():
                return Reading([bad(f"{file}: changed while it was read", reason="changed")])
    except NtoolError as e:
        return Reading([bad(e.message, reason="unreadable")])
    except OSError as e:
        return Reading([bad(f"{file}: cannot be read: {e.strerror or e}", reason="unreadable")])
    try:
        model = ModelProto.FromString(raw)
    except Exception as e:  # protobuf's DecodeError has another home in each implementation
        text = f"{file}: not a protobuf model, truncated, or nested deeper than 100: {one_line(e)}"
        return Reading([bad(text, reason="malformed")])
    fault = _not_text(model)
    if fault is not None:
        return Reading([bad(f"{file}: {fault}", reason="not-utf-8")])
    everything = walk(model)
    findings = judge(model, everything, file)
    if len(findings) > MAX_LISTED:
        more = bad(f"{file}: and {len(findings) - MAX_LISTED} more")
        findings = [*findings[:MAX_LISTED], more]
    return Reading(findings, model, everything)


_VALUES = tuple(f"onnx.GraphProto.{name}" for name in ("input", "output", "value_info"))


def _not_text(model: ModelProto) -> str | None:
    """The first string that is not UTF-8: protobuf hands it out as bytes, unasked.

    Declared types of values, the bulk of many models, are left to `_value_types`.
    """
    pending: list[Any] = [model]
    while pending:
        for field, value in pending.pop().ListFields():
            if field.full_name in _VALUES:
                continue
            if field.type == field.TYPE_MESSAGE:
                if isinstance(value, Message):
                    pending.append(value)
                else:
                    pending.extend(value)
            elif field.type == field.TYPE_STRING:
                for text in (value,) if isinstance(value, str | bytes) else value:
                    if isinstance(text, bytes):
                        return f"{field.full_name} is not UTF-8: {text[:60]!r}"
    return None


def judge(model: ModelProto, everything: Walk, file: str) -> list[Finding]:
    """Everything that graph.parse has to say about a decoded model."""
    if not model.HasField("graph"):
        return [bad(f"{file}: no graph in it", reason="no-graph")]
    findings = _versions(model, file)
    for path, tensor in everything.tensors:
        findings += [
            bad(f"{file}: {path}: {text}", expected, actual, reason=reason)
            for reason, text, expected, actual in _tensor(tensor)
        ]
    findings += _value_types(everything, file)
    findings += scope_findings(model, file)
    return findings


def _versions(model: ModelProto, file: str) -> list[Finding]:
    findings = []
    if not 1 <= model.ir_version <= onnx.IR_VERSION:
        expected = f"1..{onnx.IR_VERSION}, the newest known to onnx {onnx.__version__}"
        text = f"{file}: IR version {model.ir_version}, newest known {onnx.IR_VERSION}"
        findings.append(bad(text, expected, model.ir_version, reason="ir-version"))
    newest = known_opsets()
    imports = [("", model.opset_import)]
    imports += [(f" of function {f.domain}::{f.name}", f.opset_import) for f in model.functions]
    for where, opsets in imports:
        seen: set[str] = set()
        for o in opsets:
            domain = canonical(o.domain)
            shown = domain or "ai.onnx"
            if domain in seen:
                findings.append(
                    bad(f"{file}: opset{where}: domain '{shown}' twice", reason="opset")
                )
            seen.add(domain)
            limit = newest.get(domain)
            if o.version < 1 or (limit is not None and o.version > limit):
                text = f"{file}: opset{where} of '{shown}': {o.version}, newest known {limit}"
                findings.append(bad(text, f"1..{limit}", o.version, reason="opset"))
        if not seen:
            findings.append(bad(f"{file}: no opset import{where}", reason="opset"))
    return findings


def known_opsets() -> dict[str, int]:
    """Newest opset of each standard domain that the installed onnx knows."""
    columns = ("", "ai.onnx.ml", "ai.onnx.training")
    return dict(zip(columns, VERSION_TABLE[-1][2:], strict=False))


def canonical(domain: str) -> str:
    """The default domain has two spellings."""
    return "" if domain == "ai.onnx" else domain


def _tensor(t: TensorProto) -> list[tuple[str, str, object, object]]:
    """(reason, text, expected, actual) of all that is wrong with one stored tensor."""
    if t.data_type not in _TYPES:
        return [("element-type", "unknown element type", "a TensorProto.DataType", t.data_type)]
    dims = list(t.dims)
    if any(d < 0 for d in dims):
        return [("negative-dim", "negative dimension", ">= 0", dims)]
    elements = math.prod(dims)
    width = bits(t.data_type)
    if elements * (width or 8) > MAX_ELEMENTS:
        return [("overflow", "more elements than any machine addresses", None, dims)]
    if t.HasField("segment"):
        return [("segment", "stored in segments, which no runtime reads", None, None)]
    used = [f for f in _FIELDS if len(getattr(t, f))]
    if t.data_location == TensorProto.EXTERNAL:
        faults = _external_keys(t)
        if used or t.raw_data:
            faults.append(("storage", "external, but with data inside the graph too", None, None))
        if t.data_type == T.STRING:
            faults.append(("storage", "strings cannot be external", None, None))
        return faults
    if t.data_location != TensorProto.DEFAULT:
        return [("storage", "unknown data_location", "0 or 1", t.data_location)]
    if len(t.external_data):
        return [("storage", "external_data without data_location EXTERNAL", None, None)]
    if len(used) + t.HasField("raw_data") > 1:
        return [("storage", "data in several fields", "one", used)]
    if t.HasField("raw_data"):
        if width is None:
            return [("storage", "strings cannot be raw data", "string_data", "raw_data")]
        wanted = (elements * width + 7) // 8
        if len(t.raw_data) != wanted:
            return [("raw-size", "raw data, bytes", f"{wanted} for {dims}", len(t.raw_data))]
        return []
    field = _FIELD.get(t.data_type, "int32_data")
    if used and used[0] != field:
        return [("storage", f"data of {type_name(t.data_type)} in {used[0]}", field, used[0])]
    packed = width is not None and width < 8  # one byte of packed elements a value
    wanted = (elements * (width or 8) + 7) // 8 if packed else elements
    if t.data_type in (T.COMPLEX64, T.COMPLEX128):
        wanted *= 2
    found = len(getattr(t, field))
    if found != wanted:
        return [("data-size", f"values in {field}", f"{wanted} for {dims}", found)]
    return []


def _external_keys(t: TensorProto) -> list[tuple[str, str, object, object]]:
    keys = [e.key for e in t.external_data]
    faults: list[tuple[str, str, object, object]] = []
    for key in sorted(set(keys)):
        if key not in KEYS:
            faults.append(("external-key", f"unknown external_data key '{key}'", list(KEYS), key))
        elif keys.count(key) > 1:
            values = [e.value for e in t.external_data if e.key == key]
            faults.append(("duplicate-key", f"external_data key '{key}' twice", "once", values))
    if "location" not in keys:
        faults.append(("no-location", "external_data without 'location'", "location", keys))
    return faults


def _value_types(everything: Walk, file: str) -> list[Finding]:
    findings = []
    for path, graph in everything.graphs:
        for v in (*graph.input, *graph.output, *graph.value_info):
            faults = _value_type(v)
            if faults:
                where = f"{file}: {path + ': ' if path else ''}value '{v.name}'"
                findings += [bad(f"{where}: {text}", *rest, reason=r) for r, text, *rest in faults]
    return findings


def _value_type(v: ValueInfoProto) -> list[tuple[str, str, object, object]]:
    """(reason, text, expected, actual) of all that is wrong with the declared type of a value."""
    faults: list[tuple[str, str, object, object]] = []
    texts: list[str | bytes] = [v.name]
    if v.type.HasField("tensor_type"):
        tensor = v.type.tensor_type
        if tensor.elem_type not in _TYPES:
            faults.append(("element-type", "unknown element type", None, tensor.elem_type))
        for d in tensor.shape.dim:
            kind = d.WhichOneof("value")
            if kind == "dim_param":
                texts.append(d.dim_param)
            elif kind == "dim_value" and d.dim_value < 0:
                faults.append(("negative-dim", "negative dimension", ">= 0", d.dim_value))
    wrong = next((t for t in texts if isinstance(t, bytes)), None)
    if wrong is not None:
        faults.append(("not-utf-8", f"not UTF-8: {wrong[:60]!r}", None, None))
    return faults
