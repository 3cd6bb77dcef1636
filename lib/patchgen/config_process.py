"""Runs config modules in a process of their own: what they do to it, they do not do to ntool.

A config is a program. It may write to standard output by any way, close it, change the current
folder, or end the process. One process runs all configs of a run, so that what they all import is
imported once; one that it does not survive is told, and the next gets a new process, as it does
after one that raises or changes what ntool itself relies on. Plans come back as JSON, with the
number of the request that they answer; what comes back is data of a stranger and is checked.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..runtime import child as processes
from ..runtime.child import MAX_LINE, Channel, Child, Closed, NoMessage, TooLong
from .discover import Found
from .model import Plan
from .plan_data import from_data, texts, to_data
from .process_state import ProcessState
from .run import NoConfig, Session, Unreadable, reading

# bound here: a config may replace them in their modules
_getpid, _exit = os.getpid, os._exit


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
        self._number = 0

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
        asked = self._asked(found, roots, variable)
        if isinstance(asked, InputError):
            return Ran(None, asked)
        if isinstance(asked, Ran):
            return asked
        raise RuntimeError(asked.traceback)

    def _asked(self, found: Found, roots: Sequence[Path], variable: str) -> Ran | _Bug | InputError:
        """The answer of the process; an error if there is none."""
        if self._child is None:
            sys.stdout.flush()  # else the copy has what is in there, too
            self._child = processes.fork(self._serve, streams=True)
        self._number += 1
        request = [self._number, str(found.file), found.module, [*map(str, roots)], variable]
        try:
            self._child.channel.send(request)
            ran, usable = _read(self._child.channel.receive(), request)
        except TooLong:
            self._end()
            limit = f"{MAX_LINE >> 20} MiB"
            return InputError(f"{found.file}: the plan of the config is too long (over {limit})")
        except (NoMessage, ValueError, TypeError, KeyError, RecursionError):
            self._end()
            what = "what comes back from the process that runs the config is no answer"
            return InputError(f"{found.file}: {what}")
        except Closed:
            how = processes.manner(self._end())
            return InputError(f"{found.file}: the config ends the process that runs it ({how})")
        if not usable:
            self._end()
        return ran

    def _end(self) -> int | None:
        assert self._child is not None
        ended, self._child = self._child, None
        return ended.end()

    def _serve(self, channel: Channel) -> None:
        """Answer requests until there are no more: in the other process."""
        os.dup2(2, 1)  # for good: a config may leave a thread behind that writes
        pid = _getpid()
        kept = [channel]
        os.register_at_fork(after_in_child=lambda: _let_go(kept))
        state = ProcessState()
        with Session(self._shim_modules) as session:
            while True:
                try:
                    number, file, module, roots, variable = channel.receive()
                except Closed:
                    return
                state.note_modules()
                answer = _answer(session, state, Found(Path(file), module), roots, variable)
                if _getpid() != pid:
                    _exit(0)
                channel.send([number, *answer])


def _let_go(kept: list[Channel]) -> None:
    """Copies that a config makes of the process neither answer nor keep the channel open.

    Once: in copies of a copy the numbers of the descriptors may be those of other files.
    """
    while kept:
        with suppress(OSError):
            kept.pop().close()


def _ran(session: Session, found: Found, roots: Sequence[Path], variable: str) -> Ran:
    files: frozenset[str] = frozenset()
    try:
        loaded = session.load(found, roots)
        files = frozenset(loaded.target_files)
        return Ran(loaded.plan(variable), None, files)
    except InputError as e:
        return Ran(None, e, files)


def _answer(
    session: Session, state: ProcessState, found: Found, roots: list[str], variable: str
) -> list[Any]:
    """Kind, value, target files, and whether the process may run another config."""
    try:
        ran = _ran(session, found, [*map(Path, roots)], variable)
        if ran.plan is None:
            assert ran.error is not None
            kind = "NoConfig" if isinstance(ran.error, NoConfig) else "InputError"
            value: Any = ran.error.message
        else:
            plan = ran.plan
            kind, value = "plan", reading(found.file, lambda: to_data(plan))
        usable = not (isinstance(ran.error, Unreadable) or session.traced or state.changed())
        return [kind, value, sorted(ran.target_files), usable]
    except InputError as e:
        return ["InputError", e.message, [], False]
    except KeyboardInterrupt:  # that of a terminal is ignored here: the config's own
        what = "the config cannot be loaded (KeyboardInterrupt)"
        return ["InputError", f"{found.file}: {what}", [], False]
    except BaseException as e:
        if state.changed():
            what = "the config changes the process that runs it, and its plan cannot be read"
            return ["InputError", f"{found.file}: {what} ({type(e).__name__})", [], False]
        return ["bug", traceback.format_exc(), [], False]


@dataclass(frozen=True)
class _Bug:
    traceback: str


def _read(answer: Any, request: list[Any]) -> tuple[Ran | _Bug, bool]:
    """What an answer says, and whether the process that gave it may run another config.

    Raises:
        ValueError, TypeError, KeyError: it is no answer to this request.
    """
    number, kind, value, target_files, usable = answer
    files = frozenset(texts(target_files))
    if type(number) is not int or number != request[0] or not isinstance(usable, bool):
        raise ValueError("another request's")
    if kind == "plan":
        plan = from_data(value)
        if [plan.file, plan.module, plan.variable] != [request[1], request[2], request[4]]:
            raise ValueError("another config's")
        return Ran(plan, None, files), usable
    if kind not in ("NoConfig", "InputError", "bug") or not isinstance(value, str):
        raise ValueError("no kind of answer")
    if kind == "bug":
        return _Bug(value), usable
    return Ran(None, (NoConfig if kind == "NoConfig" else InputError)(value), files), usable
