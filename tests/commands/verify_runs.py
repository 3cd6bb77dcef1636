"""verify-package run inside the process of the tests."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from ntool import guard


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def ntool(*arguments: object) -> Done:
    """The command inside this process; `test_as_a_process` shows that it is the same outside."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = guard.run(["verify-package", *map(str, arguments)])
    return Done(code, out.getvalue(), err.getvalue())


def records(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def oks(done: Done) -> dict[str, list[bool | None]]:
    """The verdicts of each id, in order."""
    found: dict[str, list[bool | None]] = {}
    for r in records(done):
        if r["kind"] == "check":
            found.setdefault(r["id"], []).append(r["ok"])
    return found


def summary(done: Done) -> dict[str, Any]:
    return next(r for r in records(done) if r["kind"] == "summary")
