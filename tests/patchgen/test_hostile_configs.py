"""Configs that answer for others, raise when they are read, or break the process they run in."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.patchgen import config_process
from ntool.lib.patchgen.config_process import Runner
from ntool.lib.patchgen.discover import Found
from ntool.lib.patchgen.plan_data import from_data, to_data
from ntool.lib.patchgen.process_state import ProcessState
from ntool.lib.patchgen.run import Session

from ..conftest import Ended, run_ntool
from .projects import HEAD, make_project

ODD = """
class Odd:
    def __str__(self): raise RuntimeError("no text")
    __repr__ = __str__
class Asked:
    def __getattr__(self, name): raise LookupError("asked for an attribute")
class Own(BaseException): pass
class Ends:
    def __getattr__(self, name): raise Own("not an Exception")
class Interrupts:
    def __getattr__(self, name): raise KeyboardInterrupt
class Silent:
    def __getattr__(self, name): raise Own2
class Own2(BaseException):
    def __str__(self): raise Own2
    __traceback__ = property(__str__)
class Text(str):
    def __eq__(self, other): raise ArithmeticError("compared")
    __hash__ = str.__hash__
"""
NO_ANSWER = "what comes back from the process that runs the config is no answer"
CHANNEL = """
import os, sys
frame = sys._getframe()
while "channel" not in frame.f_locals:
    frame = frame.f_back
os.write(frame.f_locals["channel"]._target, {!r})
"""


def project(tmp_path: Path, text: str) -> Path:
    """A project of the config and of two harmless ones after it."""
    root = make_project(tmp_path / "p", "def f(): pass\n", text)
    for name in ("two", "zero"):
        (root / f"kit/{name}_patch_gen_config.py").write_text(HEAD.replace("out.py", f"{name}.py"))
    return root


def generated(root: Path, code: int) -> Ended:
    done = run_ntool("patchgen", "generate", cwd=root)
    assert done.code == code, done.err
    assert done.records[-1]["kind"] == "end"
    return done


def others_written(done: Ended) -> bool:
    paths = [r["path"] for r in done.of("file")]
    return paths == ["kit/generated/two.py", "kit/generated/zero.py"]


def refused(root: Path) -> str:
    """The message of the config's only problem; the others are written."""
    done = generated(root, 3)
    (problem,) = done.of("problem")
    assert problem["code"] == "config-not-loaded"
    assert problem["file"] == "kit/one_patch_gen_config.py"
    assert others_written(done)
    message: str = problem["message"]
    return message


FORKS = "import os\nif os.fork() == 0: {}\n"


@pytest.mark.parametrize("then", ["pass", "raise ValueError", "config.description = 'copy'"])
def test_a_copy_that_a_config_makes_of_the_process_answers_nothing(
    then: str, tmp_path: Path
) -> None:
    root = project(tmp_path, FORKS.format(then))
    for name in ("two", "zero"):  # time for a copy to answer in their place
        with (root / f"kit/{name}_patch_gen_config.py").open("a") as file:
            file.write(f"import time; time.sleep(.1); config.description = '{name}'\n")
    done = run_ntool("patchgen", "list", cwd=root)
    values = [(r["path"][4:-20], r["values"]["output"][14:]) for r in done.of("config")]
    assert values == [("one", "out.py"), ("two", "two.py"), ("zero", "zero.py")], done.err
    assert [r["values"]["description"] for r in done.of("config")] == ["", "two", "zero"]
    assert done.code == 0


def test_a_copy_ends_where_there_is_no_other_process_too(tmp_path: Path) -> None:
    root = project(tmp_path, "import os\npid = os.fork()\nif pid: state = os.waitpid(pid, 0)[1]\n")
    module = "kit.one_patch_gen_config"
    with Session() as session:
        loaded = session.load(Found(root / "kit/one_patch_gen_config.py", module), [root])
    assert loaded._module.state == 0


def test_a_copy_that_goes_on_does_not_keep_the_channel_open(tmp_path: Path) -> None:
    text = "import os, time\nif os.fork() == 0: time.sleep(5)\nos._exit(7)\n"
    root = project(tmp_path, text)
    start = time.monotonic()
    with Runner(apart=True) as runner:
        path = root / "kit/one_patch_gen_config.py"
        ran = runner.run(Found(path, "kit.one"), [root], "config")
    assert ran.error is not None and "(exit code 7)" in ran.error.message
    assert time.monotonic() - start < 4


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b"[]\n", b"5\n", b"no JSON\n", b'[1, "plan", {}, [], true]\n', b"[" * 90000 + b"\n"],
)
def test_what_a_config_writes_to_the_channel_is_no_answer(line: bytes, tmp_path: Path) -> None:
    assert refused(project(tmp_path, CHANNEL.format(line))) == NO_ANSWER


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("config.description = Odd()", "RuntimeError: no text"),
        ("config.target_file = Odd()", "RuntimeError: no text"),
        ("config.exclude = [Odd()]", "RuntimeError: no text"),
        ("config.patches.append(Asked())", "LookupError: asked for an attribute"),
        ("config.helpers.append(Asked())", "LookupError: asked for an attribute"),
        ("config.helpers.append(Ends())", "Own: not an Exception"),
        ("config.helpers.append(Silent())", "Own2"),
        ("config.target_file = Text('out.py')", "ArithmeticError: compared"),
        ("config.description = d = {}\nfor _ in range(100000): d['a'] = d = {}", "RecursionError"),
    ],
)
def test_what_raises_when_it_is_read_is_told(text: str, said: str, tmp_path: Path) -> None:
    assert f"what the config holds cannot be read ({said}" in refused(
        project(tmp_path, ODD + text + "\n")
    )


def test_a_property_of_another_config_of_the_module_raises(tmp_path: Path) -> None:
    text = """
class PatchConfig:
    @property
    def source_module(self): raise RuntimeError("lazy")
second = PatchConfig()
"""
    assert "RuntimeError: lazy" in refused(project(tmp_path, text))


@pytest.mark.parametrize("text", ["raise KeyboardInterrupt", "config.helpers = [Interrupts()]"])
def test_an_interrupt_that_a_config_raises_is_its_own(text: str, tmp_path: Path) -> None:
    assert "(KeyboardInterrupt)" in refused(project(tmp_path, ODD + text))


def test_a_metaclass_that_hides_the_name_of_a_class(tmp_path: Path) -> None:
    text = """
class Hides(type):
    def __getattribute__(cls, name): raise BaseException(name)
class Hidden(metaclass=Hides): pass
hidden = Hidden()
"""
    generated(project(tmp_path, text), 0)


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.write = lambda *a: 0; print('said')",
        "import os; del os.read",
        "import json; json.dumps = lambda *a, **k: '[]'",
        "import json; json.loads = None",
        "import dataclasses; dataclasses.asdict = lambda *a: 5",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
    ],
)
def test_a_config_that_replaces_what_the_answer_needs(text: str, tmp_path: Path) -> None:
    """The answer is made with what was bound before."""
    done = generated(project(tmp_path, f"{text}\n"), 0)
    assert len(done.of("file")) == 3


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.modules.clear()\n@config.add_helper\ndef g(): pass",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "@config.add_helper\ndef g(): pass",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
        "import os\ndef no(*a): raise ValueError\nos.chdir = no",
        "import builtins; builtins.isinstance = None",
        "import json; json.JSONEncoder.encode = lambda *a: '{}'",
    ],
)
def test_a_config_that_leaves_a_process_that_cannot_answer(text: str, tmp_path: Path) -> None:
    assert refused(project(tmp_path, f"{text}\n"))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("import this_is_not_there", False),
        ("import sys; sys.settrace(lambda *a: None)", False),
        ("import sys; sys.setprofile(lambda *a: None)", False),
        ("import sys, json; del sys.modules['json']", False),
        ("import os; os.getcwd = None", False),
        ("import sys; sys.setrecursionlimit(500)", False),
        ("import xml.sax.handler; config.helpers = None", True),
        ("", True),
    ],
)
def test_the_next_config_gets_a_new_process_where_it_has_to(
    text: str, kept: bool, tmp_path: Path
) -> None:
    root = project(tmp_path, f"{text}\n")
    with Runner(apart=True) as runner:
        runner.run(Found(root / "kit/two_patch_gen_config.py", "kit.two"), [root], "config")
        assert runner._child is not None
        before = runner._child
        runner.run(Found(root / "kit/one_patch_gen_config.py", "kit.one"), [root], "config")
        assert (runner._child is before) == kept
        path = root / "kit/zero_patch_gen_config.py"
        ran = runner.run(Found(path, "kit.zero"), [root], "config")
        assert ran.plan is not None and ran.plan.target_file == "zero.py"


def test_a_plan_that_is_too_long(tmp_path: Path) -> None:
    text = "config.description = 'x' * (65 << 20)\n"
    message = refused(project(tmp_path, text))
    assert message == "the plan of the config is too long (over 64 MiB)"


def answer(tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """A request, and what the process answers to it."""
    root = project(tmp_path, "")
    path = root / "kit/two_patch_gen_config.py"
    with path.open("a") as file:
        file.write("config.add_import('os', names=['path'])\n@config.replace_function('f')\n")
        file.write("def f(): pass\n@config.add_helper\ndef g(): pass\n")
    found = Found(path, "kit.two")
    with Session() as session:
        got = config_process._answer(session, ProcessState(), found, [str(root)], "config")
    return [3, str(path), "kit.two", [str(root)], "config"], [3, *got]


def test_answers_are_checked(tmp_path: Path) -> None:
    request, good = answer(tmp_path)
    ran, usable = config_process._read(good, request)
    assert ran.plan is not None and usable  # type: ignore[union-attr]
    assert to_data(from_data(good[2])) == good[2]
    wrong: list[Any] = [None, 5, {}, [], good[:-1], [*good, 1], [2, *good[1:]], [True, *good[1:]]]
    wrong += [[3, "other", "", [], True], [3, "InputError", 5, [], True]]
    wrong += [[*good[:3], 5, True], [*good[:3], [5], True], [*good[:4], 1]]
    plan = good[2]
    wrong += [[3, "plan", value, [], True] for value in (None, 5, [], {}, "plan")]
    odd: dict[str, Any]
    for name in plan:
        for value in (5, {}, [5], [None], [{}], [[]], "" if name in ("file", "module") else 5):
            odd = {**plan, name: value}
            wrong.append([3, "plan", odd, [], True])
    for part, name in (("patches", "kind"), ("helpers", "line"), ("imports", "is_from_import")):
        wrong.append([3, "plan", {**plan, part: [{**plan[part][0], name: "x"}]}, [], True])
    for number, item in enumerate(wrong):
        with pytest.raises((ValueError, TypeError, KeyError)):
            config_process._read(item, request)
            raise AssertionError(f"{number}: {item!r:.200}")


def test_the_process_of_a_wrong_answer_is_ended(tmp_path: Path) -> None:
    root = project(tmp_path, "import os; config.description = str(os.getpid())\n")
    with Runner(apart=True) as runner:
        path = root / "kit/one_patch_gen_config.py"
        ran = runner.run(Found(path, "kit.one"), [root], "config")
        assert ran.plan is not None
        pid = int(ran.plan.description)
        os.kill(pid, 0)
        path.write_text(HEAD + CHANNEL.format(b"{}\n"))
        ran = runner.run(Found(path, "kit.one"), [root], "config")
        assert ran.error is not None and NO_ANSWER in ran.error.message
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
