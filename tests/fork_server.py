"""`ntool` without its start-up time, for tests that call it from a shell or watch what it does.

Most of a short call is the import of NumPy, ONNX and ONNX Runtime. A server imports them once and
forks for each call; the stub that the shell finds as `ntool` sends its arguments, folder and
standard streams there. Each call is still a process of its own, with real pipes and exit codes.
`Server.watched` sends a call from the test itself, to be watched by an audit hook.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryFile
from typing import Any, NoReturn

STUB = """\
#!/bin/sh
exec {python} -I -S -c '
import os, sys, _socket as k
s = k.socket(k.AF_UNIX)
s.connect({address})
streams = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2))
words = "\\0".join([os.getcwd(), *sys.argv[1:]])
s.sendmsg([os.fsencode(words)], [(k.SOL_SOCKET, k.SCM_RIGHTS, streams)])
sys.exit(int(s.recv(8) or b"70"))
' "$@"
"""
"""`_socket` alone starts in half the time of `socket`."""
LOADED = (
    *("numpy", "ml_dtypes", "onnx", "onnxruntime", "tokenizers", "PIL.Image", "jsonschema"),
    *("safetensors.numpy", "concurrent.futures.thread", "logging", "ntool.guard"),
)
"""What commands import inside their functions, beside the modules of `ntool.lib`."""


LIGHT = (
    *("ntool.guard", "ntool.lib.inspection", "ntool.lib.judgement", "ntool.lib.census_files"),
    *("ntool.lib.experts.detect", "ntool.lib.fp8.preflight", "ntool.lib.families.recognise"),
    *("ntool.lib.checkpoint.onnx_header", "ntool.lib.checkpoint.gguf_header"),
)
WATCHED = "\1watched"
"""First word of a call that is to be watched; after it the folder that may be read, and those that
may be changed."""


@dataclass(frozen=True)
class Watched:
    """How a watched call ended.

    Attributes:
        opened, events: see `audited.py`.
        rss, grown: peak memory in bytes, and what of it the libraries that the server had loaded
            already do not account for.
    """

    code: int
    out: str
    err: str
    seconds: float
    opened: list[str]
    events: list[str]
    rss: int
    grown: int


class Server:
    """A process that answers calls of ntool by forking."""

    def __init__(self, address: str) -> None:
        self._address = address

    def called(
        self, arguments: list[str], cwd: Path, stdin: bytes = b"", timeout: float = 120
    ) -> tuple[int, bytes, bytes]:
        """Run `ntool ARGUMENTS` in a folder: exit code, and what it wrote.

        Raises:
            TimeoutError: no answer in time.
        """
        answer, out, err, _ = self._asked([str(cwd), *arguments], stdin, timeout)
        return int(answer or b"70"), out, err

    def _asked(
        self, words: list[str], stdin: bytes, timeout: float
    ) -> tuple[bytes, bytes, bytes, float]:
        """The answer to a message, standard output and error, and the seconds that it took."""
        with (
            TemporaryFile() as given,
            TemporaryFile() as out,
            TemporaryFile() as err,
            socket.socket(socket.AF_UNIX) as call,
        ):
            given.write(stdin)
            given.seek(0)
            call.settimeout(timeout)
            call.connect(self._address)
            streams = [f.fileno() for f in (given, out, err)]
            started = time.monotonic()
            socket.send_fds(call, [os.fsencode("\0".join(words))], streams)
            answer = b"".join(iter(lambda: call.recv(1 << 16), b""))
            seconds = time.monotonic() - started
            out.seek(0)
            err.seek(0)
            return answer, out.read(), err.read(), seconds

    def watched(
        self, arguments: list[str], cwd: Path, inside: Path, writable: list[Path]
    ) -> Watched:
        """Run `ntool ARGUMENTS` in a folder, watched; standard input is empty.

        Args:
            inside: the folder that may be read.
            writable: folders that may be read and changed.
        Raises:
            TimeoutError: no answer after a minute.
        """
        words = [WATCHED, str(inside), os.pathsep.join(map(str, writable)), str(cwd), *arguments]
        answer, out, err, seconds = self._asked(words, b"", 60)
        said, warned = out.decode(), err.decode()
        assert answer, f"{arguments}: the process died: {warned[-2000:]}"
        return Watched(out=said, err=warned, seconds=seconds, **json.loads(answer))


@contextmanager
def served(folder: Path, env: dict[str, str], light: bool = False) -> Iterator[Server]:
    """A server whose socket is in a folder; its calls have the environment `env`.

    Args:
        light: for commands that read headers, which need no libraries: a smaller process forks in
            less time.
    """
    address = str(folder / ("light" if light else "s"))
    command = [sys.executable, __file__, address, *(["light"] if light else [])]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield Server(address)
        finally:
            server.terminate()


@contextmanager
def ntool_in(folder: Path, env: dict[str, str]) -> Iterator[None]:
    """A program `ntool` in a folder; its calls have the environment `env`."""
    stub = folder / "ntool"
    address = json.dumps(str(folder / "s"))
    stub.write_text(STUB.format(python=shlex.quote(sys.executable), address=address))
    stub.chmod(0o755)
    with served(folder, env):
        yield


def serve(address: str, light: bool = False) -> NoReturn:
    """Fork for each call, until terminated."""
    import ntool.lib
    from ntool import app

    ours = (m.name for m in walk_packages(ntool.lib.__path__, "ntool.lib."))
    for name in LIGHT if light else (*LOADED, *ours):
        import_module(name)
    made = app.application()
    app.application = lambda: made
    if not light:
        one_thread()
    gc.freeze()  # the collector of a child then leaves the pages of the server alone
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, _reap)
    print("ready", flush=True)
    while True:
        call, _ = listener.accept()
        message, streams, _, _ = socket.recv_fds(call, 1 << 16, 3)
        if os.fork() == 0:
            listener.close()
            _answer(call, message, streams)
        for fd in streams:
            os.close(fd)
        call.close()


def one_thread() -> None:
    """Sessions of one thread unless another number is asked for: threads of ONNX Runtime spin while
    they wait, which costs twice the work itself in graphs of this size."""
    import onnxruntime as ort

    class Session(ort.InferenceSession):
        def __init__(
            self, path: str | bytes, sess_options: ort.SessionOptions | None = None, **more: object
        ) -> None:
            options = sess_options or ort.SessionOptions()
            options.intra_op_num_threads = options.intra_op_num_threads or 1
            super().__init__(path, options, **more)

    ort.InferenceSession = Session


def _reap(signum: int, frame: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(call: socket.socket, message: bytes, streams: list[int]) -> NoReturn:
    from ntool.guard import run

    code, seen = 70, None
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
            os.close(fd)
        words = os.fsdecode(message).split("\0")
        if words[0] == WATCHED:
            from audited import watch

            _, inside, writable, *words = words
            seen = watch(inside, writable.split(os.pathsep) if writable else [])
        folder, *arguments = words
        os.chdir(folder)
        code = run(arguments)
        sys.stdout.flush()
    finally:
        answer: Any = code if seen is None else {"code": code, **seen()}
        call.sendall(json.dumps(answer).encode())
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], light="light" in sys.argv[2:])
