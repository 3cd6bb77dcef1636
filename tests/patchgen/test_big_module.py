"""A modelling file of 4,000 lines: the memory it may take, and that it comes out whole."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from bench.measure import NTOOL
from bench.patched_modules import LINES, PATCHED, RSS, make

from .projects import patchgen

MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def test_a_long_module(tmp_path: Path) -> None:
    config = make(tmp_path)
    source = config.with_name("modeling_long.py").read_text()
    assert source.count("\n") >= LINES == 4000
    # from a small process: the peak of a child begins with that of the one that starts it
    command = [sys.executable, "-c", MEASURED, *NTOOL, "patchgen", "generate", str(config)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) < RSS == 400e6  # the seconds are a row of the bench
    text = (config.parent / "generated/patched_long.py").read_text()
    ast.parse(text)
    assert text.count("# --- Patch.1 ---") == 2 * PATCHED
    assert text.count("    def forward(") == source.count("    def forward(")
    assert text.count("# remark above layer") == source.count("# remark above layer") - 1
    done = patchgen("check", config, "--static", cwd=tmp_path)
    assert done.code == 0 and done.of("problem") == []
