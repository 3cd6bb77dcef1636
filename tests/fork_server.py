"""`ntool` without its start-up time, for tests that call it from a shell.

Most of a short call is the import of NumPy, ONNX and ONNX Runtime. A server imports them once and
forks for each call; the stub that the shell finds as `ntool` sends its arguments, folder and
standard streams there. Each call is still a process of its own, with real pipes and exit codes.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

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
    *("safetensors.numpy", "ntool.app", "ntool.lib.package.verify", "ntool.lib.package.export"),
    *(f"ntool.lib.families.neo_chat.{name}" for name in ("export", "order", "prefill_run")),
)
"""What commands import inside their functions."""


@contextmanager
def ntool_in(folder: Path, env: dict[str, str]) -> Iterator[None]:
    """A program `ntool` in a folder; its calls have the environment `env`."""
    address = str(folder / "s")
    stub = folder / "ntool"
    stub.write_text(STUB.format(python=shlex.quote(sys.executable), address=json.dumps(address)))
    stub.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, __file__, address], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            server.terminate()


def serve(address: str) -> NoReturn:
    """Fork for each call, until terminated."""
    for name in LOADED:
        import_module(name)
    from ntool.app import application

    application()
    _one_thread()
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


def _one_thread() -> None:
    """Sessions of one thread unless another number is asked for: threads of ONNX Runtime spin while
    they wait, which costs twice the work itself in graphs of this size."""
    import onnxruntime as ort

    class Session(ort.InferenceSession):
        def __init__(self, path: str, sess_options: ort.SessionOptions, **more: object) -> None:
            sess_options.intra_op_num_threads = sess_options.intra_op_num_threads or 1
            super().__init__(path, sess_options, **more)

    ort.InferenceSession = Session


def _reap(signum: int, frame: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(call: socket.socket, message: bytes, streams: list[int]) -> NoReturn:
    from ntool.guard import run

    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
            os.close(fd)
        folder, *arguments = os.fsdecode(message).split("\0")
        os.chdir(folder)
        code = run(arguments)
    finally:
        call.sendall(str(code).encode())
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
