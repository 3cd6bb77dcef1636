"""The command as a process: records, exit codes, messages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from .verify_runs import Done, ntool, oks, records


def test_as_a_process(package: Path) -> None:
    arguments = ["verify-package", str(package), "--check", "layout.*", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "ntool", *arguments], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    inside = records(ntool(*arguments[1:]))
    outside = [json.loads(line) for line in done.stdout.splitlines()]
    for a, b in zip(inside, outside, strict=True):
        a.pop("seconds", None), b.pop("seconds", None)
        assert a == b


def test_good_package(package: Path) -> None:
    done = ntool(package, "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    begin, *checks, summary, end = records(done)
    assert begin["kind"] == "begin" and end["count"] == len(checks) + 1
    assert {"id", "ok", "component", "expected", "actual", "message"} <= checks[0].keys()
    assert {c["kind"] for c in checks} == {"check"} and all(c["message"] for c in checks)
    assert summary["ok"] is True and summary["failed"] == 0
    assert summary["passed"] + summary["not_applicable"] == len(checks)
    assert any(c["id"] == "run.finite" and c["ok"] for c in checks)


def test_a_fault_is_exit_1_with_one_line(package: Path, readme: Path) -> None:
    done = ntool(package, "--check", "layout.*", "--device", "cpu")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "findings: 1; the first: layout.files: left-over.txt" in done.stderr
    *_, summary, end = records(done)
    assert summary["failed_checks"] == ["layout.files"] and end["kind"] == "end"


def test_selection(package: Path) -> None:
    def ids(*arguments: str) -> set[str]:
        found = records(ntool(package, *arguments))
        return {r["id"] for r in found if r["kind"] == "check"}

    assert ids("--check", "graph.parse", "--check", "flow.*") == {
        "graph.parse",
        "flow.ports",
        "flow.tokens",
    }
    assert ids("--check", "flow.*", "--skip", "*.tokens") == {"flow.ports"}
    assert not any(i.startswith("run.") for i in ids("--no-run", "--skip", "weights.*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--check", "nothing.*"),
        ("--skip", "nothing"),
        ("--check", "run.*", "--no-run"),
        ("--write-manifest", "--manifest", "x"),
        ("--device", "tpu"),
    ],
)
def test_wrong_use(package: Path, arguments: tuple[str, ...]) -> None:
    done = ntool(package, *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--manifest", ""), "--manifest: found nothing"),
        (("--against", ""), "--against: found nothing"),
        (("--report", "x.html", "--picture", ""), "--picture: found nothing"),
        (("--check", "layout.*", "--manifest", "x"), "a selection without data.hash"),
        (("--check", "layout.shema"), "hint: did you mean 'layout.schema'?"),
        (("--skip", "run.lod"), "hint: did you mean 'run.load'?"),
    ],
)
def test_options_that_would_be_ignored(
    package: Path, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = ntool(package, *options)
    assert done.returncode == 2 and words in done.stderr and not records(done)[1:-1]


def test_no_package(tmp_path: Path) -> None:
    assert ntool(tmp_path).returncode == 4
    assert ntool(tmp_path / "nope").returncode == 4
    (tmp_path / "file.txt").write_text("x")
    assert ntool(tmp_path / "file.txt").returncode == 4


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": 1, "schema": 2}', '{"a": NaN}', "[" * 5000, "\ufeff{}"]
)
def test_package_json_that_is_no_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(text)
    done = ntool(tmp_path)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert records(done)[-1]["kind"] == "error"


def test_package_json_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"schema": "ntool-package/9"}')
    done = ntool(tmp_path, "--check", "layout.schema")
    assert done.returncode == 1 and "ntool-package/9" in done.stderr


def test_print_schema() -> None:
    done = ntool("--print-schema")
    assert done.returncode == 0 and done.stderr == ""
    schema = json.loads(done.stdout)
    assert schema["properties"]["schema"]["const"] == "ntool-package/1"


def test_schema_is_a_schema() -> None:
    from jsonschema import Draft202012Validator

    from ntool.lib.package.schema import schema

    Draft202012Validator.check_schema(schema())


def test_sums(package: Path, tmp_path: Path) -> None:
    done = ntool(package, "--write-manifest", "--no-run")
    sums = package / "SHA256SUMS"
    try:
        assert done.returncode == 0
        assert [r["path"] for r in records(done) if r["kind"] == "file"] == ["SHA256SUMS"]
        assert ntool(package, "--check", "data.hash").returncode == 0
        kept = tmp_path / "sums"
        kept.write_bytes(sums.read_bytes())
        sums.unlink()
        assert oks(ntool(package, "--check", "data.h*", "--check", "layout.files")) == {
            "layout.files": [True],
            "data.hash": [None],
        }
        assert ntool(package, "--check", "data.hash", "--manifest", kept).returncode == 0
        lines = kept.read_text().splitlines()
        kept.write_text("\n".join(lines[1:]) + "\n")
        done = ntool(package, "--check", "data.hash", "--manifest", kept)
        assert done.returncode == 1 and lines[0].split("  ")[1] in done.stderr
        kept.write_text("not a sum\n")
        assert ntool(package, "--check", "data.hash", "--manifest", kept).returncode == 1
    finally:
        sums.unlink(missing_ok=True)


def test_sums_are_not_written_for_a_bad_package(package: Path, readme: Path) -> None:
    done = ntool(package, "--write-manifest", "--no-run")
    assert done.returncode == 1 and "SHA256SUMS not written" in done.stderr
    assert not (package / "SHA256SUMS").exists()


def test_against(package: Path) -> None:
    done = ntool(package, "--check", "weights.values", "--against", "demo:shapes")
    assert done.returncode == 0
    assert all(r["ok"] for r in records(done) if r["kind"] == "check")
    done = ntool(package, "--check", "weights.values", "--against", "nope/nope/nope")
    assert done.returncode == 4


def test_subset_of_components_is_a_package(package: Path) -> None:
    """An export of two components has only their edges and tasks."""
    done = ntool(package, "--check", "flow.ports", "--check", "weights.complete")
    assert done.returncode == 0, done.stderr


def test_table_and_csv(package: Path) -> None:
    table = ntool(package, "--check", "layout.*", "--format", "table")
    assert table.returncode == 0 and "layout.schema" in table.stdout
    csv = ntool(package, "--check", "layout.*", "--format", "csv")
    assert csv.returncode == 0 and csv.stdout.splitlines()[0].startswith("id,ok,component")


# -- what is named is opened first ---------------------------------------------------------------


@pytest.mark.parametrize(
    "option", [("--against", "nope/nope/nope"), ("--against", "demo:no"), ("--manifest", "nope")]
)
def test_mistyped_names_come_first(package: Path, option: tuple[str, str]) -> None:
    done = ntool(package, *option, "--device", "cpu")
    assert done.returncode == 4 and option[1] in done.stderr
    assert [r["kind"] for r in records(done)] == ["begin", "error"]


def test_checkpoint_of_no_known_family(package: Path, tmp_path: Path) -> None:
    from ntool.lib import demo

    other = Path(shutil.copytree(demo.path("shapes"), tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    done = ntool(package, "--against", other, "--device", "cpu")
    assert done.returncode == 5 and [r["kind"] for r in records(done)] == ["begin", "error"]


def test_a_checkpoint_is_no_package(tmp_path: Path) -> None:
    from ntool.lib import demo

    folder = demo.path("shapes")
    spaced = tmp_path / "a b"
    spaced.symlink_to(folder)
    for given, source in (
        (folder, folder),
        ("demo:shapes", "demo:shapes"),
        (f"{folder}/config.json", folder),
        (f"{folder}/model.safetensors.index.json", folder),
        (spaced, f"'{spaced}'"),
    ):
        done = ntool(given)
        assert done.returncode == 4
        assert f"hint: ntool export-component {source} -o PKG\n" in done.stderr


def test_other_things_are_no_package(package: Path, tmp_path: Path) -> None:
    """What they are, and the command that takes them."""
    files = {
        "x.png": b"\x89PNG\r\n\x1a\n",
        "x.gguf": b"GGUF\x03\0\0\0",
        "x.safetensors": b"\x02\0\0\0\0\0\0\0{}",
        "x.txt": b"x",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "x.safetensors").write_bytes(files["x.safetensors"])
    (tmp_path / "empty").mkdir()
    for given, what, hint in (
        ("x.png", "a PNG picture", "ntool verify-package PKG --golden {} draws it again"),
        ("x.gguf", "a GGUF file", "ntool inspect-headers {}"),
        ("x.safetensors", "a safetensors file", "ntool inspect-headers {}"),
        ("loose", "safetensors files", "ntool inspect-headers {}"),
        (
            "empty",
            "no package here (package.json",
            "ntool export-component SOURCE -o PKG makes",
        ),
        (
            package / "package.json",
            "a file of a package",
            f"give the package itself: {package}\n",
        ),
        (
            package / "embedding" / "model.safetensors",
            "a file",
            f"give the package itself: {package}\n",
        ),
        (
            package / "tokenizer",
            "a folder of a package",
            f"give the package itself: {package}\n",
        ),
        (str(package)[:-1], "no such file or folder", f"did you mean '{package}'?"),
    ):
        done = ntool(tmp_path / given)
        assert done.returncode == 4
        message, told = done.stderr.splitlines(keepends=True)
        assert what in message and f"hint: {hint.format(tmp_path / given)}" in told
    assert ntool(tmp_path / "x.txt").stderr.count("\n") == 1


# -- limits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph whose inference never returns (onnx 1.23.2)."""
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy"]
    node = helper.make_node("Einsum", ["x"], ["y"], equation="i..j->ij")
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path_factory.mktemp("endless") / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_limit_of_time(endless: Path) -> None:
    done = ntool(endless, "--timeout", "0.5", "--device", "cpu")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "graph.checker: model.onnx: not done after 0.5 s, expected <= 0.5 s" in done.stderr
    late = [r for r in records(done) if r.get("reason") == "time"]
    assert [r["id"] for r in late] == ["graph.checker", "graph.types"]
    assert oks(done)["graph.dead"] == [True] and records(done)[-1]["kind"] == "end"


def test_a_limit_of_memory(package: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ntool",
        "verify-package",
        str(package),
        "--device",
        "cpu",
    ]
    command += ["--check", "run.load", "--memory", "20MB"]
    ran = subprocess.run(command, capture_output=True, text=True)
    done = Done(ran.returncode, ran.stdout, ran.stderr)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    reasons = {r["reason"] for r in records(done) if r["kind"] == "check" and r["ok"] is False}
    assert reasons <= {"memory", "crashed"} and reasons
    assert ntool(package, "--check", "run.load", "--memory", "4GiB").returncode == 0


@pytest.mark.parametrize(
    "arguments", [("--timeout", "0"), ("--timeout", "nan"), ("--memory", "0"), ("--memory", "x")]
)
def test_limits_that_are_none(package: Path, arguments: tuple[str, ...]) -> None:
    assert ntool(package, *arguments).returncode == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_the_checks_end_with_the_command(endless: Path) -> None:
    command = [sys.executable, "-m", "ntool", "verify-package", str(endless), "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        child = _child_of(process.pid)
        process.terminate()
        _, said = process.communicate(timeout=10)
    assert process.returncode == 143 and b"Traceback" not in said
    until = time.monotonic() + 20
    while _runs(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(process: int) -> bool:
    """Whether it is there, and not only waits for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _child_of(parent: int) -> int:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with suppress(OSError, IndexError):
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
            return int(text.split()[0])
        time.sleep(0.01)
    raise AssertionError("the command has no child")
