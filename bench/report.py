"""What the numbers were measured with, and writing them into a Markdown page."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .table import Line, markdown

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
"""What `--write` replaces lies between these lines; the words around them are kept."""
PACKAGES = (
    "ntool", "onnxruntime-gpu", "onnxruntime", "onnx", "numpy", "safetensors", "typer",
    "huggingface_hub",
)  # fmt: skip


def versions() -> str:
    """Versions of Python and of the packages whose speed or numbers are in the table."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def machine() -> str:
    """The kind of machine, in words that name nobody's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kind = f"{platform.system()} on {platform.machine()}"
    return f"{kind}, {os.cpu_count()} cores, {memory:.0f} GiB of memory, CPU provider"


def page(tables: Mapping[str, Sequence[Line]], command: str, runs: int) -> str:
    """Everything that stands between the markers: what was run, where, and a table a heading."""
    body = [
        BEGIN,
        f"Measured with `{command}`: medians of {runs} runs after one that is not counted.",
        "",
        f"Machine: {machine()}.",
        "",
        f"Versions: {versions()}.",
        "",
    ]
    for heading, lines in tables.items():
        body += [f"## {heading}", "", *markdown(lines), ""]
    return "\n".join([*body, END])


def write(path: Path, text: str) -> None:
    """Put `text` between the markers of a page; a page without them is made new.

    Raises:
        ValueError: the file exists and has no markers: it is something else.
    """
    if not path.exists():
        path.write_text(f"# Benchmarks\n\n{text}\n", encoding="utf-8")
        return
    old = path.read_text(encoding="utf-8")
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        raise ValueError(f"{path}: expected one line '{BEGIN}' and one line '{END}'")
    head, _, rest = old.partition(BEGIN)
    path.write_text(head + text + rest.partition(END)[2], encoding="utf-8")
