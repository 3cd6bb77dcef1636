"""Running commands in the process and as processes, and a package of the demonstration
checkpoint."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from .fork_server import Server, one_thread, served

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Ended:
    """How a command ended. `records`: its JSON Lines, when that is what it wrote."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [r for r in self.records if r["kind"] == kind]


one_thread()


WARNINGS = {"PYTHONWARNINGS": "error::RuntimeWarning"}
"""A warning of NumPy ends the command as a bug, as in the tests' own process."""
_kept = ExitStack()
_servers: list[tuple[Server, dict[str, str]]] = []
"""The process that answers calls, and the environment that it has."""


def server() -> Server | None:
    """The process that forks for each call, started with the first one; None where a test has
    changed the environment since."""
    if not _servers:
        folder = _kept.enter_context(TemporaryDirectory())
        env = {**os.environ, **WARNINGS}
        _servers.append((_kept.enter_context(served(Path(folder), env)), _environment()))
        atexit.register(_kept.close)
    found, env = _servers[0]
    return found if env == _environment() else None


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}


def run_ntool(*arguments: object, stdin: str | None = None, **options: Any) -> Ended:
    """`ntool ARGUMENTS` as a process of its own: forked from one that has the libraries loaded,
    unless it needs another environment or more than a folder and a text to read."""
    forks = server() if options.keys() <= {"cwd", "timeout"} else None
    if forks is not None:
        folder = Path(options.get("cwd") or Path.cwd())
        given = [str(a) for a in arguments]
        code, out, err = forks.called(
            given, folder, (stdin or "").encode(), options.get("timeout", 120)
        )
        # as a text stream reads them
        return Ended(code, *(b.decode().replace("\r\n", "\n") for b in (out, err)))
    warnings = WARNINGS
    env = {**os.environ, **warnings, **options.pop("env", {})}
    done = subprocess.run(
        [sys.executable, "-m", "ntool", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env=env,
        timeout=options.pop("timeout", 120),
        **options,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none, before a fixture of theirs makes a model."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from .backends import missing_cuda

    if reason := missing_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def ntool(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Run a command in this process (no start-up cost); `code` is checked."""
    from ntool import guard
    from ntool.console import console

    def run(*arguments: object, code: int = 0) -> Ended:
        import contextlib
        import io

        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        console.command, console.verbose = "", False
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = guard.run([str(a) for a in arguments])
            out.flush()
        text = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        assert found == code, f"exit {found}, not {code}\n{text[-2000:]}\n{err.getvalue()[-3000:]}"
        return Ended(found, text, err.getvalue())

    return run


@pytest.fixture(scope="session")
def demo_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration checkpoint, exported. Read only: copy it to change it."""
    folder = tmp_path_factory.mktemp("demo") / "shapes.pkg"
    done = run_ntool("export-component", "demo:shapes", "-o", folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Exports made on the way go to a temporary folder, not to the user's cache."""
    os.environ["NTOOL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def data() -> Path:
    return DATA
