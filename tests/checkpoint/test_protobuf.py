"""The own parser of protobuf messages, against that of the onnx package."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from ntool.lib.checkpoint import protobuf
from ntool.lib.checkpoint.onnx_messages import MESSAGES, MODEL
from ntool.lib.checkpoint.onnx_operators import MADE_FROM
from ntool.lib.checkpoint.protobuf import Parsed, parse
from ntool.lib.checkpoint.protobuf_fields import Field, Message, Span, declare
from ntool.lib.checkpoint.regular_file import open_regular

from .header_files import InMemory
from .onnx_models import RULES, everywhere, field, nested, tiny, varint

PLACES = everywhere().SerializeToString()


def parsed(raw: bytes) -> Parsed:
    return parse(InMemory(raw), MODEL)


def codes(raw: bytes) -> list[str]:
    return [f.code for f in parsed(raw).faults]


def same(ours: Message, theirs: Any) -> None:
    """Every kept field has the value that protobuf's parser finds."""
    for name, f in ours.fields.items():
        if not f.kept:
            continue
        mine, other = getattr(ours, name), getattr(theirs, name)
        if f.counted or isinstance(mine, Span):
            assert len(mine) == len(other), name
        elif f.kind in MESSAGES and f.repeated:
            assert len(mine) == len(other), name
            for a, b in zip(mine, other, strict=True):
                same(a, b)
        elif f.kind in MESSAGES:
            assert ours.HasField(name) == theirs.HasField(name)
            if ours.HasField(name):
                same(mine, other)
        else:
            assert (list(mine) if f.repeated else mine) == (list(other) if f.repeated else other)


def test_the_declared_messages_are_those_of_onnx() -> None:
    proto: dict[str, Any] = {}
    pending = [ModelProto.DESCRIPTOR]
    while pending:
        message = pending.pop()
        if message.full_name not in proto:
            proto[message.full_name] = message
            pending += [f.message_type for f in message.fields if f.message_type]
    kinds = {
        "int64": "TYPE_INT64", "int32": "TYPE_INT32", "uint64": "TYPE_UINT64", "enum": "TYPE_ENUM",
        "float": "TYPE_FLOAT", "double": "TYPE_DOUBLE", "text": "TYPE_STRING",
        "bytes": "TYPE_BYTES",
    }  # fmt: skip
    seen = {}

    def compare(ours: type[Message], theirs: Any) -> None:
        if (ours.__name__, theirs.full_name) in seen:
            return
        seen[ours.__name__, theirs.full_name] = True
        mine = {f.number: f.name for f in ours.fields.values()}
        other = {f.number: f.name for f in theirs.fields}
        if onnx.__version__ == MADE_FROM:
            assert mine == other
        for f in theirs.fields:  # another version has fewer fields or more
            if mine.get(f.number) == f.name:
                field_of(ours.fields[f.name], f, ours)
        if onnx.__version__ == MADE_FROM:
            groups = {f.name for o in theirs.oneofs for f in o.fields}
            assert ours.oneof == groups, theirs.full_name

    def field_of(mine: Field, f: Any, ours: type[Message]) -> None:
        assert mine.repeated == f.is_repeated, f.full_name
        if f.message_type:
            compare(MESSAGES[mine.kind], f.message_type)
        elif (ours.__name__, f.name) != ("Property", "value"):  # a text that may be long
            assert f.type == getattr(f, kinds[mine.kind]), f.full_name

    compare(MODEL, ModelProto.DESCRIPTOR)
    assert {theirs for _, theirs in seen} <= set(proto)
    if onnx.__version__ == MADE_FROM:
        assert {theirs for _, theirs in seen} == set(proto)
        assert {ours for ours, _ in seen} == set(MESSAGES)


MODELS = {"tiny": tiny(), "everywhere": everywhere()}
for _change, *_ in RULES:
    MODELS[_change.__name__] = tiny()
    _change(MODELS[_change.__name__])


@pytest.mark.parametrize("window", [False, True], ids=["whole", "windows"])
@pytest.mark.parametrize("name", MODELS)
def test_same_values(name: str, window: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if window:
        monkeypatch.setattr(protobuf, "WHOLE", 0)
        monkeypatch.setattr(protobuf, "BLOCK", 40)
    got = parsed(MODELS[name].SerializeToString())
    assert got.faults == [] and got.complete
    same(got.message, MODELS[name])


def test_spans_are_places_in_the_file() -> None:
    raw = PLACES
    graph = parsed(raw).message.graph
    first = graph.initializer[0].raw_data
    assert raw[first.start : first.start + first.nbytes] == tiny().graph.initializer[0].raw_data


def test_equal_messages_are_one_object() -> None:
    node = onnx.helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    model = onnx.helper.make_model(onnx.helper.make_graph([node, node], "g", [], []))
    a, b = parsed(model.SerializeToString()).message.graph.node
    assert a is not b and a.attribute[0] is b.attribute[0]


def test_weights_inside_are_not_read(tmp_path: Path) -> None:
    """A gigabyte in the graph file costs as much as nothing; it is a hole of a sparse file."""
    size = 1 << 30
    tensor = b"\x08" + varint(size // 4) + b"\x10\x01" + field(8, b"w")
    tensor += varint(9 << 3 | 2) + varint(size)
    after = field(5, b"\x08\x01\x10\x01" + field(8, b"v") + field(9, bytes(4)))
    head = varint(5 << 3 | 2) + varint(len(tensor) + size) + tensor
    graph = varint(7 << 3 | 2) + varint(len(head) + size + len(after)) + head
    path = tmp_path / "m.onnx"
    with open(path, "wb") as f:
        f.write(graph)
        f.seek(size, 1)
        f.write(after)
    started = time.perf_counter()
    with open_regular(str(path), "m.onnx") as f:
        got = parse(f, MODEL)
        assert f.bytes_read < 4 * protobuf.BLOCK
    assert time.perf_counter() - started < 1
    assert got.faults == []
    w, v = got.message.graph.initializer
    assert (w.name, w.raw_data.start, len(w.raw_data)) == ("w", len(graph), size)
    assert (v.name, len(v.raw_data)) == ("v", 4)


@pytest.mark.parametrize("window", [False, True], ids=["whole", "windows"])
def test_packed_varints_are_counted_by_blocks(
    window: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if window:
        monkeypatch.setattr(protobuf, "WHOLE", 0)
        monkeypatch.setattr(protobuf, "BLOCK", 40)
    numbers = [0, 1, 127, 128, 300, 2**31 - 1, -1, -(2**31)] * 200
    tensor = onnx.helper.make_tensor("w", onnx.TensorProto.INT32, [len(numbers)], numbers)
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor]))
    [w] = parsed(model.SerializeToString()).message.graph.initializer
    assert len(w.int32_data) == len(numbers)


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (b"\x08" + b"\x80" * 9 + b"\x01", None, ""),  # 10 bytes, 64 bits
        (b"\x08" + b"\x80" * 9 + b"\x02", "malformed", "64 bits"),
        (b"\x08" + b"\x80" * 10 + b"\x00", "malformed", "10 bytes"),
        (b"\x08\x80\x00", None, ""),  # longer than needed, which is allowed
        (b"\x08", "truncated", "inside a field"),
        (b"\x08\x80", "truncated", "inside a field"),
        (b"\x00\x00", "malformed", "field 0"),
        (b"\x0e\x00", "malformed", "wire type 6"),
        (b"\x0f\x00", "malformed", "wire type 7"),
        (b"\x3b\x3c", "malformed", "group"),
        (b"\x08\x01\x08\x01", "malformed", "Model.ir_version twice"),
        (b"\x3a\x00\x3a\x00", "malformed", "Model.graph twice"),
        (b"\x0a\x00", "malformed", "Model.ir_version: found bytes, expected int64"),
        (b"\x38\x01", "malformed", "Model.graph: found a varint"),
        (b"\x3a\x02\x0a\x05", "malformed", "ends 5 bytes behind"),
        (b"\x3a\x05\x0a\x00", "truncated", "ends 3 bytes before the end of Model.graph"),
        (b"\x12\x05ab", "truncated", "Model.producer_name"),
        (b"\x12\x02\xff\xfe", "not-utf-8", "Model.producer_name"),
        (field(7, field(5, b"\x10\x80\x80\x80\x80\x10")), "malformed", "32 bits"),
        (field(7, field(5, field(4, b"abc"))), "malformed", "4-byte values"),
        (field(7, field(5, field(5, b"\x80"))), "malformed", "inside a varint"),
        (field(7, field(5, field(5, b"\x80" * 11 + b"\0"))), "malformed", "10 bytes"),
        (b"\xf8\x7f\x05", None, ""),  # an unknown field
        (b"\xfa\x7f\x02ab", None, ""),
        (b"\xf9\x7f12345678", None, ""),
        (b"\xfd\x7f1234", None, ""),
        (b"\xf9\x7f1234567", "truncated", ""),
    ],
)
def test_encoding(raw: bytes, code: str | None, words: str) -> None:
    faults = parsed(raw).faults
    assert [f.code for f in faults] == ([code] if code else [])
    if code:
        assert words in faults[0].message
    if code is None:
        ModelProto.FromString(raw)


def test_depth_limit_is_that_of_protobuf() -> None:
    """33 graphs inside each other are 100 messages."""
    for levels in (32, 33, 34, 60, 2000):
        raw = nested(levels)
        try:
            ModelProto.FromString(raw)
        except DecodeError:
            assert levels > 33 and codes(raw) == ["too-deep"]
        else:
            assert levels <= 33 and codes(raw) == []


def test_shared_messages_count_for_the_depth() -> None:
    """Types nest by themselves; equal ones are one object only far from the limit."""
    for levels in range(1, 60):
        inner = b""
        for _ in range(levels):
            inner = field(4, field(1, inner))  # sequence_type.elem_type
        raw = field(7, field(11, field(2, inner)) * 2)
        try:
            ModelProto.FromString(raw)
        except DecodeError:
            assert codes(raw) == ["too-deep"], levels
        else:
            assert codes(raw) == [], levels


def test_limits_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tiny().SerializeToString()
    monkeypatch.setattr(protobuf, "MAX_MESSAGES", 10)
    assert codes(raw) == ["too-large"]
    monkeypatch.undo()
    monkeypatch.setattr(protobuf, "MAX_FIELDS", 20)
    assert codes(raw) == ["too-large"]
    monkeypatch.undo()
    assert codes(field(2, b"x" * (protobuf.MAX_TEXT + 1))) == ["too-large"]
    assert codes(field(6, b"x" * (protobuf.MAX_TEXT + 1))) == []  # a comment, not kept


def test_a_cut_file_keeps_what_is_before_the_cut() -> None:
    raw = MODELS["everywhere"].SerializeToString()
    graph = MODELS["everywhere"].graph
    whole = 0
    for size in range(len(raw)):
        got = parsed(raw[:size])
        try:
            ModelProto.FromString(raw[:size])
        except DecodeError:
            assert not got.complete and [f.code for f in got.faults] == ["truncated"]
        else:
            assert got.complete and got.faults == []
        if got.message.HasField("graph"):
            names = [n.output for n in got.message.graph.node if n not in got.open]
            assert names == [list(n.output) for n in graph.node[: len(names)]]
            whole = max(whole, len(names))
    assert whole == len(graph.node)


def verdicts(raw: bytes) -> None:
    """What protobuf refuses is refused here; reading never fails otherwise."""
    started = time.perf_counter()
    got = parsed(raw)
    assert time.perf_counter() - started < 1
    try:
        model = ModelProto.FromString(raw)
    except DecodeError:
        assert got.faults
    else:
        if not got.faults:
            same(got.message, model)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(PLACES) - 1), st.integers(0, 255), st.booleans())
def test_one_byte_changed(at: int, value: int, window: bool) -> None:
    raw = PLACES[:at] + bytes([value]) + PLACES[at + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        if window:
            patch.setattr(protobuf, "WHOLE", 0)
            patch.setattr(protobuf, "BLOCK", 33)
        verdicts(raw)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(PLACES)))
def test_any_bytes(raw: bytes, at: int) -> None:
    verdicts(raw)
    verdicts(PLACES[:at])
    verdicts(PLACES[:at] + raw + PLACES[at:])


def test_a_file_that_shrinks() -> None:
    source = InMemory(PLACES)
    source.raw = PLACES[:-20]
    got = parse(source, MODEL)
    assert [f.code for f in got.faults] == ["truncated"]


def test_declarations() -> None:
    kinds = declare("A! n=1:int64 |x=2:text |y=3:B\nB a=1:A*")
    raw = b"\x08\x07" + field(3, field(1, b"\x08\x01") * 2) + field(2, b"t")
    a = parse(InMemory(raw), kinds["A"]).message
    assert (a.n, a.x, [x.n for x in a.y.a]) == (7, "t", [1, 1])
    assert a.WhichOneof("value") == "x"
    assert [f.name for f, _ in a.ListFields()] == ["n", "y", "x"]
    assert (kinds["A"]().n, kinds["A"]().y.a, kinds["A"]().HasField("y")) == (0, (), False)
