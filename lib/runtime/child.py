"""A process of its own that answers requests, and that may die of them.

Requests and answers are lines of JSON over two pipes: what comes from a process that an odd file
may have broken is data, and nothing that is unpickled.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import EnvironmentProblem

if TYPE_CHECKING:
    from subprocess import Popen

MAX_LINE = 64 << 20
"""Bytes of one message."""
CHUNK = 1 << 16

# bound here: what runs in such a process may replace them in their modules
_read, _write = os.read, os.write
_dumps, _loads = json.dumps, json.loads


class Closed(Exception):
    """The other side has ended."""


class TooLong(Closed):
    """A message is longer than MAX_LINE."""


class NoMessage(Closed):
    """What came is no JSON."""


class Late(Exception):
    """No message within the time that there was for it."""


class Channel:
    """Messages to and from the other side: JSON values."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def send(self, value: Any) -> None:
        """
        Raises:
            Closed: nobody reads.
        """
        rest = memoryview(_dumps(value).encode() + b"\n")
        try:
            with self._sending:
                while rest:
                    rest = rest[_write(self._target, rest) :]
        except OSError as e:
            raise Closed from e

    def receive(self, seconds: float | None = None) -> Any:
        """The next message; None waits for ever.

        Raises:
            Closed: there will be none, or what came is no message (TooLong, NoMessage).
            Late: there is none yet.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while (end := self._buffer.find(b"\n")) < 0:
            if until is not None:
                left = until - time.monotonic()
                if left <= 0 or not _readable(self._source, left):
                    raise Late
            try:
                chunk = _read(self._source, CHUNK)
            except OSError as e:
                raise Closed from e
            if not chunk:
                raise Closed
            if len(self._buffer) > MAX_LINE:
                raise TooLong
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            return _loads(line)
        except (ValueError, RecursionError) as e:
            raise NoMessage from e

    def close(self) -> None:
        """Close both descriptors."""
        for fd in (self._source, self._target):
            os.close(fd)


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Child:
    """A process that is there.

    Attributes:
        channel: to it and from it.
    """

    def __init__(self, channel: Channel, pid: int, program: Popen[bytes] | None = None) -> None:
        self.channel, self._pid, self._program = channel, pid, program

    def end(self) -> int | None:
        """End it, if it has not, and say how it ended: an exit code, or a signal's number below
        zero; None where the system does not say."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # whoever started us ignores SIGCHLD
            return self._ended(None)
        return self._ended(os.waitstatus_to_exitcode(status))

    def _ended(self, code: int | None) -> int | None:
        if self._program is None:
            self.channel.close()
        else:
            self._program.returncode = code or 0  # else its end would be waited for again
            for stream in (self._program.stdin, self._program.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        return code


def can_fork() -> bool:
    """Whether a copy of this process may go on working: system libraries of macOS do not."""
    return sys.platform == "linux"


def available() -> bool:
    """Whether there can be such processes: pipes of Windows cannot be waited for."""
    return hasattr(select, "poll")


def fork(serve: Callable[[Channel], None], *, streams: bool = False) -> Child:
    """A copy of this process, in which `serve` runs; it has everything that is loaded here.

    Args:
        streams: it keeps the standard streams. Else they are empty, and what it writes is lost.

    Threads are not copied. Those of NumPy know what a fork is; those of sessions of ONNX Runtime
    wait for work with no lock held, and the copy neither uses nor frees such sessions.

    Raises:
        EnvironmentProblem: the system starts no process.
    """
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts threads
            pid = os.fork()
    except OSError as e:
        for fd in (theirs_in, ours_out, ours_in, theirs_out):
            os.close(fd)
        raise EnvironmentProblem(f"cannot start a process: {e.strerror or e}") from e
    if pid == 0:
        try:
            os.close(ours_in)
            os.close(ours_out)
            _settle(streams)
            serve(Channel(theirs_in, theirs_out))
        except BaseException:
            os._exit(1)
        finally:
            os._exit(0)
    os.close(theirs_in)
    os.close(theirs_out)
    return Child(Channel(ours_in, ours_out), pid)


def _settle(streams: bool = False) -> None:
    """Make a copy harmless: no cleaning up of what is not its own, no terminal but on request."""
    gc.freeze()  # a session that is garbage here has threads to be joined that are not here
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the parent ends this process
    if "faulthandler" in sys.modules:
        sys.modules["faulthandler"].disable()
    if streams:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def program(code: str, arguments: Sequence[str] = ()) -> Child:
    """A new Python process that runs `code`, with a channel on its standard streams.

    Raises:
        EnvironmentProblem: the system starts no process.
    """
    from subprocess import DEVNULL, PIPE, Popen

    # -P: the folder that it starts in may be anybody's, and is no place to import from
    command = [sys.executable, "-P", "-c", code, *arguments]
    try:
        started = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, bufsize=0)
    except OSError as e:
        raise EnvironmentProblem(f"cannot start a process: {e.strerror or e}") from e
    assert started.stdin is not None and started.stdout is not None
    channel = Channel(started.stdout.fileno(), started.stdin.fileno())
    return Child(channel, started.pid, started)


def answer_on_streams(serve: Callable[[Channel], None]) -> NoReturn:
    """What the code of `program` calls: serve on the standard streams, then end at once."""
    source, target = os.dup(0), os.dup(1)
    _settle()
    try:
        serve(Channel(source, target))
    finally:
        os._exit(0)


def manner(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "ended"
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
