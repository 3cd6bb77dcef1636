"""Headers of a repository on the Hub: 131 shards, on a loopback Hub with 30 ms a request."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .measure import NAMES, NTOOL, PYTHON, ROOT, Cost, Failed, in_turn, note, run
from .table import Bench, Line, Row, at_least, at_most

DELAY = 0.03
"""Seconds before each answer: a Hub on the same continent."""
REQUESTS, BYTES, FACTOR = 135, 40_000_000, 3
PEER = "get_safetensors_metadata"
"""The function of huggingface_hub that reads all headers of a repository."""


class Hub:
    """A loopback Hub in a process of its own, that serves one folder as `org/model`.

    Attributes:
        address: of its endpoint.
    """

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self._process, self._home = process, home
        self.address = self._said()
        NAMES[self.address] = "HUB"

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise Failed("the loopback Hub did not start")
        return line

    def counted(self) -> tuple[int, int]:
        """Requests and bytes of bodies since the last time."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told = json.loads(self._said())
        return told["requests"], told["bytes"]

    def client(self, command: list[str]) -> list[str]:
        """The command as a client of this Hub, with nothing in its cache."""
        shutil.rmtree(self._home, ignore_errors=True)
        settings = {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(self._home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": "",
            "NO_PROXY": "127.0.0.1",
        }
        return ["env", *(f"{k}={v}" for k, v in settings.items()), *command]


@contextmanager
def serving(folder: Path, home: Path) -> Iterator[Hub]:
    """A Hub that serves a folder."""
    command = [PYTHON, "-m", "tests.checkpoint.loopback_hub", str(folder), "--delay", str(DELAY)]
    note(command)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        yield Hub(process, home)
    finally:
        process.kill()
        process.communicate()


def compared(bench: Bench, ours: list[str]) -> Iterator[Line]:
    """Requests and bytes are promised; time as a ratio of the peer's."""
    script = f"import huggingface_hub as h; h.{PEER}('org/model')"
    counts: dict[str, tuple[int, int]] = {}

    def measured(name: str, command: list[str]) -> Cost:
        cost = run(hub.client(command))
        counts[name] = hub.counted()
        return cost

    with serving(bench.checkpoint("fp8"), bench.scratch / "home") as hub:
        things: list[Callable[[], Cost]] = [
            partial(measured, "ours", ours),
            partial(measured, "peer", [PYTHON, "-c", script]),
        ]
        one, other = in_turn(bench.runs, *things)
    requests, nbytes = counts["ours"]
    yield Line(
        _spent(one, counts["ours"]),
        f"{_spent(other, counts['peer'])} (huggingface_hub.{PEER})",
        f"{other.wall / one.wall:.1f}x faster",
        f"<= {REQUESTS} requests, {BYTES / 1e6:.0f} MB; >= {FACTOR}x faster",
        max(
            at_most(requests, REQUESTS),
            at_most(nbytes, BYTES),
            at_least(other.wall / one.wall, FACTOR),
        ),
    )


def _spent(cost: Cost, counts: tuple[int, int]) -> str:
    requests, nbytes = counts
    return f"{cost.wall:.2f} s wall, {cost.cpu:.2f} s, {requests} requests, {nbytes / 1e6:.1f} MB"


def census(bench: Bench) -> Iterator[Line]:
    """Headers read and counted; the peer's are only read."""
    yield from compared(bench, [*NTOOL, "census", "org/model"])


def headers(bench: Bench) -> Iterator[Line]:
    """The same work on both sides: objects of all headers."""
    script = (
        "from ntool.lib.checkpoint.source import open_checkpoint as f; "
        "assert len(f('org/model').tensors) == 152_089"
    )
    yield from compared(bench, [PYTHON, "-c", script])


ROWS = (
    Row(
        "hub-census", "census of 131 shards on a loopback Hub with 30 ms a request", census, most=3
    ),
    Row("hub-headers", "their headers alone, as objects", headers, most=3),
)
