"""The own reader of ONNX headers, against the onnx package and against verify-package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ntool.lib.checkpoint import onnx_operators, protobuf
from ntool.lib.checkpoint.onnx_header import MAX_PROPERTY
from ntool.lib.checkpoint.onnx_operators import MADE_FROM, NEWEST, exists
from ntool.lib.checkpoint.onnx_types import TYPES
from ntool.lib.checkpoint.tensor import BITS, exit_code
from ntool.lib.package.checks.parse import read_model

from . import operator_table
from .onnx_models import (
    LOCATIONS,
    RULES,
    everywhere,
    nested,
    tiny,
)
from .onnx_reading import again, codes, read, rows

T = TensorProto
PLACES = everywhere().SerializeToString()


def test_tiny(tmp_path: Path) -> None:
    header = read(tmp_path, tiny())
    assert header.problems == [] and header.bytes_read == header.nbytes
    assert rows(header) == [("w", "F32", (2,), "m.onnx", 8)]
    at = header.tensors[0].offset
    raw = (tmp_path / "m.onnx").read_bytes()
    assert np.frombuffer(raw[at : at + 8], np.float32).tolist() == [1, 2]
    assert [(p.name, p.dtype, p.shape, p.role) for p in header.ports] == [
        ("x", "F32", (2,), "input"),
        ("c", "BOOL", (), "input"),
        ("z", "F32", (2,), "output"),
    ]
    assert header.metadata == {
        "onnx.ir_version": 10,
        "onnx.opset_import": {"ai.onnx": 21},
        "onnx.graph": "g",
        "onnx.nodes": 5,
        "onnx.operators": {"Abs": 1, "Add": 1, "If": 1, "Neg": 1, "Relu": 1},
    }


def test_tensors_in_all_places(tmp_path: Path) -> None:
    header = read(tmp_path, everywhere())
    assert header.problems == []
    found = {t.name: t.params for t in header.tensors if t.dtype == "F32"}
    inner = "node if (If).else_branch"
    assert found == {
        "w": 2,
        "t1": 1,
        "node k (Constant).value": 2,
        f"{inner}: initializer 't3'": 3,
        "sparse initializer 't4'.values": 4,
        "function own::F: node #0 (Constant).value": 5,
        "training_info[0].initialization: initializer 't6'": 6,
        "training_info[0].algorithm: initializer 't7'": 7,
        f"{inner}: node inner (If).then_branch: node #0 (Constant).value": 8,
        "node lists (Lists).t[0]": 9,
        "node lists (Lists).t[1]": 10,
    }
    assert [t.offset for t in header.tensors] == sorted(t.offset for t in header.tensors)


def arrays() -> dict[int, Any]:
    """Six elements of each type."""
    out: dict[int, Any] = {}
    for code in T.DataType.values():
        if code != T.UNDEFINED:
            dtype = helper.tensor_dtype_to_np_dtype(code)
            values = ["a", "bc", "", "d", "e", "f"] if code == T.STRING else [1, 0, 1, 0, 1, 1]
            out[code] = np.array(values, dtype).reshape(2, 3)
    return out


@pytest.mark.parametrize("code", arrays(), ids=T.DataType.Name)
def test_element_types_raw_and_typed(code: int, tmp_path: Path) -> None:
    array = arrays()[code]
    typed = helper.make_tensor("typed", code, [2, 3], array.ravel())
    stored = [typed]
    if code != T.STRING:
        stored.append(numpy_helper.from_array(array, "raw"))
        assert stored[1].data_type == code and stored[1].HasField("raw_data")
    header = read(tmp_path, helper.make_model(helper.make_graph([], "g", [], [], stored)))
    assert header.problems == []
    size = 6 if code == T.STRING else len(stored[1].raw_data)
    assert sorted((t.name, t.shape, t.nbytes) for t in header.tensors) == [
        (t.name, (2, 3), size) for t in reversed(stored)
    ]
    content = (tmp_path / "m.onnx").read_bytes()
    for t in header.tensors:
        assert t.dtype == TYPES[code].dtype
        if t.offset >= 0:  # also what is not raw, where it lies as if it were
            assert content[t.offset : t.offset + size] == stored[-1].raw_data
        else:
            assert t.name == "typed" and code not in (T.FLOAT, T.DOUBLE, T.COMPLEX64)
    assert {t.name for t in header.tensors if t.offset >= 0} >= {t.name for t in stored[1:]}


def test_spelling_of_element_types() -> None:
    spelled = {t.dtype: t for t in TYPES.values()}
    assert len(spelled) == len(TYPES)
    plain = {d: t for d, t in spelled.items() if not d.startswith("ONNX:")}
    assert set(plain) == set(BITS)
    assert all(BITS[d] == t.bits for d, t in plain.items())
    assert plain["F8_E4M3"].name == "FLOAT8E4M3FN" and plain["F4"].name == "FLOAT4E2M1"
    assert spelled["ONNX:STRING"].bits is None and spelled["ONNX:INT4"].bits == 4
    known = {t.name: n for n, t in TYPES.items()}
    installed = {k: v for k, v in T.DataType.items() if v}
    assert installed.items() <= known.items() or onnx.__version__ != MADE_FROM
    assert all(known[k] == v for k, v in installed.items() if k in known)
    assert ml_dtypes.float8_e4m3fn is not None


@pytest.mark.parametrize(
    ("change", "reason", "words"), RULES, ids=lambda v: getattr(v, "__name__", "")
)
def test_rules_are_those_of_verify_package(
    change: Callable[[ModelProto], None], reason: str, words: str, tmp_path: Path
) -> None:
    model = tiny()
    change(model)
    header = read(tmp_path, model)
    findings = read_model(str(tmp_path / "m.onnx"), "m.onnx").findings
    assert reason in codes(header)
    assert sorted(codes(header)) == sorted(str(f.reason) for f in findings)
    text = "\n".join(f"{p.name}: {p.message}" for p in header.problems)
    assert words.removeprefix("initializer 'w'") in text
    assert exit_code(header.problems) == 3
    bad_tensor = {"'w'", "sparse", "training", "Constant", "function own", "inner"}
    if any(w in words for w in bad_tensor) and reason != "recursion":
        assert header.unsound


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (b"", "empty", "0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "not-onnx", "LFS"),
        (b"<!DOCTYPE html><html></html>", "not-onnx", "HTML"),
        (b"PK\x03\x04" + bytes(60), "not-onnx", "zip"),
        (b"\x08\x0a", "no-graph", ""),
        (tiny().SerializeToString()[:-3], "truncated", ""),
        (b"\xff" * 40, "malformed", ""),
        (nested(40), "too-deep", "100"),
        (tiny().SerializeToString().replace(b"relu", b"re\xff\xfe"), "not-utf-8", "Node.name"),
    ],
)
def test_not_a_model(raw: bytes, code: str, words: str, tmp_path: Path) -> None:
    header = read(tmp_path, raw)
    assert codes(header) == [code] and words in header.problems[0].message
    assert read_model(str(tmp_path / "m.onnx"), "m.onnx").findings


def test_a_cut_graph_still_lists_whole_tensors(tmp_path: Path) -> None:
    model = tiny()
    for i in range(5):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(100), f"w{i}"))
    raw = model.SerializeToString()
    header = read(tmp_path, raw[: raw.index(b"w3")])
    assert codes(header) == ["truncated"]
    assert [t.name for t in header.tensors] == ["w", "w0", "w1", "w2"]
    cut = read(tmp_path, raw[: raw.index(b"w3") + 100])
    assert [t.name for t in cut.tensors] == ["w", "w0", "w1", "w2"]
    assert cut.unsound == ["w3"]


def test_ports(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    inputs = [
        info("x", T.FLOAT16, ["batch", 3, None]),
        info("any", T.INT64, None),
        info("w", T.FLOAT, [2]),
        helper.make_tensor_sequence_value_info("list", T.FLOAT, [1]),
        helper.make_value_info(
            "maybe", helper.make_optional_type_proto(helper.make_tensor_type_proto(T.FLOAT, [1]))
        ),
        helper.make_sparse_tensor_value_info("thin", T.FLOAT, [4, 4]),
    ]
    stored = [numpy_helper.from_array(np.zeros(2, np.float32), "w")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        inputs,
        [info("y", T.FLOAT16, [])],
        stored,
    )
    header = read(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    assert header.problems == []
    assert [(p.name, p.dtype, p.shape, p.role) for p in header.ports] == [
        ("x", "F16", ("batch", 3, None), "input"),
        ("any", "I64", None, "input"),
        ("list", "ONNX:SEQUENCE", None, "input"),
        ("maybe", "ONNX:OPTIONAL", None, "input"),
        ("thin", "ONNX:SPARSE_F32", (4, 4), "input"),
        ("y", "F16", (), "output"),
    ]
    record = header.ports[0].record()
    assert record["shape"] == ["batch", 3, None]
    assert (record["nbytes"], record["params"], record["offset"]) == (0, 0, None)


def test_long_properties_are_shortened(tmp_path: Path) -> None:
    model = tiny()
    helper.set_model_props(model, {"short": "é", "long": "x" * (MAX_PROPERTY + 1)})
    header = read(tmp_path, model)
    assert header.problems == []
    assert header.metadata["short"] == "é"
    assert header.metadata["long"] == {
        "type": "text",
        "length": MAX_PROPERTY + 1,
        "head": "x" * 256,
    }


def test_custom_domains_are_information(tmp_path: Path) -> None:
    model = tiny()
    model.opset_import.append(helper.make_opsetid("com.example", 999))
    model.graph.node[1].domain = "com.example"
    model.graph.node[1].op_type = "Whatever"
    header = read(tmp_path, model)
    assert header.problems == []
    assert header.metadata["onnx.operators"]["com.example::Whatever"] == 1


def test_two_nodes_of_one_name(tmp_path: Path) -> None:
    model = tiny()
    for out in "pq":
        value = numpy_helper.from_array(np.zeros(1, np.float32))
        model.graph.node.append(helper.make_node("Constant", [], [out], "k", value=value))
    header = read(tmp_path, model)
    assert header.problems == []
    names = {t.name for t in header.tensors}
    assert names == {"w", "node k (Constant).value", "node k (Constant).value (#2)"}


def test_operators_are_those_of_onnx() -> None:
    if onnx.__version__ == MADE_FROM:
        assert operator_table.FILE.read_text() == operator_table.text()
    for domain, known in onnx_operators.FIRST.items():
        for name in [*known, "Frobnicate"]:
            for version in range(1, NEWEST[domain] + 1):
                try:
                    onnx.defs.get_schema(name, version, domain)
                except onnx.defs.SchemaError:
                    assert onnx.__version__ < MADE_FROM or not exists(name, version, domain)
                else:
                    assert exists(name, version, domain), (name, version)
    assert not exists("Add", 21, "com.example")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(PLACES) - 1), st.integers(0, 255))
def test_one_byte_changed(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    """verify-package and the reader find fault with the same files, bar what only we refuse."""
    folder = tmp_path_factory.getbasetemp()
    header = read(folder, PLACES[:at] + bytes([value]) + PLACES[at + 1 :])
    findings = read_model(str(folder / "m.onnx"), "m.onnx").findings
    own = {"malformed", "too-large", "storage"}  # stricter encoding, unknown data_location
    if findings:
        assert header.problems
    elif set(codes(header)) - own:
        external = {"missing", "no-location", *LOCATIONS.values()}  # not of graph.parse
        assert set(codes(header)) <= external


def test_windows_give_the_same_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(tmp_path, everywhere())
    from ntool.lib.checkpoint import onnx_header

    for module in (protobuf, onnx_header):
        monkeypatch.setattr(module, "WHOLE", 0)
        monkeypatch.setattr(module, "BLOCK", 64)
    parts = again(tmp_path)
    whole.bytes_read = parts.bytes_read = 0
    assert parts == whole
