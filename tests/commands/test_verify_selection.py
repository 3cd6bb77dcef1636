"""What a selection of checks or components runs, brings with it, and leaves out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .verify_runs import ntool, oks, records, summary

# -- prerequisites, and checks that have nothing to say ------------------------------------------


@pytest.mark.parametrize(
    "selection",
    [
        ("--check", "run.*"),
        ("--check", "run.finite"),
        ("--check", "weights.*"),
        ("--check", "weights.complete"),
        ("--check", "weights.sane", "--no-run"),
        ("--check", "graph.dead"),
        ("--check", "flow.*"),
        ("--check", "flow.tokens"),
        ("--check", "dtype.policy"),
        ("--skip", "graph.parse", "--no-run"),
    ],
    ids=" ".join,
)
def test_a_broken_graph_outside_the_selection(broken: Path, selection: tuple[str, ...]) -> None:
    graph = broken / "embedding" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-9])
    done = ntool(broken, *selection, "--device", "cpu")
    assert done.returncode == 1 and "graph.parse: embedding/model.onnx" in done.stderr
    assert oks(done)["graph.parse"] == [False]
    assert summary(done)["ok"] is False and summary(done)["failed_checks"] == ["graph.parse"]
    about = [r["component"] for r in records(done) if r.get("id") == "graph.parse"]
    assert about == ["embedding"]


@pytest.mark.parametrize(
    "selection",
    ["run.finite", "run.load", "weights.*", "weights.complete", "flow.ports", "graph.*"],
)
def test_a_missing_graph_outside_the_selection(broken: Path, selection: str) -> None:
    (broken / "embedding" / "model.onnx").unlink()
    done = ntool(broken, "--check", selection, "--device", "cpu")
    assert done.returncode == 1, done.stdout
    assert oks(done)["layout.files"] == [False] and False not in oks(done).get("graph.parse", [])
    assert summary(done)["failed_checks"] == ["layout.files"]


def test_missing_data_and_report_outside_the_selection(broken: Path) -> None:
    (broken / "embedding" / "model.safetensors").unlink()
    (broken / "weight-loading-report.json").unlink()
    for selection in ("data.bounds", "weights.complete"):
        found = oks(ntool(broken, "--check", selection))
        assert found["layout.files"] == [False, False]
        assert True not in found[selection] or selection == "data.bounds"


def test_prerequisites_that_hold_are_not_told(package: Path) -> None:
    assert set(oks(ntool(package, "--check", "run.*", "--device", "cpu"))) == {
        "run.load",
        "run.support",
        "run.dynamic",
        "run.finite",
        "run.placement",
    }


def test_a_prerequisite_is_told_once_and_in_front(broken: Path) -> None:
    (broken / "embedding" / "model.onnx").write_bytes(b"x")
    done = ntool(broken, "--check", "graph.[cd]*")
    ids = [(r["id"], r["component"]) for r in records(done) if r["kind"] == "check"]
    assert ids.count(("graph.parse", "embedding")) == 1
    at = ids.index(("graph.parse", "embedding"))
    assert at < ids.index(("graph.checker", "embedding"))


def test_weights_by_name_need_a_source(package: Path) -> None:
    done = ntool(package, "--check", "weights.values")
    assert done.returncode == 2 and "--against SOURCE" in done.stderr
    assert oks(ntool(package, "--check", "weights.*"))["weights.values"] == [None, None]
    assert ntool(package, "--check", "weights.*").returncode == 0
    assert ntool(package, "--check", "weights.*", "--skip", "weights.values").returncode == 0


def test_hashes_by_name_need_a_list(package: Path) -> None:
    done = ntool(package, "--check", "data.hash")
    assert done.returncode == 1 and "data.hash: no SHA256SUMS" in done.stderr
    assert oks(done) == {"data.hash": [False]}
    assert oks(ntool(package, "--check", "data.*"))["data.hash"] == [None]


def test_standard_by_name_is_asked_for(package: Path) -> None:
    assert oks(ntool(package, "--check", "graph.standard")) == {"graph.standard": [True, True]}
    assert oks(ntool(package, "--check", "graph.*"))["graph.standard"] == [None, None]


def test_by_name_where_it_cannot_apply(package: Path) -> None:
    """A lone graph has no manifest: asking for a check of the manifest is not answered by ok."""
    graph = package / "embedding" / "model.onnx"
    done = ntool(graph, "--check", "graph.parse", "--check", "flow.ports")
    assert done.returncode == 1 and "there is no package.json" in done.stderr
    assert oks(done) == {"graph.parse": [True], "flow.ports": [False]}
    assert ntool(graph, "--check", "graph.parse", "--check", "flow.p*").returncode == 0


@pytest.mark.parametrize("pattern", ["weights.v*", "*.hash"])
def test_nothing_checked_is_not_ok(package: Path, pattern: str) -> None:
    done = ntool(package, "--check", pattern)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "nothing was checked" in done.stderr
    found = summary(done)
    assert (found["ok"], found["passed"], found["failed"]) == (False, 0, 0)


def test_a_package_of_no_components_is_not_ok(broken: Path) -> None:
    manifest = json.loads((broken / "package.json").read_text())
    (broken / "package.json").write_text(json.dumps({**manifest, "components": {}}))
    done = ntool(broken, "--check", "graph.parse")
    assert done.returncode == 1 and "nothing was checked" in done.stderr


def test_no_list_is_written_when_nothing_was_checked(package: Path) -> None:
    done = ntool(package, "--check", "data.hash", "--write-manifest")
    assert done.returncode == 1 and "SHA256SUMS not written" in done.stderr
    assert not (package / "SHA256SUMS").exists()


# -- subsets -------------------------------------------------------------------------------------


def test_summary_of_a_subset_says_what_ran(package: Path) -> None:
    done = ntool(package, "--check", "run.finite", "--check", "weights.complete")
    said = {r["id"]: r["message"] for r in records(done) if r["kind"] == "check"}
    assert "embedding" in said["run.finite"] and "vision_encoder" in said["run.finite"]
    assert "denoising" not in said["run.finite"] and "prefill" not in said["run.finite"]
    report = json.loads((package / "weight-loading-report.json").read_text())
    total, excluded = report["counts"]["source_tensors"], report["counts"]["excluded"]
    assert f"{excluded} of {total} source tensors are excluded" in said["weights.complete"]


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ("vision_encoder", "decoder", "output 'present.0.key' of neo_chat's decoder"),
        ("decoder", "embedding", "input 'input_ids' of neo_chat's embedding"),
    ],
)
def test_a_component_in_the_place_of_another_is_reported(
    tmp_path: Path, demo_package: Path, here: str, there: str, words: str
) -> None:
    copied = tmp_path / "pkg"
    shutil.copytree(demo_package, copied)
    shutil.copytree(copied / here, copied / there, dirs_exist_ok=True)
    for form in ("jsonl", "csv", "table"):
        done = ntool(copied, "--no-run", "--format", form)
        assert done.returncode == 1, done.stderr
        assert words in done.stdout


def test_a_checksum_list_that_is_a_link_is_not_written_through(
    tmp_path: Path, demo_package: Path
) -> None:
    copied, other = tmp_path / "pkg", tmp_path / "other"
    shutil.copytree(demo_package, copied)
    other.write_text("mine\n")
    (copied / "SHA256SUMS").symlink_to(other)
    done = ntool(copied, "--no-run", "--skip", "data.hash", "--write-manifest")
    assert done.returncode == 3 and "symbolic link" in done.stderr
    assert other.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("option", "pattern", "hint"),
    [
        ("--check", "weights", "hint: --check 'weights.*' takes all of that group"),
        ("--skip", "run", "hint: --skip 'run.*' takes all of that group"),
        ("--check", "weigths.values", "hint: did you mean 'weights.values'?"),
    ],
)
def test_a_check_that_is_none_gets_one_advice(
    package: Path, option: str, pattern: str, hint: str
) -> None:
    done = ntool(package, option, pattern)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"ntool verify-package: {option} '{pattern}': no such check", hint
    ]  # fmt: skip


def test_a_check_like_no_other_gets_the_list(package: Path) -> None:
    done = ntool(package, "--check", "zz")
    assert done.returncode == 2 and "expected ids or globs of: layout.files" in done.stderr
    assert "hint" not in done.stderr
