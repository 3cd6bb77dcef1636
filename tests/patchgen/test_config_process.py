"""What configs do to the process that runs them, they do not do to ntool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ntool.lib.errors import InputError
from ntool.lib.patchgen import config_process
from ntool.lib.patchgen.config_process import Runner
from ntool.lib.patchgen.discover import Found
from ntool.lib.patchgen.run import NoConfig, Session

from ..conftest import Ended, run_ntool
from .projects import HEAD, make_project

OUT = "kit/generated/out.py"


def project(tmp_path: Path, text: str, **others: str) -> Path:
    return make_project(tmp_path / "p", "def f(): pass\n", text, **others)


def found(root: Path, name: str = "one") -> Found:
    module = f"kit.{name}_patch_gen_config"
    return Found(root / (module.replace(".", "/") + ".py"), module)


SAYS = """
import os, sys
os.write(1, b"by descriptor\\n")
os.system("echo by a child")
print("by print")
print("by the first stream", file=sys.__stdout__)
sys.stdout.buffer.write(b"by bytes\\n")
"""


def test_what_a_config_writes_is_no_record(tmp_path: Path) -> None:
    root = project(tmp_path, SAYS)
    done = run_ntool("patchgen", "list", cwd=root)
    assert [r["kind"] for r in done.records] == ["begin", "config", "end"]
    assert sorted(done.err.splitlines()) == [
        "by a child",
        "by bytes",
        "by descriptor",
        "by print",
        "by the first stream",
    ]
    done = run_ntool("patchgen", "generate", "kit.one_patch_gen_config", "--stdout", cwd=root)
    assert done.code == 0 and "by bytes" not in done.out and done.out.endswith("def f(): pass\n")


LATER = """
import os, threading
def write():
    for _ in range(20000): os.write(1, b"late\\n")
threading.Thread(target=write, daemon=True).start()
"""


def test_what_a_config_writes_later_is_no_record_either(tmp_path: Path) -> None:
    root = project(tmp_path, LATER)
    for number in range(20):
        text = HEAD.replace("out.py", f"out{number}.py")
        (root / f"kit/two{number}_patch_gen_config.py").write_text(text)
    done = run_ntool("patchgen", "list", cwd=root)
    assert "late" in done.err and len(done.records) == 23


@pytest.mark.parametrize(
    "text",
    [
        "os.close(1)",
        "os.close(2)",
        "os.close(1); os.close(2)",
        "sys.stdout.close()",
        "sys.stderr.close()",
        "sys.__stdout__.close(); sys.__stderr__.close()",
        "sys.stdout = sys.stderr = None",
        "os.chdir('kit')",
        "os.chdir('/')",
        "os.dup2(os.open(os.devnull, os.O_RDWR), 1)",
    ],
)
def test_what_a_config_does_to_streams_and_folder_ends_with_it(text: str, tmp_path: Path) -> None:
    """The next config prints as ever, and output goes where it was asked for."""
    root = project(tmp_path, f"import os, sys\n{text}\n")
    (root / "kit/two_patch_gen_config.py").write_text(HEAD.replace("out.py", "two.py") + SAYS)
    done = run_ntool("patchgen", "generate", "-o", "here", cwd=root)
    assert [(r["path"], r["state"]) for r in done.of("file")] == [
        ("here/out.py", "written"),
        ("here/two.py", "written"),
    ], done.err
    assert done.code == 0 and done.records[-1]["kind"] == "end"
    assert (root / "here/two.py").is_file()
    assert len(done.err.splitlines()) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("os._exit(0)", "the config ends the process that runs it (exit code 0)"),
        ("os._exit(7)", "the config ends the process that runs it (exit code 7)"),
        ("os.abort()", "the config ends the process that runs it (SIGABRT)"),
        ("sys.exit()", "line 6: the config cannot be loaded (SystemExit: )"),
    ],
)
def test_a_config_that_ends_the_process_is_told(text: str, said: str, tmp_path: Path) -> None:
    root = project(tmp_path, f"\nimport os, sys\n{text}\n")
    (root / "kit/two_patch_gen_config.py").write_text(HEAD.replace("out.py", "two.py"))
    done = run_ntool("patchgen", "generate", cwd=root)
    (problem,) = done.of("problem")
    assert (done.code, problem["code"], problem["message"]) == (3, "config-not-loaded", said)
    assert [r["path"] for r in done.of("file")] == ["kit/generated/two.py"]
    assert done.records[-1]["kind"] == "end"


EVERYTHING = """
config.description = "a description"
config.add_import("os", names=["path"])
config.add_import("json", alias="j", is_from_import=False)
config.add_import("math")
config.add_post_import_block("x = 1")
config.drop_import_names("b", "a")
config.exclude_from_output("gone")
config.patches.append(create_patch_from_external("A", "m.n", "B"))
@config.replace_function("f", name_map={"aa": "b", "a": "c"})
def f(): return 1
@config.override_method("A.m")
def m(self): return 1
@config.add_helper
def helper(): pass
@config.add_helper_after("f")
class After: pass
"""


def test_the_plan_is_the_same_as_in_this_process(tmp_path: Path) -> None:
    root = project(tmp_path, EVERYTHING)
    with Session() as session:
        plan = session.load(found(root), [root]).plan("config")
    for apart in (True, False):
        with Runner(apart=apart) as runner:
            ran = runner.run(found(root), [root], "config")
            assert (ran.plan, ran.error, ran.target_files) == (plan, None, {"out.py"})
    assert len(plan.patches) == 3 and plan.after and plan.helpers


def test_errors_keep_their_class_and_words(tmp_path: Path) -> None:
    root = project(tmp_path, "config.helpers = None\n")
    for apart in (True, False):
        with Runner(apart=apart) as runner:
            ran = runner.run(found(root), [root], "other")
            assert type(ran.error) is NoConfig and "no variable 'other'" in str(ran.error)
            assert ran.target_files == {"out.py"}
            ran = runner.run(found(root), [root], "config")
            assert type(ran.error) is InputError
            assert str(ran.error).endswith("helpers: found NoneType, expected a list")


def test_what_configs_import_is_imported_once(tmp_path: Path) -> None:
    """By all of a run: one of the published projects has 29, and most import PyTorch."""
    text = "import kit.counted\n"
    root = project(tmp_path, text, kit__counted="print('imported')\n")
    (root / "kit/two_patch_gen_config.py").write_text(HEAD.replace("out.py", "two.py") + text)
    done = run_ntool("patchgen", "list", cwd=root)
    assert len(done.of("config")) == 2 and done.err == "imported\n"


def test_a_bug_in_the_other_process_is_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(config_process, "_ran", wrong)
    with Runner(apart=True) as runner, pytest.raises(RuntimeError, match="on purpose"):
        runner.run(found(project(tmp_path, "")), [], "config")


def test_the_other_process_ends_with_the_run(tmp_path: Path) -> None:
    with Runner(apart=True) as runner:
        runner.run(found(project(tmp_path, "")), [tmp_path / "p"], "config")
        assert runner._child is not None
        pid = runner._child._pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


IN_PROCESS = """
import sys
from ntool.lib.patchgen import config_process
config_process.processes.can_fork = lambda: False
from ntool.guard import run
sys.exit(run(["patchgen", "generate", "-o", "here"]))
"""


def test_where_there_is_no_other_process(tmp_path: Path) -> None:
    """As on macOS: streams and folder are kept all the same."""
    text = f"{SAYS}os.close(1)\nsys.stdout.close()\nos.chdir('kit')\n"
    root = project(tmp_path, text)
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS], cwd=root, capture_output=True, text=True
    )
    ended = Ended(done.returncode, done.stdout, done.stderr)
    assert [r["path"] for r in ended.of("file")] == ["here/out.py"], done.stderr
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 5


def test_messages_of_a_config_that_cannot_be_written(tmp_path: Path) -> None:
    root = project(tmp_path, "print('hello', flush=True)\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ntool", "patchgen", "list"],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=full,
        )
    assert done.returncode == 0 and done.stdout.count(b"\n") == 3
