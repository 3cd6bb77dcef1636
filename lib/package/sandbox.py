"""Checks of a stranger's package in a process of their own, with limits of time and memory.

Graphs are parsed, inferred and run by libraries in C++. A graph that makes one of them crash, loop
or take all memory ends that process; here it is a finding of the check that was at work, and the
next check goes on in a new process. One process does all checks of all components, so a graph is
read once. This is a guard against faults and floods, not a wall: the process has the rights of
the user.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import errors, progress
from ..errors import NtoolError
from ..runtime import child as processes
from ..runtime.child import Channel, Child, Closed, Late
from .checks.catalogue import BY_ID
from .checks.subject import Check, Finding, Options, Part, Subject, bad, not_applicable
from .checks.weights import open_source
from .limits import Limits, allow, confine
from .remote_progress import KINDS, Shown, listener

UNTIMED = ("data.", "weights.")
"""Checks that read as long as there are bytes, by code of our own that is bounded by them."""
MAX_ENDS = 8
"""Processes that may end before the rest of the checks is left out: each may take its full time."""
WORKER = "from ntool.lib.package.sandbox import main; main()"

Fate = tuple[str, str, str, str | None]
"""How a process ended: reason, words, what was expected, what was found."""


class Sandbox:
    """Runs checks of a subject, each in the process that is at hand.

    Use as a context manager: the process ends with the block.
    """

    def __init__(self, subject: Subject, limits: Limits, how: str | None = None) -> None:
        """
        Args:
            how: `fork`, `program` or `none`; by default what fits this system and device. CUDA does
                not survive a fork, nor does it work with limited addresses.
        """
        self._subject, self._limits = subject, limits
        on_cpu = subject.options.device[0] == "cpu"
        if how is None:
            how = "fork" if processes.can_fork() and on_cpu else "program"
            how = how if processes.available() else "none"
        if not on_cpu:
            self._limits = dataclasses.replace(limits, nbytes=None)
        self.how = how
        self._child: Child | None = None
        self._fates: dict[tuple[str, str], Fate] = {}
        self._ends = 0
        self._parts = {p.name: p for p in (*subject.parts, *subject.beside)}

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def open_source(self) -> None:
        """Open the checkpoint of --against: here if its files are, for every process to come; else
        in the process that will read it, because connections cannot be shared.

        Raises: as `checks.weights.open_source`.
        """
        against = self._subject.options.against
        here = against is None or against.startswith("demo:") or os.path.exists(against)
        if self.how == "none" or here:
            open_source(self._subject)
            return
        outcome = self._asked(["open"], timed=False)
        if isinstance(outcome, tuple):
            raise errors.InputError(f"--against {self._subject.options.against}: {outcome[1]}")

    def read_dtypes(self) -> None:
        """Fill `dtypes` of every part, which this process then need not parse a graph for."""
        for part in self._subject.parts if self.how != "none" else ():
            found: Any = None
            while found is None and self._ends < MAX_ENDS:
                found = self._asked(["dtypes", part.name], timed=True)
            known = found[0].actual if isinstance(found, list) else None
            part.__dict__["dtypes"] = known and {k: (n, size) for k, (n, size) in known.items()}

    def run(self, check: Check, part: Part | None) -> list[Finding]:
        """Findings of a check; one that says how its process ended, if it did.

        Raises:
            NtoolError: what the check raises.
            RuntimeError: a bug in a check; with its traceback.
        """
        if self.how == "none":
            return check.run(self._subject, part) if part else check.run(self._subject)
        timed = not check.id.startswith(UNTIMED)
        request = ["check", check.id, part.name if part else None]
        while True:
            if self._ends >= MAX_ENDS:
                text = f"not run: {self._ends} checks have ended their process"
                return [not_applicable(text, reason="given-up")]
            outcome = self._asked(request, timed=timed)
            if isinstance(outcome, list):
                return outcome
            if outcome is not None:
                return [told(part, outcome)]

    def _asked(self, request: list[Any], *, timed: bool) -> list[Finding] | Fate | None:
        """Findings; how the process ended; None if it did so in a step that is now known to end
        it, so that asking again gets further."""
        with Shown() as shown:
            return self._heard(request, timed, shown)

    def _heard(self, request: list[Any], timed: bool, shown: Shown) -> list[Finding] | Fate | None:
        steps: list[tuple[str, str]] = []
        seconds = self._limits.seconds
        since = time.monotonic()
        try:
            child = self._child or self._start()
            child.channel.send(request)
            while True:
                left = None
                if seconds is not None and (timed or steps):
                    left = max(seconds - (time.monotonic() - since), 0)
                kind, *rest = child.channel.receive(left)
                if kind in KINDS:
                    shown.take(kind, rest)
                    if left == 0:  # signs of life buy no time
                        raise Late
                    continue
                since = time.monotonic()
                if kind == "enter":
                    steps.append((str(rest[0]), str(rest[1])))
                elif kind == "leave":
                    steps.pop()
                elif kind == "answer":
                    return [Finding(**fields) for fields in rest[0]]
                elif kind == "memory":
                    fate = self._out_of_memory()
                    break
                else:
                    _raise(kind, rest)
        except Late:
            fate = ("time", f"not done after {seconds:g} s", f"<= {seconds:g} s", None)
        except (Closed, IndexError, TypeError, ValueError):
            fate = ("", "", "", None)  # what it says is no message: that process is broken
        status = self._end()
        self._ends += 1
        if not fate[0]:
            fate = self._crashed(status)
        if steps and steps[-1][1] in self._parts and steps[-1] not in self._fates:
            self._fates[steps[-1]] = fate
            return None
        return fate

    def _out_of_memory(self) -> Fate:
        limit = self._limits.nbytes
        most = "the memory of this machine" if limit is None else f"<= {limit >> 20} MiB"
        return ("memory", "needs more memory", most, None)

    def _crashed(self, status: int | None) -> Fate:
        how = processes.manner(status)
        if how == "SIGKILL":
            how += ", which the system sends where memory runs out"
        return ("crashed", f"its process crashed ({how})", "an end without a crash", how)

    def _start(self) -> Child:
        subject, limits, fates = self._subject, self._limits, self._fates
        subject.scratch  # noqa: B018 (it outlives the process, and is removed here)
        if self.how == "fork":
            self._child = processes.fork(lambda c: serve(c, subject, limits, fates))
            return self._child
        self._child = processes.program(WORKER)
        job = {
            "path": subject.path,
            "scratch": subject.scratch,
            "options": {
                **vars(subject.options),
                "goldens": [
                    f"{g.component}={g.path}" if g.component else g.path
                    for g in subject.options.goldens
                ],
            },
            "limits": dataclasses.asdict(limits),
            "fates": [[list(k), list(v)] for k, v in fates.items()],
        }
        self._child.channel.send(job)
        return self._child

    def _end(self) -> int | None:
        if self._child is None:
            return None
        found, self._child = self._child, None
        return found.end()


def told(part: Part | None, fate: Fate) -> Finding:
    """The finding that the end of a process is."""
    reason, words, expected, actual = fate
    return bad(f"{part.file}: {words}" if part else words, expected, actual, reason=reason)


def _raise(kind: str, rest: list[Any]) -> None:
    """Raise here what was raised there."""
    if kind == "error":
        name, message, hint = rest
        found = getattr(errors, name, None)
        if isinstance(found, type) and issubclass(found, NtoolError):
            raise found(message, hint=hint)
    if kind == "bug":
        raise RuntimeError(f"in the process of the checks:\n{rest[0]}")
    raise Closed


def serve(
    channel: Channel, subject: Subject, limits: Limits, fates: dict[tuple[str, str], Fate]
) -> None:
    """Answer requests about a subject until there are no more: the other end of `Sandbox`."""
    parts = {p.name: p for p in (*subject.parts, *subject.beside)}
    for part in parts.values():
        part.watch = _watching(channel, part.name)
    for (step, name), fate in fates.items():
        if name in parts:
            parts[name].ends[step] = told(parts[name], fate)
    confine(limits)
    progress.listen(listener(channel))
    while True:
        try:
            kind, *rest = channel.receive()
        except Closed:
            return
        reply: list[Any]
        try:
            if kind == "open":
                allow(None)
                open_source(subject)
                found = []
            elif kind == "dtypes":
                allow(limits.seconds)
                found = [Finding(True, "", actual=parts[rest[0]].dtypes)]
            else:
                check = BY_ID[rest[0]]
                allow(None if check.id.startswith(UNTIMED) else limits.seconds)
                part_or_none = parts[rest[1]] if rest[1] is not None else None
                found = check.run(subject, part_or_none) if part_or_none else check.run(subject)
            reply = ["answer", [vars(f) for f in found]]
        except MemoryError:
            reply = ["memory"]
        except NtoolError as e:
            reply = ["error", type(e).__name__, e.message, e.hint]
        except Exception as e:
            reply = ["memory"] if _lacks_memory(e) else ["bug", traceback.format_exc()]
        channel.send(reply)


def _lacks_memory(error: Exception) -> bool:
    """Whether it is what other things raise in the place of MemoryError: the system, the loader of
    shared libraries, the start of a thread."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    words = ("failed to map segment", "cannot allocate memory", "can't start new thread")
    return any(w in str(error).lower() for w in words)


def _watching(channel: Channel, name: str) -> Any:
    @contextmanager
    def watch(step: str) -> Iterator[None]:
        channel.send(["enter", step, name])
        try:
            yield
        except MemoryError:
            raise  # never left: this step is to blame
        except BaseException:
            channel.send(["leave"])
            raise
        channel.send(["leave"])

    return watch


def main() -> None:
    """The worker of `program`: the same in a process that begins with nothing."""

    from .golden_file import open_goldens

    def begin(channel: Channel) -> None:
        job = channel.receive()
        words = job["options"].pop("goldens")
        options = Options(**{**job["options"], "device": tuple(job["options"]["device"])})
        subject = Subject(job["path"], options)
        options.goldens = open_goldens(words, [p.name for p in subject.parts])
        subject.scratch = job["scratch"]
        fates = {(k[0], k[1]): (v[0], v[1], v[2], v[3]) for k, v in job["fates"]}
        serve(channel, subject, Limits(**job["limits"]), fates)

    processes.answer_on_streams(begin)
