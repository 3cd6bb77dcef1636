"""graph.parse: each rule on a tiny model that breaks nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from ntool.lib.checkpoint.onnx_types import bits
from ntool.lib.package.checks.parse import read_model
from tests.checkpoint.onnx_models import RULES, tiny

T = TensorProto


def read(tmp_path: Path, raw: bytes) -> tuple[ModelProto | None, list[str | None], str]:
    path = tmp_path / "m.onnx"
    path.write_bytes(raw)
    reading = read_model(str(path), "m.onnx")
    findings = reading.findings
    assert all(f.ok is False and f.message.startswith("m.onnx: ") for f in findings)
    return reading.model, [f.reason for f in findings], "\n".join(f.message for f in findings)


def test_the_tiny_model_is_sound(tmp_path: Path) -> None:
    model, reasons, _ = read(tmp_path, tiny().SerializeToString())
    assert model is not None and reasons == []
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize(
    ("change", "reason", "words"), RULES, ids=lambda v: getattr(v, "__name__", "")
)
def test_rule(
    change: Callable[[ModelProto], None], reason: str, words: str, tmp_path: Path
) -> None:
    model = tiny()
    change(model)
    _, reasons, text = read(tmp_path, model.SerializeToString())
    assert set(reasons) >= {reason}
    assert words in text
    others = set(reasons) - {reason}
    # a node that breaks leaves what it makes undefined, and no import means no known domain
    assert others <= {"undefined-value", "unknown-domain", "unknown-operator"}, text


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "not-onnx"),
        (b"<!DOCTYPE html><html></html>", "not-onnx"),
        (b"PK\x03\x04" + bytes(60), "not-onnx"),
        (b"\x08\x0a", "no-graph"),
        (tiny().SerializeToString()[:-3], "malformed"),
        (b"\xff" * 40, "malformed"),
    ],
)
def test_not_a_model(raw: bytes, reason: str, tmp_path: Path) -> None:
    _, reasons, _ = read(tmp_path, raw)
    assert reasons == [reason]


def test_deep_nesting_is_refused_without_recursion_error(tmp_path: Path) -> None:
    graph = helper.make_graph([], "leaf", [], [])
    raw = graph.SerializeToString()

    def field(number: int, payload: bytes) -> bytes:
        n, size = len(payload), b""
        while True:
            size += bytes([n & 127 | (128 if n > 127 else 0)])
            n >>= 7
            if not n:
                return bytes([number << 3 | 2]) + size + payload

    for _ in range(200):  # graph.node.attribute.g
        raw = field(1, field(5, field(6, raw)))
    _, reasons, _ = read(tmp_path, b"\x08\x0a" + field(7, raw))
    assert reasons == ["malformed"]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    raw = tiny().SerializeToString().replace(b"relu", b"re\xff\xfe")
    _, reasons, _ = read(tmp_path, raw)
    assert reasons == ["not-utf-8"]


def test_sparse_file_larger_than_protobuf_allows(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with open(path, "wb") as f:
        f.write(b"\x08\x0a\x12\x00")
        f.truncate(2**31)
    assert [f.reason for f in read_model(str(path), "m.onnx").findings] == ["too-large"]


def test_many_faults_are_counted_not_listed(tmp_path: Path) -> None:
    model = tiny()
    for i in range(50):
        model.graph.initializer.append(T(name=f"w{i}", data_type=99, dims=[1]))
    _, reasons, text = read(tmp_path, model.SerializeToString())
    assert len(reasons) == 21 and "and 30 more" in text


def test_sizes_of_all_element_types() -> None:
    """Against the widths that onnx's own tables give."""
    for name, code in T.DataType.items():
        if code in (T.UNDEFINED, T.STRING):
            assert bits(code) is None
            continue
        dtype = helper.tensor_dtype_to_np_dtype(code)
        packed = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
        packed |= {"FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
        assert bits(code) == packed.get(name, dtype.itemsize * 8), name
