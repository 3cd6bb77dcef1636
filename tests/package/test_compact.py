"""Packages written anew without the bytes of no tensor."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from ntool.lib.checkpoint.safetensors_header import read_header
from ntool.lib.package import compact, sums

from ..checkpoint.onnx_models import adding, weight
from ..conftest import Ended

Run = Callable[..., Ended]


@pytest.fixture
def package(demo_package: Path, tmp_path: Path) -> Path:
    root = tmp_path / "pkg"
    shutil.copytree(demo_package, root)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_appended_bytes_go_and_nothing_else_changes(
    package: Path, demo_package: Path, tmp_path: Path, ntool: Run
) -> None:
    for component, count in (("decoder", 1), ("embedding", 100_000)):
        with open(package / component / "model.safetensors", "ab") as f:
            f.write(bytes(count))
    found = ntool("verify-package", package, "--no-run", code=1).of("summary")
    assert found[0]["failed_checks"] == ["data.orphans"]
    out = tmp_path / "out"
    done = ntool("verify-package", package, "--no-run", "--compact", out)
    [record] = done.of("file")
    assert (record["role"], record["removed"], record["path"]) == ("package", 100_001, str(out))
    assert contents(out) == contents(demo_package)
    assert sorted(os.listdir(tmp_path)) == ["out", "pkg"]


def test_a_tensor_that_no_graph_uses_goes(package: Path, tmp_path: Path, ntool: Run) -> None:
    data = package / "decoder" / "model.safetensors"
    before = read_header(str(data), "x")
    raw = data.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    end = max(v["data_offsets"][1] for k, v in header.items() if k != "__metadata__")
    header["spare"] = {"dtype": "F32", "shape": [5], "data_offsets": [end, end + 20]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    moved = len(text) - size
    data.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :] + bytes(20))
    graph = package / "decoder" / "model.onnx"
    model = onnx.load(graph, load_external_data=False)
    for t in model.graph.initializer:
        for e in t.external_data:
            e.value = str(int(e.value) + moved) if e.key == "offset" else e.value
    graph.write_bytes(model.SerializeToString())
    report = json.loads((package / "weight-loading-report.json").read_text())
    for target in (t for row in report["tensors"] for t in row["targets"]):
        target["offset"] += moved if target["component"] == "decoder" else 0
    (package / "weight-loading-report.json").write_text(json.dumps(report))
    sums.write(str(package))
    out = tmp_path / "out"
    ntool("verify-package", package, "--no-run", "--compact", out)
    after = read_header(str(out / "decoder" / "model.safetensors"), "x")
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    assert after.metadata == before.metadata
    verdict = ntool(
        "verify-package", out, "--no-run", "--against", "demo:shapes", "--standard-only"
    )
    assert {c["id"] for c in verdict.of("check") if c["ok"] is not True} == set()


def loose(folder: Path) -> np.ndarray:
    """A graph of another tool: weights in w.bin with holes before, between and behind, one used
    twice, one in a branch; the numbers of all of them."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((3, 4)).astype(np.float32)
    model = adding(
        weight("a", location="w.bin", offset="100", length="16"),
        weight("b", location="w.bin", offset="7000", length="16"),
        weight("again", location="w.bin", offset="100", length="16"),
        where="branch",
    )
    empty = onnx.TensorProto(name="none", data_type=1, dims=[0], data_location=1)
    empty.external_data.add(key="location", value="w.bin")
    model.graph.initializer.append(empty)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    raw = bytearray(rng.bytes(9000))
    raw[100:116], raw[7000:7016] = numbers[0].tobytes(), numbers[1].tobytes()
    (folder / "w.bin").write_bytes(raw)
    return numbers


def test_data_of_another_tool_are_aligned(tmp_path: Path, ntool: Run) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    numbers = loose(root)
    (root / "notes.txt").write_text("kept")
    found = ntool("verify-package", root, "--no-run", "--skip", "graph.dead")
    assert any(c.get("reason") == "orphan" for c in found.of("check"))
    ntool("verify-package", root, "--no-run", "--skip", "graph.dead", "--compact", out)
    assert (out / "w.bin").stat().st_size == 64 + 16
    assert (out / "notes.txt").read_text() == "kept"
    model = onnx.load(out / "model.onnx", load_external_data=False)
    inner = next(a.g for a in model.graph.node[0].attribute if a.name == "then_branch")
    places = {t.name: {e.key: e.value for e in t.external_data} for t in inner.initializer}
    assert {n: p["offset"] for n, p in places.items()} == {"a": "0", "b": "64", "again": "0"}
    raw = (out / "w.bin").read_bytes()
    assert raw == numbers[0].tobytes() + bytes(48) + numbers[1].tobytes()
    checked = ntool("verify-package", out, "--no-run", "--check", "data.*").of("check")
    orphan = [c for c in checked if c["id"] == "data.orphans"]
    assert [(c["ok"], c["actual"]) for c in orphan] == [(True, 0)]


def test_one_graph_that_is_named(tmp_path: Path, ntool: Run) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    loose(root)
    (root / "other.txt").write_text("not taken along")
    arguments = ("--no-run", "--skip", "graph.dead", "--compact", out)
    ntool("verify-package", root / "model.onnx", *arguments)
    assert sorted(os.listdir(out)) == ["model.onnx", "w.bin"]


def test_where_it_is_not_written(package: Path, tmp_path: Path, ntool: Run) -> None:
    inside, there = package / "out", tmp_path / "there"
    there.mkdir()
    (there / "work.txt").write_text("mine")
    for out, words in ((package, "one is or holds"), (inside, "one is or holds"),
                       (tmp_path, "one is or holds"), (there, "exists")):  # fmt: skip
        done = ntool("verify-package", package, "--check", "data.path", "--compact", out, code=2)
        assert words in done.err
    arguments = ("verify-package", package, "--check", "data.path", "--compact", there)
    assert "holds no package.json" in ntool(*arguments, "--force", code=2).err
    assert (there / "work.txt").read_text() == "mine"
    assert "--compact" in ntool("verify-package", package, "--force", code=2).err
    assert "not piped" in ntool("verify-package", package, "--compact", "-", code=2).err
    shutil.copy(package / "package.json", there)
    ntool(*arguments, "--force")
    assert contents(there) == contents(package)


@pytest.mark.parametrize(
    ("out", "code", "words"),
    [
        ("there", 2, "output 'there' exists"),
        ("work.txt", 2, "is not a folder"),
        ("work.txt/out", 4, "no folder 'work.txt'"),
        ("work.txt/more/out", 4, "no folder 'work.txt/more'"),
        ("loop", 2, "is not a folder"),
        ("x" * 300, 6, "cannot write: File name too long"),
        ("", 2, "expected a folder name"),
    ],
)
def test_outputs_are_judged_before_the_first_check(
    out: str, code: int, words: str, package: Path, tmp_path: Path, ntool: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    os.mkdir("there")
    Path("there/work.txt").write_text("mine")
    Path("work.txt").write_text("mine")
    os.symlink("loop", "loop")
    before = contents(tmp_path)
    done = ntool("verify-package", package, "--no-run", "--compact", out, code=code)
    assert words in done.err and done.of("check") == []
    assert contents(tmp_path) == before


def test_nothing_that_is_read_or_written_is_replaced(
    package: Path, tmp_path: Path, ntool: Run
) -> None:
    """A package with the page or a golden in it is not what --compact --force may replace."""
    out = tmp_path / "out"
    shutil.copytree(package, out)
    shutil.copy(package / "package.json", out / "sums")
    check = ("verify-package", package, "--check", "data.*", "--compact", out, "--force")
    for option in (("--report", out / "r.html"), ("--manifest", out / "sums")):
        done = ntool(*check, *option, code=2)
        assert "one is or holds" in done.err and done.of("check") == []


def test_a_link_stays_and_what_it_leads_to_is_replaced(
    package: Path, tmp_path: Path, ntool: Run
) -> None:
    """As with every other output, and with `cp` into a link."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    shutil.copy(package / "package.json", target)
    (target / "old.txt").write_text("of the package before")
    link.symlink_to("target")
    ntool("verify-package", package, "--no-run", "--compact", link, code=2)
    ntool("verify-package", package, "--no-run", "--compact", link, "--force")
    assert os.readlink(link) == "target" and not target.is_symlink()
    assert contents(target) == contents(package)
    assert sorted(os.listdir(tmp_path)) == ["link", "pkg", "target"]
    # a link to the package itself is the package
    link.unlink()
    link.symlink_to("pkg")
    before = contents(package)
    done = ntool("verify-package", package, "--no-run", "--compact", link, "--force", code=2)
    assert "one is or holds" in done.err and contents(package) == before


def test_a_package_that_does_not_hold_is_not_written(
    package: Path, tmp_path: Path, ntool: Run
) -> None:
    (package / "embedding" / "model.onnx").write_bytes(b"\x08\x0a")
    out = tmp_path / "out"
    done = ntool("verify-package", package, "--no-run", "--compact", out, code=1)
    assert f"{out} not written" in done.err
    ntool("verify-package", package, "--check", "layout.schema", "--compact", out, code=1)
    assert sorted(os.listdir(tmp_path)) == ["pkg"]


def test_a_full_disk_leaves_nothing(
    package: Path, tmp_path: Path, ntool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    real = compact.write_data

    def full(path: Path, *rest: object) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compact, "write_data", full)
    out = tmp_path / "out"
    done = ntool("verify-package", package, "--check", "data.path", "--compact", out, code=6)
    assert "No space left" in done.err and len(written) == 3
    assert sorted(os.listdir(tmp_path)) == ["pkg"]


def test_killed_at_any_moment(package: Path, tmp_path: Path) -> None:
    """What appears is whole; the next run succeeds, and removes what the killed one left."""
    with open(package / "decoder" / "model.safetensors", "ab") as f:
        f.write(bytes(100))
    command = [
        sys.executable,
        "-m",
        "ntool",
        "verify-package",
        str(package),
        "--check",
        "data.path",
    ]
    command += ["--compact", str(tmp_path / "out")]
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole, seconds = contents(tmp_path / "out"), time.monotonic() - started
    rng = random.Random(4)
    for i in range(6):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            # the first half of a run only starts up
            time.sleep(seconds * rng.uniform(0.5, 1.0))
            process.kill()
        if (tmp_path / "out").exists():
            assert contents(tmp_path / "out") == whole, i
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    subprocess.run(command, check=True, capture_output=True)
    assert contents(tmp_path / "out") == whole
    assert sorted(os.listdir(tmp_path)) == ["out", "pkg"]


def test_tensors_that_overlap_in_part(tmp_path: Path, ntool: Run) -> None:
    root = tmp_path / "in"
    root.mkdir()
    two = [weight(n, location="w.bin", offset=o, length="16") for n, o in (("a", "0"), ("b", "8"))]
    (root / "model.onnx").write_bytes(adding(*two).SerializeToString())
    (root / "w.bin").write_bytes(bytes(24))
    out = tmp_path / "out"
    done = ntool("verify-package", root, "--check", "graph.parse", "--compact", out, code=5)
    assert "overlap in part" in done.err
    assert not out.exists()


def test_a_graph_stays_what_was_read(package: Path) -> None:
    """Writing changes the model for a moment only."""
    from ntool.lib.package.checks.subject import Subject

    subject = Subject(str(package))
    raw = [p.model.SerializeToString(deterministic=True) for p in subject.parts]
    compact.write(subject, package.parent / "out")
    assert [p.model.SerializeToString(deterministic=True) for p in subject.parts] == raw
    assert filecmp.cmp(package / "package.json", package.parent / "out" / "package.json")
