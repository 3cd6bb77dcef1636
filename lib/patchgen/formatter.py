"""The project's formatter, as a filter: text on standard input, told the final path."""

from __future__ import annotations

import ast
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

from ..errors import MAX_ECHO, EnvironmentProblem, printable, shorten

PATH = "{path}"
SECONDS = 30
"""For one module; formatters take a tenth of a second."""
LEAST_OUTPUT = 64 << 20
OUTPUT_FACTOR = 20
"""A formatter may answer with as many bytes, or as many times what it was given."""
MAX_SAID = 1 << 20
"""Bytes of its messages that are kept: the last one is told."""
CHUNK = 1 << 16


class Formatter:
    """Runs the command of the settings.

    Args:
        command: program and arguments; `{path}` in an argument is the final path of the module, so
            that settings tied to paths act on what is generated and on what is checked alike.
        folder: where it runs: that of the settings.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command, self._folder = tuple(command), folder

    @cached_property
    def version(self) -> str:
        """The first line of its `--version`."""
        done = self._run([self._command[0], "--version"], b"")
        return shorten(done.decode(errors="replace").strip().split("\n")[0], MAX_ECHO)

    def format(self, text: str, path: Path) -> str:
        """The text as the formatter leaves it.

        Raises:
            EnvironmentProblem: it is not there, fails, takes too long, or answers with no text.
        """
        arguments = [a.replace(PATH, str(path)) for a in self._command]
        try:
            out = self._run(arguments, text.encode()).decode()
        except UnicodeDecodeError as e:
            raise EnvironmentProblem(f"formatter '{self._command[0]}': output is no UTF-8") from e
        try:
            kept = bool(ast.parse(out).body) or not ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            raise EnvironmentProblem(
                f"formatter '{self._command[0]}': output is not Python ({printable(e)})"
            ) from e
        if not kept:
            raise EnvironmentProblem(f"formatter '{self._command[0]}': output is empty")
        return out.replace("\r\n", "\n")

    def _run(self, arguments: list[str], given: bytes) -> bytes:
        name = f"formatter '{self._command[0]}'"
        most = max(LEAST_OUTPUT, OUTPUT_FACTOR * len(given))
        until = time.monotonic() + SECONDS
        with tempfile.TemporaryFile() as source:
            source.write(given)
            source.seek(0)
            try:
                process = subprocess.Popen(
                    arguments,
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=self._folder,
                )
            except (OSError, ValueError) as e:
                reason = getattr(e, "strerror", None) or e
                raise EnvironmentProblem(f"{name}: cannot be run ({reason})") from e
        assert process.stdout is not None and process.stderr is not None
        try:
            out = _Reader(process.stdout, most, process.kill)
            err = _Reader(process.stderr, MAX_SAID)
            for reader in (out, err):
                reader.join(max(0, until - time.monotonic()))
            if out.is_alive() or err.is_alive():
                raise EnvironmentProblem(f"{name}: no answer in {SECONDS} s")
            if out.too_much:
                raise EnvironmentProblem(f"{name}: answers with more than {most} bytes")
            code = process.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired as e:
            raise EnvironmentProblem(f"{name}: no answer in {SECONDS} s") from e
        finally:
            process.kill()  # nothing, where it has ended
            process.wait()
        if code:
            lines = err.data.decode(errors="replace").strip().split("\n")
            said = printable(lines[-1]) if lines[-1] else "nothing on standard error"
            raise EnvironmentProblem(f"{name}: exit code {code} ({said})")
        return bytes(out.data)


class _Reader(threading.Thread):
    """Reads a stream to its end in the background.

    Args:
        most: bytes to keep.
        stop: called when there are more, and nothing more is read; without it the last are kept.
    Attributes:
        data: what was read.
        too_much: `stop` was called.
    """

    def __init__(
        self, stream: IO[bytes], most: int, stop: Callable[[], None] | None = None
    ) -> None:
        super().__init__(daemon=True)  # a process that the formatter started may hold the stream
        self._from, self._most, self._at_most = stream, most, stop
        self.data, self.too_much = bytearray(), False
        self.start()

    def run(self) -> None:
        with self._from:
            while chunk := self._from.read1(CHUNK):  # type: ignore[attr-defined]
                self.data += chunk
                if len(self.data) <= self._most:
                    continue
                if self._at_most is not None:
                    self.too_much = True
                    self._at_most()
                    return
                del self.data[: -self._most]
