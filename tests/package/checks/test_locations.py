"""data.path and data.bounds: each rule about locations and numbers with its own reason."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from package_faults import FLOAT, findings

from ntool.lib.package.checks.subject import Finding

ALL = ("graph.*", "data.*")


def model(*weights: TensorProto, where: str = "initializer") -> onnx.ModelProto:
    """y = x + all weights; with the weights as initializers, constants, or in a branch."""
    x = helper.make_tensor_value_info("x", FLOAT, [4])
    nodes, last = [], "x"
    for w in weights:
        if where == "constant":
            nodes.append(helper.make_node("Constant", [], [w.name], f"make {w.name}", value=w))
        nodes.append(helper.make_node("Add", [last, w.name], [f"{w.name}+"], f"add {w.name}"))
        last = f"{w.name}+"
    y = helper.make_tensor_value_info(last, FLOAT, [4])
    stored = list(weights) if where != "constant" else []
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    if where == "branch":
        graph.name, inner = "inner", graph
        del inner.input[:]
        other = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["n"])],
            "other",
            [],
            [helper.make_tensor_value_info("n", FLOAT, [4])],
        )
        top = helper.make_node("If", ["c"], ["z"], "if", then_branch=inner, else_branch=other)
        c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
        z = helper.make_tensor_value_info("z", FLOAT, [4])
        graph = helper.make_graph([top], "g", [x, c], [z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def weight(name: str = "w", **external: str) -> TensorProto:
    """A float32 [4] tensor in another file."""
    t = TensorProto(name=name, data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in external.items():
        t.external_data.add(key=key, value=value)
    return t


def build(folder: Path, *weights: TensorProto, where: str = "initializer", size: int = 16) -> Path:
    """folder/pkg/model.onnx and its w.bin; a file outside that a location could reach."""
    (folder / "outside.bin").write_bytes(bytes(64))
    pkg = folder / "pkg"
    pkg.mkdir()
    (pkg / "w.bin").write_bytes(np.arange(size, dtype=np.uint8).tobytes())
    (pkg / "model.onnx").write_bytes(model(*weights, where=where).SerializeToString())
    return pkg


def reasons(path: Path) -> list[tuple[str, str | None]]:
    return [(i, f.reason) for i, f in findings(path, check=ALL) if f.ok is False]


def warnings(path: Path) -> list[tuple[str, Finding]]:
    return [(i, f) for i, f in findings(path, check=ALL) if f.warning]


LOCATIONS = {
    "../outside.bin": "traversal",
    "sub/../../outside.bin": "traversal",
    "w.bin/..": "traversal",
    "./w.bin": "segment",
    "a//w.bin": "segment",
    "w.bin/": "segment",
    ".": "segment",
    "": "empty",
    "/etc/hostname": "absolute",
    "w.bin\0.txt": "nul",
    "..\\outside.bin": "backslash",
    "C:w.bin": "drive",
    "C:/w.bin": "drive",
    "w.bin:stream": "drive",
    "w\n.bin": "control-character",
    "w\x7f.bin": "control-character",
    "w.bin.": "trailing-dot",
    "w.bin ": "trailing-dot",
    "absent.bin": "missing",
}


@pytest.mark.parametrize("where", ["initializer", "constant", "branch"])
@pytest.mark.parametrize("location", LOCATIONS)
def test_location_is_refused_for_its_own_reason(location: str, where: str, tmp_path: Path) -> None:
    pkg = build(tmp_path, weight(location=location), where=where)
    assert reasons(pkg) == [("data.path", LOCATIONS[location])]


@pytest.mark.parametrize("location", ["model..v2.bin", "..w.bin", "sub/w.bin", "wé.bin"])
def test_odd_but_plain_locations(location: str, tmp_path: Path) -> None:
    pkg = build(tmp_path, weight(location=location))
    (pkg / location).parent.mkdir(exist_ok=True)
    (pkg / location).write_bytes(bytes(16))
    assert reasons(pkg) == [] and warnings(pkg) == []


def test_links_out(tmp_path: Path) -> None:
    pkg = build(tmp_path, weight("a", location="a.bin"), weight("b", location="data/b.bin"))
    os.symlink(tmp_path / "outside.bin", pkg / "a.bin")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "b.bin").write_bytes(bytes(16))
    os.symlink(tmp_path / "secret", pkg / "data")
    assert reasons(pkg) == [("data.path", "symlink-out")] * 2


def test_links_out_from_inside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare file name once made the base folder the empty string, and containment void."""
    pkg = build(tmp_path, weight(location="data/w.bin"))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "w.bin").write_bytes(bytes(16))
    os.symlink("../secret", pkg / "data")
    monkeypatch.chdir(pkg)
    assert reasons(Path("model.onnx")) == [("data.path", "symlink-out")]
    assert reasons(Path(".")) == [("data.path", "symlink-out")]


def test_pipe_and_folder(tmp_path: Path) -> None:
    pkg = build(tmp_path, weight("a", location="pipe"), weight("b", location="folder"))
    os.mkfifo(pkg / "pipe")
    (pkg / "folder").mkdir()
    assert reasons(pkg) == [("data.path", "device")] * 2


def test_hard_link_warns(tmp_path: Path) -> None:
    pkg = build(tmp_path, weight(location="hard.bin"))
    (pkg / "w.bin").unlink()
    (tmp_path / "outside.bin").write_bytes(bytes(16))
    os.link(tmp_path / "outside.bin", pkg / "hard.bin")
    assert reasons(pkg) == []
    ((check, finding),) = warnings(pkg)
    assert (check, finding.reason) == ("data.path", "hard-link")
    assert "onnx.load" in finding.message


def test_link_inside_warns(tmp_path: Path) -> None:
    pkg = build(tmp_path, weight(location="link.bin"))
    os.symlink("w.bin", pkg / "link.bin")
    assert reasons(pkg) == []
    assert [(i, f.reason) for i, f in warnings(pkg)] == [("data.path", "symlink")]


NUMBERS = {
    ("abc", None): "bad-number",
    ("-1", None): "bad-number",
    ("+1", None): "bad-number",
    (" 0", None): "bad-number",
    ("0x0", None): "bad-number",
    ("1_0", None): "bad-number",
    ("\u0661", None): "bad-number",
    ("1.0", None): "bad-number",
    ("", None): "bad-number",
    ("9" * 30, None): "bad-number",
    (str(2**63), None): "bad-number",
    ("0", "16 "): "bad-number",
    ("0", "15"): "length",
    ("0", "17"): "length",
    ("1", "16"): "out-of-range",
    ("1", None): "out-of-range",
    (str(2**63 - 1), "16"): "out-of-range",
}


@pytest.mark.parametrize(("offset", "length"), NUMBERS)
def test_numbers(offset: str, length: str | None, tmp_path: Path) -> None:
    given = {"location": "w.bin", "offset": offset}
    if length is not None:
        given["length"] = length
    assert reasons(build(tmp_path, weight(**given))) == [("data.bounds", NUMBERS[offset, length])]


def test_overlap_and_shared_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    a = build(
        tmp_path / "a",
        weight("a", location="w.bin", offset="0"),
        weight("b", location="w.bin", offset="8"),
        size=24,
    )
    assert reasons(a) == [("data.bounds", "overlap")]
    (tmp_path / "b").mkdir()
    b = build(tmp_path / "b", weight("a", location="w.bin"), weight("b", location="w.bin"))
    assert reasons(b) == []
    assert [(i, f.reason) for i, f in warnings(b)] == [("data.bounds", "shared")]


def test_orphans_and_padding(tmp_path: Path) -> None:
    """Zeros between tensors are alignment; other bytes, and bytes at the end, are orphans."""
    pkg = build(
        tmp_path,
        weight("a", location="w.bin", offset="0"),
        weight("b", location="w.bin", offset="4096"),
    )
    (pkg / "w.bin").write_bytes(bytes(4096 + 16))
    assert reasons(pkg) == [] and warnings(pkg) == []
    (pkg / "w.bin").write_bytes(bytes(100) + b"x" + bytes(4096 + 16 - 101))
    ((check, finding),) = warnings(pkg)
    assert (check, finding.actual) == ("data.orphans", 4080)
    (pkg / "w.bin").write_bytes(bytes(4096 + 16 + 8))
    ((check, finding),) = warnings(pkg)
    assert (check, finding.actual) == ("data.orphans", 8)


def test_a_file_shared_by_two_graphs_has_no_orphans(tmp_path: Path) -> None:
    pkg = build(tmp_path, weight(location="w.bin", offset="0"), size=32)
    second = model(weight(location="w.bin", offset="16"))
    (pkg / "second.onnx").write_bytes(second.SerializeToString())
    assert reasons(pkg) == [] and warnings(pkg) == []


def test_weights_inside_a_safetensors_header(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    pkg = build(tmp_path, weight(location="w.safetensors", offset="8"))
    save_file({"w": np.zeros(4, np.float32)}, pkg / "w.safetensors")
    assert reasons(pkg) == [("data.bounds", "in-header")]
