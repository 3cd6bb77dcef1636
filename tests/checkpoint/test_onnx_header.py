"""The own reader of ONNX headers, against the onnx package and against verify-package."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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
from ntool.lib.checkpoint.folder import LocalFolder
from ntool.lib.checkpoint.onnx_header import MAX_PROPERTY, OnnxHeader, onnx_header_of
from ntool.lib.checkpoint.onnx_operators import MADE_FROM, NEWEST, exists
from ntool.lib.checkpoint.onnx_types import TYPES
from ntool.lib.checkpoint.tensor import BITS, exit_code
from ntool.lib.package.checks.parse import read_model

from . import operator_table
from .onnx_models import (
    LOCATIONS,
    NUMBERS,
    RULES,
    adding,
    everywhere,
    field,
    nested,
    tiny,
    varint,
    weight,
)

T = TensorProto
PLACES = everywhere().SerializeToString()


def read(folder: Path, model: ModelProto | bytes, name: str = "m.onnx") -> OnnxHeader:
    raw = model if isinstance(model, bytes) else model.SerializeToString()
    (folder / name).write_bytes(raw)
    return again(folder, name)


def again(folder: Path, name: str = "m.onnx") -> OnnxHeader:
    header = onnx_header_of(LocalFolder(str(folder), named=name), name)
    assert all(p.malformed for p in header.problems if p.severity == "error")
    assert all(p.severity in ("error", "info") for p in header.problems)
    return header


def codes(header: OnnxHeader) -> list[str]:
    return [p.code for p in header.problems]


def rows(header: OnnxHeader) -> list[tuple[Any, ...]]:
    return [(t.name, t.dtype, t.shape, t.file, t.nbytes) for t in header.tensors]


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


def test_larger_than_protobuf_allows_is_listed_and_told(tmp_path: Path) -> None:
    size = 1 << 30
    tensor = field(8, b"w") + b"\x08" + varint(size // 4) + b"\x10\x01" + varint(74) + varint(size)
    with open(tmp_path / "m.onnx", "wb") as f:
        f.write(b"\x08\x0a\x42\x02\x10\x15")
        inner = varint(42) + varint(len(tensor) + size) + tensor
        f.write(varint(58) + varint(2 * (len(inner) + size)))
        for name in (b"w", b"v"):
            f.write(inner.replace(b"w", name, 1))
            f.seek(size, 1)
        f.truncate()
    header = again(tmp_path)
    assert codes(header) == ["too-large"]
    assert [(t.name, t.nbytes) for t in header.tensors] == [("w", size), ("v", size)]
    assert header.bytes_read < 1 << 20


def build(folder: Path, *weights: TensorProto, where: str = "initializer", size: int = 16) -> Path:
    (folder / "outside.bin").write_bytes(bytes(64))
    inside = folder / "pkg"
    inside.mkdir()
    (inside / "w.bin").write_bytes(bytes(size))
    (inside / "m.onnx").write_bytes(adding(*weights, where=where).SerializeToString())
    return inside


@pytest.mark.parametrize("where", ["initializer", "constant", "branch"])
@pytest.mark.parametrize("location", LOCATIONS)
def test_locations(location: str, where: str, tmp_path: Path) -> None:
    header = again(build(tmp_path, weight(location=location), where=where))
    assert codes(header) == [LOCATIONS[location]]
    if location == "absent.bin":  # the graph says all there is to know
        assert [t.shape for t in header.tensors] == [(4,)]
    else:
        assert header.tensors == [] and len(header.unsound) == 1
    assert "'w'" in header.problems[0].message or "make w" in header.problems[0].message


@pytest.mark.parametrize("location", ["model..v2.bin", "..w.bin", "sub/w.bin", "wé.bin"])
def test_odd_but_plain_locations(location: str, tmp_path: Path) -> None:
    inside = build(tmp_path, weight(location=location))
    (inside / location).parent.mkdir(exist_ok=True)
    (inside / location).write_bytes(bytes(16))
    header = again(inside)
    assert header.problems == [] and rows(header) == [("w", "F32", (4,), location, 16)]


@pytest.mark.parametrize(("offset", "length"), NUMBERS)
def test_numbers(offset: str, length: str | None, tmp_path: Path) -> None:
    given = {"location": "w.bin", "offset": offset}
    if length is not None:
        given["length"] = length
    header = again(build(tmp_path, weight(**given)))
    assert codes(header) == [NUMBERS[offset, length]]
    assert header.problems[0].name == "w" and header.unsound == ["w"]


def test_external_ranges(tmp_path: Path) -> None:
    header = again(
        build(
            tmp_path,
            weight("b", location="w.bin", offset="32", length="16"),
            weight("a", location="w.bin", offset="0"),
            weight("c", location="w.bin", checksum="0" * 40, offset="48"),
            size=64,
        )
    )
    assert header.problems == []
    assert [(t.name, t.file, t.offset) for t in header.tensors] == [
        ("a", "w.bin", 0),
        ("b", "w.bin", 32),
        ("c", "w.bin", 48),
    ]
    data = header.data_files["w.bin"]
    assert (data.nbytes, data.covered) == (64, 48)


def test_overlap_and_shared_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    a, b = (weight(n, location="w.bin", offset=o) for n, o in (("a", "0"), ("b", "8")))
    overlap = again(build(tmp_path / "a", a, b, size=24))
    assert codes(overlap) == ["overlap"]
    assert "'a'" in overlap.problems[0].message and "'b'" in overlap.problems[0].message
    (tmp_path / "b").mkdir()
    shared = again(
        build(tmp_path / "b", weight("a", location="w.bin"), weight("b", location="w.bin"))
    )
    assert [(p.code, p.severity) for p in shared.problems] == [("shared", "info")]
    assert shared.data_files["w.bin"].covered == 16


def test_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = build(
        tmp_path,
        weight("a", location="a.bin"),
        weight("b", location="data/b.bin"),
        weight("c", location="link.bin"),
        weight("d", location="hard.bin"),
        weight("e", location="dangling.bin"),
        weight("f", location="pipe"),
        weight("g", location="folder"),
    )
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "b.bin").write_bytes(bytes(16))
    os.symlink(tmp_path / "outside.bin", inside / "a.bin")
    os.symlink("../secret", inside / "data")
    os.symlink("w.bin", inside / "link.bin")
    os.link(inside / "w.bin", inside / "hard.bin")
    os.symlink("nowhere", inside / "dangling.bin")
    os.mkfifo(inside / "pipe")
    (inside / "folder").mkdir()
    expected = ["symlink-out", "symlink-out", "missing", "device", "device"]
    header = again(inside)
    assert codes(header) == expected
    assert {t.name for t in header.tensors} == {"c", "d", "e"}
    assert set(header.unsound) == {"a", "b", "f", "g"}
    assert all(str(tmp_path / "secret") not in t.file for t in header.tensors)
    monkeypatch.chdir(inside)  # a bare name from inside: the base is absolute all the same
    from ntool.lib.checkpoint.source import open_checkpoint

    assert [p.code for p in open_checkpoint("m.onnx").problems] == expected


def test_hub_cache_snapshot(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "1").write_bytes(adding(weight(location="d")).SerializeToString())
    (repository / "blobs" / "2").write_bytes(bytes(16))
    (snapshot / "m.onnx").symlink_to("../../blobs/1")
    (snapshot / "d").symlink_to("../../blobs/2")
    header = again(snapshot)
    assert header.problems == [] and rows(header) == [("w", "F32", (4,), "d", 16)]


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


def in_seconds(folder: Path, raw: bytes, limit: float = 3) -> OnnxHeader:
    """The header of a file that is made to be expensive."""
    started = time.perf_counter()
    header = read(folder, b"\x08\x0a\x42\x02\x10\x15" + raw)
    assert time.perf_counter() - started < limit
    return header


def test_many_branches_do_not_copy_many_names(tmp_path: Path) -> None:
    branch = field(5, field(1, b"then_branch") + field(6, field(2, b"")))
    nodes = [
        field(1, field(2, b"v%d" % i) + field(4, b"If") + field(1, b"c") + branch)
        for i in range(40_000)
    ]
    header = in_seconds(tmp_path, field(7, b"".join(nodes) + field(11, field(1, b"c"))))
    assert header.problems == []


def test_a_long_chain_of_functions(tmp_path: Path) -> None:
    def function(i: int, calls: int) -> bytes:
        node = field(7, field(4, b"f%d" % calls) + field(7, b"d"))
        opset = field(9, field(1, b"d") + b"\x10\x01")
        return field(25, field(1, b"f%d" % i) + field(10, b"d") + node + opset)

    chain = [function(i, i + 1) for i in range(20_000)]
    assert in_seconds(tmp_path, field(7, b"") + b"".join(chain)).problems == []
    header = in_seconds(tmp_path, field(7, b"") + b"".join([*chain, function(20_000, 0)]))
    assert set(codes(header)) == {"recursion", "more-problems"}


def test_a_long_name_is_not_repeated_for_each_tensor_below(tmp_path: Path) -> None:
    body = field(5, b"\x10\x01\x08\x00" + field(8, b"t")) * 20_000
    node = field(4, b"If") + field(3, b"N" * 60_000) + field(5, field(1, b"g") + field(6, body))
    header = in_seconds(tmp_path, field(7, field(1, node)))
    assert len(header.tensors) == 20_000
    assert max(len(t.name) for t in header.tensors) < 1000


def test_only_so_many_faults_are_kept(tmp_path: Path) -> None:
    nodes = [field(1, field(4, b"Frob") + field(1, b"g%d" % i)) for i in range(100_000)]
    header = in_seconds(tmp_path, field(7, b"".join(nodes)))
    assert len(header.problems) == 1001 and codes(header)[-1] == "more-problems"


AUDIT = """
import sys
seen = []
sys.addaudithook(lambda event, args: seen.append(args[0]) if event == "open" else None)
from ntool.lib.checkpoint.source import open_checkpoint
import ntool.lib.checkpoint.onnx_set
del seen[:]
checkpoint = open_checkpoint(sys.argv[1])
assert len(checkpoint.tensors) == int(sys.argv[2]), checkpoint.problems
assert not {"onnx", "numpy", "google"} & set(sys.modules)
print(*seen, sep="\\n")
"""


def test_no_data_file_is_opened(tmp_path: Path) -> None:
    inside = build(
        tmp_path,
        weight("a", location="w.bin"),
        weight("b", location="../outside.bin"),
        weight("c", location="out.bin"),
    )
    os.symlink(tmp_path / "outside.bin", inside / "out.bin")
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(inside / "m.onnx"), "1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(inside / "m.onnx")]


MEASURE = """
import sys, time
started = time.perf_counter()
from ntool.guard import run
code = run(["inspect-headers", sys.argv[1]])
seconds = time.perf_counter() - started
# the process's own peak: ru_maxrss would be that of the process that started it, if that is larger
rows = open("/proc/self/status").read().splitlines() if sys.platform == "linux" else []
print(seconds, *(r.split()[1] for r in rows if r.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""


def test_100_gigabytes_beside_the_graph(tmp_path: Path) -> None:
    size = 100 << 30
    big = TensorProto(name="w", data_type=T.FLOAT, dims=[size // 4], data_location=T.EXTERNAL)
    big.external_data.add(key="location", value="w.bin")
    inside = build(tmp_path, big)
    os.truncate(inside / "w.bin", size)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(inside / "m.onnx")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f'"nbytes":{size}' in done.stdout
    seconds, *peak = map(float, done.stderr.split())
    assert seconds < 2
    assert all(p < 300 << 10 for p in peak)  # kilobytes
    assert peak or sys.platform != "linux"


def test_windows_give_the_same_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(tmp_path, everywhere())
    from ntool.lib.checkpoint import onnx_header

    for module in (protobuf, onnx_header):
        monkeypatch.setattr(module, "WHOLE", 0)
        monkeypatch.setattr(module, "BLOCK", 64)
    parts = again(tmp_path)
    whole.bytes_read = parts.bytes_read = 0
    assert parts == whole
