"""Files of one config: written all together, or none of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..checkpoint.output_file import cannot_write, sync_folder
from ..errors import UsageProblem


def write_all(files: Mapping[Path, str]) -> None:
    """Write texts as UTF-8. Either every file has its new text afterwards, or none has.

    Folders are made. A link is followed, and stays.

    Raises:
        UsageProblem: a path is a folder.
        EnvironmentProblem: one cannot be written.
    """
    for path in files:
        if path.is_dir():
            raise UsageProblem(f"output '{path}' is a folder", expected="a file name")
    ready: list[tuple[str, str]] = []
    made: list[Path] = []
    done: list[tuple[str, bytes | None]] = []
    try:
        for path, text in files.items():
            real = os.path.realpath(path)
            with cannot_write(str(path)):
                made += _folders(Path(real).parent)
                temporary = os.path.join(
                    os.path.dirname(real), f".{os.path.basename(real)[:50]}.ntool-{os.getpid()}.tmp"
                )
                ready.append((temporary, real))
                with open(temporary, "wb") as f:
                    f.write(text.encode())
                    f.flush()
                    os.fsync(f.fileno())
        for temporary, real in ready:
            with cannot_write(real):
                old = Path(real).read_bytes() if os.path.exists(real) else None
                os.replace(temporary, real)
                done.append((real, old))
    except BaseException:  # Ctrl-C too must leave no part of it
        for real, old in done:
            with suppress(OSError):
                if old is None:
                    os.unlink(real)
                else:
                    Path(real).write_bytes(old)
        for temporary, _ in ready:
            with suppress(OSError):
                os.unlink(temporary)
        for new in reversed(made):
            with suppress(OSError):
                new.rmdir()
        raise
    for folder in {os.path.dirname(real) for _, real in ready}:
        sync_folder(folder)


def _folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; gives the new ones, outermost first."""
    new: list[Path] = []
    while not folder.exists():
        new.insert(0, folder)
        folder = folder.parent
    for each in new:
        each.mkdir(exist_ok=True)
    return new
