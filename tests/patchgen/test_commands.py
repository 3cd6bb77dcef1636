"""The commands generate, check and list: options, streams, files, exit codes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ntool.lib.errors import EnvironmentProblem, UsageProblem
from ntool.lib.patchgen import output
from ntool.lib.patchgen.output import write_all

from ..conftest import run_ntool
from .projects import ALL, DANGLING, MINI, MODEL, OUT, make_project, patchgen, tree

MODULE = f"{MINI}/generated/patched_mini_all.py"


def test_generate_twice_and_check(project: Path) -> None:
    first = patchgen("generate", ALL, MODEL, "--diff", cwd=project)
    states = [(r["role"], r["state"]) for r in first.of("file")]
    assert states == [("module", "written"), ("diff", "written")] * 2 and first.code == 0
    files, times = tree(project), (project / MODULE).stat().st_mtime_ns
    again = patchgen("generate", ALL, MODEL, "--diff", cwd=project)
    assert {r["state"] for r in again.of("file")} == {"unchanged"}
    assert tree(project) == files and (project / MODULE).stat().st_mtime_ns == times
    done = patchgen("check", ALL, MODEL, "--diff", cwd=project)
    assert (done.code, done.of("problem"), done.err) == (0, [], "")
    assert done.of("summary")[0]["configs"] == 2


def test_stdout_is_what_generate_writes(project: Path) -> None:
    patchgen("generate", ALL, "--diff", cwd=project)
    done = patchgen("generate", ALL, "--stdout", cwd=project)
    assert (done.code, done.err, done.out) == (0, "", (project / MODULE).read_text())
    diff = patchgen("generate", ALL, "--stdout", "--diff", cwd=project).out
    assert diff == (project / MODULE).with_suffix(".diff").read_text()
    assert patchgen("generate", ALL, "--stdout", "--dry-run", cwd=project).out == ""


def test_findings_of_a_filter_go_to_standard_error(project: Path) -> None:
    done = patchgen("generate", DANGLING, "--stdout", cwd=project)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("ntool patchgen generate: error: fixkit/models/hazards/dangling_")
    for option in (["--json"], ["--format", "jsonl"]):
        done = patchgen("generate", DANGLING, "--stdout", "--allow-findings", *option, cwd=project)
        (record,) = map(json.loads, done.err.splitlines())
        assert done.code == 1 and record["code"] == "dangling-name" and "class MiniNorm" in done.out


def test_what_check_says_of_a_difference(small: Path) -> None:
    patchgen("generate", "--diff", cwd=small)
    text = (small / OUT).read_text()
    (small / OUT).write_text(text.replace("return 1", "return 2") + "x = 1\n")
    done = patchgen("check", cwd=small)
    (found,) = done.of("problem")
    assert (done.code, found["code"], found["file"]) == (1, "drift", OUT)
    line = text[: text.index("return 1")].count("\n") + 1
    assert found["message"] == (
        f"differs from line {line}: 2 lines here are not generated, 1 are missing"
    )
    done = patchgen("check", "--fix", cwd=small)
    assert done.code == 0 and (small / OUT).read_text() == text
    assert [(f["path"], f["state"]) for f in done.of("file")] == [(OUT, "written")]
    assert done.of("problem")[0]["severity"] == "info"


def test_line_ends_of_a_checkout_are_no_difference(small: Path) -> None:
    patchgen("generate", "--diff", cwd=small)
    for path in (small / "kit/generated").iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert patchgen("check", "--diff", cwd=small).code == 0


def test_a_committed_file_that_is_no_text(small: Path) -> None:
    patchgen("generate", cwd=small)
    (small / OUT).write_bytes(b"\xff\xfe")
    done = patchgen("check", cwd=small)
    assert (done.code, done.of("problem")[0]["code"]) == (1, "drift")
    assert patchgen("check", "--fix", cwd=small).code == 0
    assert patchgen("check", cwd=small).code == 0


def test_a_diff_has_to_be_right_where_it_is_and_there_where_it_is_asked_for(small: Path) -> None:
    patchgen("generate", cwd=small)
    assert patchgen("check", cwd=small).code == 0
    assert patchgen("check", "--diff", cwd=small).code == 1
    path = small / OUT.replace(".py", ".diff")
    path.write_text("stale\n")
    assert patchgen("check", cwd=small).of("problem")[0]["name"] == "out.diff"
    assert patchgen("check", "--fix", cwd=small).code == 0
    assert patchgen("check", "--diff", cwd=small).code == 0


def test_versions_may_be_left_out_of_the_comparison(small: Path) -> None:
    patchgen("generate", "--diff", cwd=small)
    config = small / "kit/one_patch_gen_config.py"
    config.write_text(config.read_text().replace('version="1"', 'version="2"'))
    assert patchgen("check", cwd=small).code == 1
    assert patchgen("check", "--ignore-version", cwd=small).code == 0
    config.write_text(config.read_text().replace("return 1", "return 2"))
    assert patchgen("check", "--ignore-version", cwd=small).code == 1


def test_the_version_is_that_of_the_installed_package(tmp_path: Path) -> None:
    root = make_project(tmp_path / "p", "", "config.transformers_version = None\n")
    (root / "kit/one_patch_gen_config.py").write_text(
        (root / "kit/one_patch_gen_config.py").read_text().replace("lib.model", "typer.colors")
    )
    text = patchgen("generate", "kit.one_patch_gen_config", "--stdout", cwd=root).out
    from importlib.metadata import version

    assert f"# Based on: typer=={version('typer')}\n" in text
    other = root / "site"
    (other / "typer").mkdir(parents=True)
    (other / "typer-9.dist-info").mkdir()
    (other / "typer-9.dist-info/METADATA").write_text("Name: typer\nVersion: 9\n")
    (other / "typer/colors.py").write_text("OTHER = 1\n")
    options = ["--stdout", "--set", f"source={other}"]
    text = patchgen("generate", "kit.one_patch_gen_config", *options, cwd=root).out
    assert "# Based on: typer==9\n" in text and "OTHER = 1\n" in text


def test_files_without_a_config(project: Path) -> None:
    patchgen("generate", ALL, MODEL, "--diff", cwd=project)
    folder = project / MINI / "generated"
    for name in ("stray.py", "stray.diff", "__init__.py", "notes.txt"):
        (folder / name).touch()
    for name in ("hazards", "mini_moe"):
        for config in (project / "fixkit/models" / name).glob("*_config.py"):
            config.unlink()
    done = patchgen("check", cwd=project)
    orphans = [(p["code"], p["file"]) for p in done.of("problem")]
    assert orphans == [("orphan", f"{MINI}/generated/stray.{e}") for e in ("diff", "py")]
    assert done.code == 1
    assert patchgen("check", ALL, cwd=project).code == 0, "named configs alone are judged"
    (project / MODEL).write_text("import no_such_module\n")
    done = patchgen("check", cwd=project)
    assert [p["code"] for p in done.of("problem")] == ["config-not-loaded"], (
        "whose files are whose?"
    )


def test_a_config_under_another_name_owns_its_file(project: Path) -> None:
    name = "fixkit.models.hazards.other_name_patch_gen_config"
    assert patchgen("generate", name, "-c", "settings", cwd=project).code == 0
    done = patchgen("check", cwd=project)
    assert "orphan" not in {p["code"] for p in done.of("problem")}
    assert "skipped" in patchgen("list", "-v", cwd=project).err


def test_two_configs_for_one_file(tmp_path: Path) -> None:
    root = make_project(tmp_path / "p", "x = 1\n", "")
    text = (root / "kit/one_patch_gen_config.py").read_text()
    (root / "kit/two_patch_gen_config.py").write_text(text)
    done = patchgen("generate", cwd=root)
    (found,) = done.of("problem")
    assert (done.code, found["code"], found["config"]) == (
        1,
        "duplicate-output",
        "kit.two_patch_gen_config",
    )
    assert len(done.of("file")) == 1


def test_list(project: Path) -> None:
    done = patchgen("list", ALL, cwd=project)
    (record,) = done.of("config")
    assert record["path"] == f"{MINI}/mini_all_patch_gen_config.py"
    assert record["values"] == {
        "config": ALL,
        "source": "upkit.models.mini.modeling_mini",
        "output": MODULE,
        "patches": {"class_replacement": 2, "function_replacement": 1, "method_override": 5},
        "description": "every primitive",
    }
    table = patchgen("list", ALL, "--format", "table", cwd=project)
    header, row = table.out.splitlines()
    assert header.split() == ["config", "source", "output", "patches", "description"]
    cells = [ALL, "upkit.models.mini.modeling_mini", MODULE, "8", "every", "primitive"]
    assert row.split() == cells
    assert patchgen("list", "--static", cwd=project).of("config") == patchgen(
        "list", cwd=project
    ).of("config")


def test_static_gives_the_same_bytes(project: Path) -> None:
    for config in (ALL, MODEL):
        run = patchgen("generate", config, "--stdout", cwd=project)
        read = patchgen("generate", config, "--stdout", "--static", cwd=project)
        assert (read.code, read.out) == (run.code, run.out)


def test_both_files_or_none(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patchgen("generate", "--diff", cwd=small)
    config = small / "kit/one_patch_gen_config.py"
    config.write_text(config.read_text().replace("return 1", "return 2"))
    before = tree(small)
    replace = os.replace

    def failing(a: str, b: str) -> None:
        if b.endswith(".diff"):
            raise OSError(28, "No space left on device")
        replace(a, b)

    monkeypatch.setattr(output.os, "replace", failing)
    done = patchgen("generate", "--diff", cwd=small)
    assert done.code == 6 and "No space left" in done.err
    assert tree(small) == before


def test_new_folders_go_again_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(output.os, "fsync", failing)
    with pytest.raises(EnvironmentProblem):
        write_all({tmp_path / "a/b/c.py": "x", tmp_path / "a/d.py": "y"})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way(small: Path) -> None:
    (small / OUT).mkdir(parents=True)
    assert patchgen("generate", cwd=small).code == 2
    with pytest.raises(UsageProblem):
        write_all({small / OUT: "x"})


def test_a_link_stays(small: Path, tmp_path: Path) -> None:
    (small / "kit/generated").mkdir()
    (tmp_path / "target.py").write_text("old\n")
    (small / OUT).symlink_to(tmp_path / "target.py")
    patchgen("generate", cwd=small)
    assert (small / OUT).is_symlink() and "return 1" in (tmp_path / "target.py").read_text()


BLOCKED = """
import sys
sys.modules["libcst"] = None
from ntool.guard import run
sys.exit(run(sys.argv[1:]))
"""


def test_without_libcst(small: Path) -> None:
    import subprocess

    for command in ("generate", "check"):
        done = subprocess.run(
            [sys.executable, "-c", BLOCKED, "patchgen", command],
            cwd=small,
            capture_output=True,
            text=True,
        )
        said = "libcst is not installed (pip install 'ntool[patchgen]')"
        assert done.returncode == 6 and done.stderr == f"ntool patchgen {command}: {said}\n"


def test_as_a_process_nothing_heavy_is_loaded(small: Path) -> None:
    code = (
        "import sys\nfrom ntool.guard import run\ncode = run(sys.argv[1:])\n"
        "bad = {'numpy', 'onnx', 'torch', 'transformers', 'lib'} & set(sys.modules)\n"
        "sys.exit(code or (9 if bad else 0))"
    )
    import subprocess

    for words in (["generate"], ["check"], ["list"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "patchgen", *words], cwd=small, capture_output=True
        )
        assert done.returncode == 0, done.stderr


def test_in_a_pipe(project: Path) -> None:
    done = run_ntool("patchgen", "generate", ALL, "--stdout", cwd=project)
    assert done.code == 0 and done.out.startswith("# ====")
    compile(done.out, "x", "exec", dont_inherit=True)
    done = run_ntool("patchgen", "check", ALL, cwd=project)
    assert done.code == 1 and done.records[-1]["kind"] == "end"


def test_the_table_of_a_dry_run_claims_no_writing(small: Path) -> None:
    words = ("generate", "--format", "table")
    record = patchgen("generate", "--dry-run", cwd=small).of("summary")[0]
    assert record["files"] == {"written": 1, "unchanged": 0}
    dry = patchgen(*words, "--dry-run", cwd=small).out.splitlines()
    assert dry[0].split() == ["path", "nbytes", "role", "state"]
    assert dry[1].endswith("  not written")
    assert [" ".join(line.split()) for line in dry if "would" in line] == ["files would write 1"]
    wet = patchgen(*words, cwd=small).out
    assert "files    written    1" in wet and "would" not in wet


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fixkit.models.mini.mini_all", f"no such module; did you mean '{ALL}'?"),
        ("mini_all", f"no such module; did you mean '{ALL}'?"),
        (ALL.replace("mini_all", "mini_al"), f"no such module; did you mean '{ALL}'?"),
        ("quite.another", "no such module"),
        (f"{MINI}/mini_al_patch_gen_config.py",
         f"no such file; did you mean '{MINI}/mini_all_patch_gen_config.py'?"),
    ],
)  # fmt: skip
def test_a_config_that_is_not_there(project: Path, name: str, message: str) -> None:
    done = patchgen("check", name, cwd=project)
    (found,) = done.of("problem")
    assert (done.code, found["code"], found["file"]) == (3, "config-missing", name)
    assert found["message"] == message
    assert done.err.splitlines() == [
        f"ntool patchgen check: config-missing: config '{name}': {message}",
        "hint: ntool patchgen list names all",
    ]


def test_a_config_that_is_not_there_without_settings(tmp_path: Path) -> None:
    done = patchgen("check", "quite.another", cwd=tmp_path)
    assert done.code == 3 and "hint" not in done.err
    assert done.of("problem")[0]["message"] == "no such module"
