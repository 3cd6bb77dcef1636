"""Other tools that ours is measured beside, each in an environment of its own.

`make bench-peers` makes them all, `python -m bench --install-peers NAME...` some of them, in the
folder .venv-bench of the checkout or the one that NTOOL_BENCH_PEERS names. None is needed: rows
without their peer are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .measure import NAMES, PYTHON, ROOT, Skipped

FOLDER = "NTOOL_BENCH_PEERS"
ENVIRONMENTS = {
    "torch": ("torch==2.13.0", "transformers==5.24.0", "compressed-tensors==0.20.0"),
    "llm-compressor": ("llmcompressor==0.14.0.1", "torch==2.13.0"),
    "onnx-tools": (
        "onnx==1.23.2", "onnxruntime==1.32.0", "polygraphy==0.53.6", "onnx-graphsurgeon==0.6.1",
    ),
    "mobius": ("mobius-onnx==0.1.0", "torch==2.13.0"),
    "modelinfo": ("modelinfo-cli==1.4.4",),
}  # fmt: skip
"""Name -> what is installed. A torch that a local index has as +cpu fits, too."""
_TELL = (
    "import sys; from importlib.metadata import version as v; "
    "print(', '.join(n + ' ' + v(n) for n in sys.argv[1:]))"
)
_MADE = "versions.txt"
"""Written last, so it says that an environment is whole; what was asked for, and what came."""


def folder() -> Path:
    """Where the environments lie."""
    return Path(os.environ.get(FOLDER) or ROOT / ".venv-bench").absolute()


def _told(name: str) -> tuple[str, str]:
    try:
        asked, came = (folder() / name / _MADE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return "", ""
    return asked, came


def python(name: str) -> str:
    """The interpreter of an environment.

    Raises:
        Skipped: it is not there, or was made with other versions.
    """
    if _told(name)[0] != " ".join(ENVIRONMENTS[name]):
        raise Skipped(f"needs the peer environment: python -m bench --install-peers {name}")
    NAMES[f"{folder()}/"] = ".venv-bench/"
    return str(folder() / name / "bin" / "python")


def versions(name: str) -> str:
    """What is in an environment: `torch 2.13.0, transformers 5.24.0`."""
    return _told(name)[1]


def install(names: Iterable[str]) -> None:
    """Make environments anew, or leave them as they are if they have these versions already.

    Raises:
        Skipped: no environment has that name, or its packages cannot be installed here.
    """
    for name in names:
        if name not in ENVIRONMENTS:
            raise Skipped(f"no peer environment '{name}'; there are: {', '.join(ENVIRONMENTS)}")
        wanted = ENVIRONMENTS[name]
        if _told(name)[0] == " ".join(wanted):
            print(f"bench: {name} is there: {versions(name)}", file=sys.stderr)
            continue
        at = folder() / name
        shutil.rmtree(at, ignore_errors=True)
        inside = str(at / "bin" / "python")
        pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        print(f"bench: {name}: pip install {' '.join(wanted)}", file=sys.stderr)
        for command in ([PYTHON, "-m", "venv", str(at)], [*pip, *wanted]):
            if subprocess.run(command).returncode:
                raise Skipped(f"{name}: {' '.join(command[1:])} failed")
        bare = [requirement.partition("==")[0] for requirement in wanted]
        came = subprocess.run([inside, "-c", _TELL, *bare], capture_output=True, text=True)
        (at / _MADE).write_text(f"{' '.join(wanted)}\n{came.stdout.strip()}\n", encoding="utf-8")
