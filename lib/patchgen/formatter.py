"""The project's formatter, as a filter: text on standard input, told the final path."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from ..errors import EnvironmentProblem, printable

PATH = "{path}"
SECONDS = 30
"""For one module; formatters take a tenth of a second."""


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
        return done.decode(errors="replace").strip().split("\n")[0]

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
        try:
            done = subprocess.run(
                arguments, input=given, capture_output=True, cwd=self._folder, timeout=SECONDS
            )
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or e
            raise EnvironmentProblem(f"{name}: cannot be run ({reason})") from e
        except subprocess.TimeoutExpired as e:
            raise EnvironmentProblem(f"{name}: no answer in {SECONDS} s") from e
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().split("\n")
            said = printable(lines[-1]) if lines[-1] else "nothing on standard error"
            raise EnvironmentProblem(f"{name}: exit code {done.returncode} ({said})")
        return done.stdout
