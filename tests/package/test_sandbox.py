"""Checks in a process of their own: what ends that process is a finding, and the rest goes on."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import SourceNotFound
from ntool.lib.package import export, verify
from ntool.lib.package.checks import catalogue, graph, parse
from ntool.lib.package.checks.subject import Check, Finding, Options, Part, Subject
from ntool.lib.package.limits import Limits, limits_for
from ntool.lib.package.sandbox import MAX_ENDS, Sandbox

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LIMITS = Limits(60, 4 << 30)
Found = list[tuple[str, Finding]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two components, one of which embeds a picture of any size; never changed."""
    out = tmp_path_factory.mktemp("sandbox") / "pkg"
    export.write(export.plan(open_checkpoint("demo:shapes"), ["embedding", "image_gen_embedding"]),
                 out)  # fmt: skip
    return out


@pytest.fixture
def package(exported: Path, tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "pkg"
    shutil.copytree(exported, root)
    yield root
    shutil.rmtree(root)


def checked(
    path: Path,
    *ids: str,
    limits: Limits = LIMITS,
    how: str = "fork",
    options: Options | None = None,
) -> Found:
    """Findings of a package whose checks run in a process of their own."""
    subject = Subject(str(path), options or Options())
    with Sandbox(subject, limits, how) as sandbox:
        sandbox.open_source()
        return list(verify.verify(subject, verify.select(ids), (), sandbox.run))


def faults(found: Found) -> list[tuple[str, str | None, str | None]]:
    return [(i, f.component, f.reason) for i, f in found if f.ok is False]


def without(found: Found, *ids: str) -> list[tuple[str, str | None, bool | None]]:
    return [(i, f.component, f.ok) for i, f in found if i not in ids]


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put another function in the place of a check's."""

    def replace(check_id: str, run: Any) -> None:
        old = catalogue.BY_ID[check_id]
        new = Check(old.id, old.holds, run, old.needs, old.package, old.plain)
        monkeypatch.setitem(catalogue.BY_ID, check_id, new)

    return replace


def crash(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


# -- one fault, one finding ------------------------------------------------------------------------


def test_a_sound_package_is_the_same_inside_and_outside(exported: Path) -> None:
    inside = checked(exported)
    assert inside == checked(exported, how="none")
    assert not faults(inside) and any(i == "run.finite" and f.ok for i, f in inside)


def test_in_a_program_of_its_own(exported: Path) -> None:
    """What systems have that cannot fork, and what CUDA asks for."""
    ids = ("layout.*", "graph.*", "data.hash")
    assert checked(exported, *ids, how="program") == checked(exported, *ids, how="none")


def test_a_crash_is_a_finding_of_its_check(exported: Path, sabotage: Any) -> None:
    usual = checked(exported, how="none")
    old = catalogue.BY_ID["graph.dead"].run
    sabotage("graph.dead", lambda s, p: crash() if p.name == "embedding" else old(s, p))
    found = checked(exported)
    assert faults(found) == [("graph.dead", "embedding", "crashed")]
    (finding,) = [f for _, f in found if f.ok is False]
    assert "SIGSEGV" in finding.message and finding.message.startswith("embedding/model.onnx: ")
    assert without(found, "graph.dead") == without(usual, "graph.dead")
    assert ("graph.dead", True) in [(i, f.ok) for i, f in found]


def test_a_crash_of_the_reader_belongs_to_graph_parse(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever check is the first to need the graph."""
    read = parse.read_model

    def reading(path: str, file: str) -> Any:
        return crash() if file.startswith("embedding") else read(path, file)

    monkeypatch.setattr(parse, "read_model", reading)
    for ids in ((), ("flow.ports",), ("data.orphans",)):
        found = checked(exported, *ids)
        assert faults(found) == [("graph.parse", "embedding", "crashed")], ids
    held = {i for i, f in checked(exported) if f.ok and f.component == "image_gen_embedding"}
    assert {"graph.types", "data.orphans", "run.load"} <= held


def test_a_crash_of_inference(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks tell of inference; others go on without types."""
    monkeypatch.setattr(graph.onnx.shape_inference, "infer_shapes", crash)
    found = checked(exported, "graph.*", "dtype.policy")
    crashed = {(i, c) for i, c, reason in faults(found) if reason == "crashed"}
    names = ("embedding", "image_gen_embedding")
    assert crashed == {(i, n) for i in ("graph.checker", "graph.types") for n in names}
    assert len(faults(found)) == 4


def test_an_endless_check(exported: Path, sabotage: Any) -> None:
    def endless(subject: Subject, part: Part) -> list[Finding]:
        while part.name == "embedding":
            pass
        return []

    sabotage("graph.dead", endless)
    found = checked(exported, "graph.*", limits=Limits(0.5, None))
    assert faults(found) == [("graph.dead", "embedding", "time")]
    (finding,) = [f for _, f in found if f.ok is False]
    assert "0.5 s" in finding.message + str(finding.expected)


def test_reading_bytes_has_no_end_of_time(exported: Path, sabotage: Any) -> None:
    sabotage("data.orphans", lambda s, p: time.sleep(0.4) or [])
    found = checked(exported, "data.*", limits=Limits(0.3, None))
    assert not faults(found)


def test_a_check_that_takes_all_memory(exported: Path, sabotage: Any) -> None:
    def greedy(subject: Subject, part: Part) -> list[Finding]:
        bytearray(1 << 28)
        return []

    sabotage("graph.dead", greedy)
    found = checked(exported, "graph.*", limits=Limits(60, 1 << 27))
    expected = [("graph.dead", c, "memory") for c in ("embedding", "image_gen_embedding")]
    assert faults(found) == expected
    assert {f.expected for _, f in found if f.ok is False} == {"<= 128 MiB"}
    assert not faults(checked(exported, "graph.*", limits=Limits(60, 1 << 29)))


def test_bugs_and_errors_come_through(exported: Path, sabotage: Any) -> None:
    def wrong(subject: Subject, part: Part) -> list[Finding]:
        raise ZeroDivisionError("of a check")

    sabotage("graph.dead", wrong)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: of a check"):
        checked(exported, "graph.dead")
    with pytest.raises(SourceNotFound, match="no-such-checkpoint"):
        checked(exported, "graph.*", options=Options(against="./no-such-checkpoint"))


def test_it_gives_up_at_last(exported: Path, sabotage: Any) -> None:
    for check in catalogue.CHECKS:
        sabotage(check.id, crash)
    found = checked(exported, "data.*", "graph.*", "layout.*")
    crashed = [f for _, f in found if f.reason == "crashed"]
    assert 1 <= len(crashed) <= MAX_ENDS
    assert not any(f.ok for _, f in found)


def test_nothing_is_left_behind(
    exported: Path, sabotage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sabotage("graph.types", crash)
    children = Path("/proc/thread-self/children")
    before = children.read_text()  # a server of the tests may be one
    assert len(faults(checked(exported, "graph.*"))) == 2
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert children.read_text() == before


def test_what_a_report_needs_of_graphs(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes by element type are counted where graphs are parsed, also after a crash."""
    expected = {p.name: p.dtypes for p in Subject(str(exported)).parts}
    assert all(expected.values())
    read = parse.read_model

    def reading(path: str, file: str) -> Any:
        return crash() if file.startswith("embedding") else read(path, file)

    for reader, known in ((read, expected), (reading, {**expected, "embedding": None})):
        monkeypatch.setattr(parse, "read_model", reader)
        subject = Subject(str(exported))
        with Sandbox(subject, LIMITS, "fork") as sandbox:
            sandbox.read_dtypes()
        monkeypatch.setattr(parse, "read_model", crash)
        assert {p.name: p.dtypes for p in subject.parts} == known


# -- graphs that ONNX Runtime is lost in -----------------------------------------------------------


def loop_for_ever(model: onnx.ModelProto) -> None:
    """Nodes in front of all others that never end, for any input."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["v", "v"], ["w"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("go_on", BOOL, []),
         helper.make_tensor_value_info("w", FLOAT, [1])],
    )  # fmt: skip
    _in_front(model, helper.make_node("Loop", ["", "yes", "noise_scale"], ["patched"], body=body))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))


def expand(model: onnx.ModelProto) -> None:
    """64 GiB of a number, of which one is taken."""
    nodes = [
        helper.make_node("Expand", ["noise_scale", "many"], ["wide"]),
        helper.make_node("ReduceMax", ["wide"], ["patched"], keepdims=1),
    ]
    _in_front(model, *nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 34]), "many"))


def _in_front(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    rest = list(model.graph.node)
    for node in rest:
        node.input[:] = ["patched" if n == "noise_scale" else n for n in node.input]
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
    for tensor in model.graph.initializer:
        assert tensor.name not in ("yes", "many")


@pytest.mark.parametrize(("damage", "reason"), [(loop_for_ever, "time"), (expand, "memory")])
def test_a_run_that_does_not_end(package: Path, damage: Any, reason: str) -> None:
    path = package / "image_gen_embedding" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    damage(model)
    path.write_bytes(model.SerializeToString())
    started = time.monotonic()
    found = checked(package, "run.*", limits=Limits(1.5, 2 << 30))
    assert time.monotonic() - started < 30
    dynamic = ("run.dynamic", "image_gen_embedding", reason)
    assert dynamic in faults(found) and {i for i, _, _ in faults(found)} == {
        "run.dynamic", "run.finite"
    }  # fmt: skip
    assert ("run.dynamic", "embedding", True) in without(found)


def test_inference_that_does_not_end(tmp_path: Path) -> None:
    """onnx 1.23.2 never returns from two dots in an equation. Its time is waited for once."""
    ports = [helper.make_tensor_value_info(name, FLOAT, ["n", 8]) for name in "xy"]
    node = helper.make_node("Einsum", ["x"], ["y"], equation="i..j->ij")
    made = helper.make_graph([node], "g", ports[:1], ports[1:])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    started = time.monotonic()
    found = checked(tmp_path, limits=Limits(1, None))
    assert 1 <= time.monotonic() - started < 1.9
    assert faults(found) == [
        ("graph.checker", "model.onnx", "time"), ("graph.types", "model.onnx", "time"),
    ]  # fmt: skip


# -- limits ----------------------------------------------------------------------------------------


def test_limits_grow_with_the_package(tmp_path: Path) -> None:
    small = limits_for(str(tmp_path), 1)
    with open(tmp_path / "weights.bin", "wb") as f:
        f.truncate(10_000_000_000)
    large = limits_for(str(tmp_path), 1)
    assert small.seconds == 30 and large.seconds == 1030
    assert small.nbytes is not None and large.nbytes is not None
    assert large.nbytes - small.nbytes == 30_000_000_000
    assert limits_for(str(tmp_path), 1, 5, 1 << 30) == Limits(5, 1 << 30)


# -- progress from the other process --------------------------------------------------------------


def told_progress(subject: Subject, part: Part) -> list[Finding]:
    from ntool.lib import progress

    with progress.step(10, "reading", "B") as bar:
        for _ in range(10):
            time.sleep(0.03)
            bar.update(1)
    return []


def flooded(subject: Subject, part: Part) -> list[Finding]:
    from ntool.lib import progress

    with progress.step(None, "reading", "B") as bar:
        while True:
            time.sleep(0.001)
            bar.update(1)
            bar.label("still here")


def strange(subject: Subject, part: Part) -> list[Finding]:
    from ntool.lib import progress

    with progress.step(-5, "\x1b[31m", "B"):
        return []


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """What a listener of this process is told."""
    from contextlib import contextmanager

    from ntool.lib import progress

    told: list[Any] = []

    class Kept(progress.NoBar):
        def update(self, n: int = 1) -> None:
            told.append(n)

    @contextmanager
    def listener(total: int | None, what: str, unit: str) -> Iterator[Any]:
        told.append((total, what, unit))
        yield Kept()
        told.append("over")

    progress.listen(listener)
    yield told
    progress.listen(progress.nobody)


def test_progress_of_the_checks_is_told(
    package: Path, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check("run.told", "", told_progress)
    monkeypatch.setitem(catalogue.BY_ID, check.id, check)
    with Sandbox(Subject(str(package)), LIMITS, "fork") as sandbox:
        assert sandbox.run(check, sandbox._subject.parts[0]) == []
    first, *counts, last = heard
    assert first == (10, "reading", "B") and last == "over" and sum(counts) == 10
    assert len(counts) > 1  # now and then, not in the end alone


@pytest.mark.parametrize(("run", "reason"), [(flooded, "time"), (strange, "crashed")])
def test_progress_buys_no_time_and_shows_nothing_strange(
    run: Any, reason: str, package: Path, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check("run.odd", "", run)
    monkeypatch.setitem(catalogue.BY_ID, check.id, check)
    started = time.monotonic()
    with Sandbox(Subject(str(package)), Limits(1.0, 4 << 30), "fork") as sandbox:
        [finding] = sandbox.run(check, sandbox._subject.parts[0])
    assert finding.reason == reason and time.monotonic() - started < 20
    assert heard[-1:] in ([], ["over"]) and "\x1b" not in str(heard)
