"""A modelling file of 4,000 lines: the memory it may take, and that it comes out whole."""

from __future__ import annotations

import ast
from pathlib import Path

from bench.measure import NTOOL, run
from bench.patched_modules import LINES, PATCHED, RSS, make

from .projects import patchgen


def test_a_long_module(tmp_path: Path) -> None:
    config = make(tmp_path)
    source = config.with_name("modeling_long.py").read_text()
    assert source.count("\n") >= LINES == 4000
    cost = run([*NTOOL, "patchgen", "generate", str(config)], cwd=tmp_path)
    assert cost.rss < RSS == 400e6  # the seconds are a row of the bench
    text = (config.parent / "generated/patched_long.py").read_text()
    ast.parse(text)
    assert text.count("# --- Patch.1 ---") == 2 * PATCHED
    assert text.count("    def forward(") == source.count("    def forward(")
    assert text.count("# remark above layer") == source.count("# remark above layer") - 1
    done = patchgen("check", config, "--static", cwd=tmp_path)
    assert done.code == 0 and done.of("problem") == []
