"""Runs config modules in a process of their own: what they do to it, they do not do to ntool.

A config is a program. It may write to standard output by any way, close it, change the current
folder, or end the process. One process runs all configs of a run, so that what they all import is
imported once; one that it does not survive is told, and the next gets a new process. Plans come
back as JSON.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..runtime import child as processes
from ..runtime.child import Channel, Child, Closed
from .discover import Found
from .model import Code, External, PatchType, Plan, PlannedImport, PlannedPatch
from .run import NoConfig, Session


@dataclass(frozen=True)
class Ran:
    """What came of a config module that was run.

    Attributes:
        plan: of the variable that was asked for; None with an error.
        error: why there is none: `NoConfig`, or another `InputError`.
        target_files: files that the configs of the module write, under whatever variable.
    """

    plan: Plan | None
    error: InputError | None
    target_files: frozenset[str] = frozenset()


class Runner:
    """Runs config modules one after the other. A context manager: the process ends with the block.

    Args:
        shim_modules: see `shim`.
        apart: in a process of their own; by default where the system can copy this one.
    """

    def __init__(self, shim_modules: Sequence[str] = (), apart: bool | None = None) -> None:
        self._shim_modules = tuple(shim_modules)
        self._apart = processes.can_fork() if apart is None else apart
        self._child: Child | None = None
        self._session: Session | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._child is not None:
            self._child.end()
        if self._session is not None:
            self._session.__exit__(*raised)

    def run(self, found: Found, roots: Sequence[Path], variable: str) -> Ran:
        """Run a config module, for the plan of one variable.

        Args:
            roots: folders to put on the import path.
        Raises:
            RuntimeError: a bug, with its traceback.
        """
        if not self._apart:
            if self._session is None:
                self._session = Session(self._shim_modules).__enter__()
            return _ran(self._session, found, roots, variable)
        answer = self._asked([str(found.file), found.module, [*map(str, roots)], variable])
        if isinstance(answer, InputError):
            return Ran(None, answer)
        kind, value, target_files = answer
        if kind == "bug":
            raise RuntimeError(value)
        files = frozenset(target_files)
        if kind == "plan":
            return Ran(_plan(value), None, files)
        return Ran(None, (NoConfig if kind == "NoConfig" else InputError)(value), files)

    def _asked(self, request: list[Any]) -> Any:
        """The answer of the process; an error if it ends instead."""
        if self._child is None:
            sys.stdout.flush()  # else the copy has what is in there, too
            self._child = processes.fork(self._serve, streams=True)
        try:
            self._child.channel.send(request)
            return self._child.channel.receive()
        except Closed:
            ended, self._child = self._child, None
            how = processes.manner(ended.end())
            return InputError(f"{request[0]}: the config ends the process that runs it ({how})")

    def _serve(self, channel: Channel) -> None:
        """Answer requests until there are no more: in the other process."""
        os.dup2(2, 1)  # for good: a config may leave a thread behind that writes
        with Session(self._shim_modules) as session:
            while True:
                try:
                    file, module, roots, variable = channel.receive()
                except Closed:
                    return
                channel.send(_answer(session, Found(Path(file), module), roots, variable))


def _ran(session: Session, found: Found, roots: Sequence[Path], variable: str) -> Ran:
    files: frozenset[str] = frozenset()
    try:
        loaded = session.load(found, roots)
        files = frozenset(loaded.target_files)
        return Ran(loaded.plan(variable), None, files)
    except InputError as e:
        return Ran(None, e, files)


def _answer(session: Session, found: Found, roots: list[str], variable: str) -> list[Any]:
    try:
        ran = _ran(session, found, [*map(Path, roots)], variable)
    except Exception:
        return ["bug", traceback.format_exc(), []]
    files = sorted(ran.target_files)
    if ran.plan is None:
        assert ran.error is not None
        return [type(ran.error).__name__, ran.error.message, files]
    data = dataclasses.asdict(ran.plan)
    for patch in data["patches"]:
        patch["kind"] = patch["kind"].value
    return ["plan", data, files]


def _plan(data: dict[str, Any]) -> Plan:
    def patch(kind: str, target: str, replacement: Any, description: str, name_map: Any) -> Any:
        place: Code | External = (Code if "line" in replacement else External)(**replacement)
        pairs = tuple((key, value) for key, value in name_map)
        return PlannedPatch(PatchType(kind), target, place, description, pairs)

    def added(names: list[str] | None, **fields: Any) -> PlannedImport:
        return PlannedImport(names=None if names is None else tuple(names), **fields)

    changed = {
        "patches": tuple(patch(**p) for p in data["patches"]),
        "imports": tuple(added(**i) for i in data["imports"]),
        "helpers": tuple(Code(**c) for c in data["helpers"]),
        "after": tuple((anchor, Code(**c)) for anchor, c in data["after"]),
    }
    texts = {k: tuple(data[k]) for k in ("blocks", "dropped", "excluded")}
    return Plan(**{**data, **changed, **texts})
