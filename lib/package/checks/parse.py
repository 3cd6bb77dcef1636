"""graph.parse: bytes to a model, with the rules that onnx's own loader does not enforce.

The rules are those of the reader of headers (checkpoint/onnx_rules.py, onnx_scopes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from onnx import ModelProto

from ...checkpoint.onnx_rules import Fault, tensor_faults, value_faults, version_faults
from ...checkpoint.onnx_scopes import scope_faults
from ...checkpoint.onnx_walk import Walk, walk
from ...checkpoint.protobuf import MAX_BYTES
from ...checkpoint.regular_file import open_regular
from ...checkpoint.sniff import what_is
from ...errors import NtoolError
from .subject import MAX_LISTED, Finding, bad, one_line


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
            if size > MAX_BYTES:
                text = f"{file}: larger than one protobuf message can be"
                return Reading([bad(text, f"<= {MAX_BYTES} bytes", size, reason="too-large")])
            raw = f.read(0, size)
            if len(raw) != size or not f.unchanged():
                return Reading([bad(f"{file}: changed while it was read", reason="changed")])
    except NtoolError as e:
        return Reading([bad(e.message, reason="unreadable")])
    except OSError as e:
        return Reading([bad(f"{file}: cannot be read: {e.strerror or e}", reason="unreadable")])
    try:
        model = ModelProto.FromString(raw)
    except MemoryError:
        raise
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

    Declared types of values, the bulk of many models, are left to `value_faults`.
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
    faults: list[Fault] = version_faults(model)
    for path, tensor in everything.tensors:
        faults += tensor_faults(path, tensor)
    faults += value_faults(everything.graphs)
    faults += scope_faults(model)
    return [
        bad(
            f"{file}: {f.where + ': ' if f.where else ''}{f.text}",
            f.expected,
            f.actual,
            reason=f.reason,
        )
        for f in faults
    ]
