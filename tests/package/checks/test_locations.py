"""data.path and data.bounds: each rule about locations and numbers with its own reason."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from package_faults import findings

from ntool.lib.package.checks.subject import Finding
from tests.checkpoint.onnx_models import LOCATIONS, NUMBERS, adding, weight

ALL = ("graph.*", "data.*")


def build(folder: Path, *weights: TensorProto, where: str = "initializer", size: int = 16) -> Path:
    """folder/pkg/model.onnx and its w.bin; a file outside that a location could reach."""
    (folder / "outside.bin").write_bytes(bytes(64))
    pkg = folder / "pkg"
    pkg.mkdir()
    (pkg / "w.bin").write_bytes(np.arange(size, dtype=np.uint8).tobytes())
    (pkg / "model.onnx").write_bytes(adding(*weights, where=where).SerializeToString())
    return pkg


def reasons(path: Path) -> list[tuple[str, str | None]]:
    return [(i, f.reason) for i, f in findings(path, check=ALL) if f.ok is False]


def warnings(path: Path) -> list[tuple[str, Finding]]:
    return [(i, f) for i, f in findings(path, check=ALL) if f.warning]


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
    second = adding(weight(location="w.bin", offset="16"))
    (pkg / "second.onnx").write_bytes(second.SerializeToString())
    assert reasons(pkg) == [] and warnings(pkg) == []


def test_weights_inside_a_safetensors_header(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    pkg = build(tmp_path, weight(location="w.safetensors", offset="8"))
    save_file({"w": np.zeros(4, np.float32)}, pkg / "w.safetensors")
    assert reasons(pkg) == [("data.bounds", "in-header")]
