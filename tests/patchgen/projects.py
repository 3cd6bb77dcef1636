"""Copies of the reference project, small projects made of texts, and ntool run in the process."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
from pathlib import Path

from ntool.guard import run

from ..conftest import DATA, Ended

REFERENCE = DATA / "patchgen"
MINI = "fixkit/models/mini"
ALL, MODEL = (
    "fixkit.models.mini.mini_all_patch_gen_config",
    f"{MINI}/mini_model_patch_gen_config.py",
)
DANGLING = "fixkit.models.hazards.dangling_patch_gen_config"
OUT = "kit/generated/out.py"
SETTINGS = """\
[tool.ntool.patchgen]
search_root = "kit"
package_prefix = "kit"
"""
HEAD = """\
from patchgen import PatchConfig, PatchType, create_patch_from_external

config = PatchConfig(source_module="lib.model", target_file="out.py", transformers_version="1")
"""


def copy_project(folder: Path) -> Path:
    """A fresh copy of the reference project."""
    target = folder / "project"
    shutil.copytree(REFERENCE / "project", target)
    return target


def make_project(folder: Path, source: str | bytes, config: str, **others: str) -> Path:
    """A project with the source `lib.model` and the config `kit.one_patch_gen_config`.

    Args:
        config: text behind HEAD.
        others: further files: `lib__more="..."` is lib/more.py.
    """
    (folder / "lib").mkdir(parents=True)
    (folder / "kit").mkdir()
    (folder / "pyproject.toml").write_text(SETTINGS)
    data = source if isinstance(source, bytes) else source.encode()
    (folder / "lib" / "model.py").write_bytes(data)
    (folder / "kit" / "one_patch_gen_config.py").write_text(HEAD + config, encoding="utf-8")
    for name, text in others.items():
        (folder / f"{name.replace('__', '/')}.py").write_text(text, encoding="utf-8")
    return folder


def patchgen(*arguments: object, cwd: Path) -> Ended:
    """`ntool patchgen ARGUMENTS` in this process, in a folder."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    path = list(sys.path)
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(["patchgen", *map(str, arguments)])
    finally:
        os.chdir(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert sys.path == path and "patchgen" not in sys.modules
    return Ended(code, out.getvalue(), err.getvalue())


def generated(folder: Path, *options: str) -> str:
    """The module that the config of `make_project` gives; it must have no errors."""
    done = patchgen("generate", "kit.one_patch_gen_config", "--stdout", *options, cwd=folder)
    assert done.code == 0, done.err
    return done.out


def findings(folder: Path, *options: str) -> list[dict]:
    """The findings about the config of `make_project`."""
    done = patchgen("generate", "kit.one_patch_gen_config", "--dry-run", *options, cwd=folder)
    return done.of("problem")


def codes(folder: Path, *options: str) -> list[tuple[str, str]]:
    """(code, name) of the findings."""
    return [(f["code"], f["name"]) for f in findings(folder, *options)]


def body(text: str) -> str:
    """A generated module without its header."""
    return text.split("=\n\n", 1)[1]


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
