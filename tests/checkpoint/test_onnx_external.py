"""The own reader of ONNX headers: data outside the graph, which it does not open, and bounds of
time and memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from onnx import TensorProto

from ntool.lib.checkpoint.onnx_header import OnnxHeader

from .onnx_models import (
    LOCATIONS,
    NUMBERS,
    adding,
    field,
    varint,
    weight,
)
from .onnx_reading import again, codes, read, rows

T = TensorProto


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
