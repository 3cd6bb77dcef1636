"""What a process costs: CPU seconds and peak memory of a child, as the kernel counts them.

The process that measures imports nothing big. On Linux a child begins with the peak memory of its
parent on its account, so whatever needs NumPy or a large checkpoint is a child of its own. Every
command line is noted, to be shown with the numbers.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
NTOOL = [PYTHON, "-m", "ntool"]
"""Started as a module, so that bare Python beside it is the same interpreter."""

NAMES = {PYTHON: "python", f"{ROOT}/": ""}
"""What command lines say for what differs from one machine or run to the next."""
noted: list[str] = []
"""Command lines so far, each once; the reader clears it."""


def note(*commands: list[str], cwd: Path | None = None) -> None:
    """Note one command, or several that are a pipe."""
    line = " | ".join(shlex.join(command) for command in commands)
    if cwd not in (None, ROOT):
        line = f"cd {shlex.quote(str(cwd))} && {line}"
    for text in sorted(NAMES, key=len, reverse=True):
        line = line.replace(text, NAMES[text])
    if line not in noted:
        noted.append(line)


def called(command: list[str]) -> str:
    """A command in words, without the path of its program."""
    return " ".join([Path(command[0]).name, *command[1:4]])


class Failed(Exception):
    """A child ended with an error; the message has the end of what it said."""


class Skipped(Exception):
    """A row cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds (user and system), peak resident bytes, and seconds from start to end."""

    cpu: float
    rss: int
    wall: float

    @property
    def megabytes(self) -> float:
        """Memory in MB, of 10^6 bytes."""
        return self.rss / 1e6


def run(*commands: list[str], cwd: Path | None = None) -> Cost:
    """Run one command, or several as a pipe, output thrown away.

    Returns:
        CPU seconds of all together, memory of the biggest.
    Raises:
        Failed: a command ended with an error.
    """
    note(*commands, cwd=cwd)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        children: list[subprocess.Popen[bytes]] = []
        for i, command in enumerate(commands):
            before = children[-1].stdout if children else subprocess.DEVNULL
            last = i == len(commands) - 1
            out = subprocess.DEVNULL if last else subprocess.PIPE
            child = subprocess.Popen(command, stdin=before, stdout=out, stderr=said, cwd=cwd)
            if children and children[-1].stdout:
                children[-1].stdout.close()
            children.append(child)
        ends = [os.wait4(child.pid, 0) for child in children]
        wall = time.perf_counter() - started
        for child, command, (_, status, _) in zip(children, commands, ends, strict=True):
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                said.seek(0)
                text = " ".join(said.read().decode(errors="replace").split())[-300:]
                raise Failed(f"{called(command)} ended with {child.returncode}: {text}")
    unit = 1 if sys.platform == "darwin" else 1024
    used = [usage for _, _, usage in ends]
    cpu = sum(u.ru_utime + u.ru_stime for u in used)
    return Cost(cpu, max(u.ru_maxrss for u in used) * unit, wall)


def middle(costs: list[Cost]) -> Cost:
    """Medians, each of its own."""
    return Cost(
        median(c.cpu for c in costs),
        int(median(c.rss for c in costs)),
        median(c.wall for c in costs),
    )


def in_turn(runs: int, *things: Callable[[], Cost], warm: bool = True) -> list[Cost]:
    """The medians of several things measured by turns, so that a busy moment of the machine falls
    on all of them; one round before is not counted, unless it takes too long (`warm` is false)."""
    for thing in things if warm else ():
        thing()
    rounds = [[thing() for thing in things] for _ in range(runs)]
    return [middle(list(column)) for column in zip(*rounds, strict=True)]


def output_of(command: list[str], cwd: Path | None = None) -> str:
    """Standard output of a command.

    Raises:
        Failed: it ended with an error.
    """
    note(command, cwd=cwd)
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        text = " ".join(done.stderr.split())[-300:]
        raise Failed(f"{called(command)} ended with {done.returncode}: {text}")
    return done.stdout
