"""Accuracy: how far the command line comes off the published implementation's golden values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import PYTHON, ROOT, output_of
from .table import Bench, Line, Row, held

DATA = ROOT / "tests" / "data"
TINY = DATA / "neo-chat"


def accuracy(name: str, source: str, goldens: Path, bench: Bench) -> Iterator[Line]:
    """A line a golden. The budget is 1: the promise of atol = rtol = 1e-3 itself."""
    command = [PYTHON, "-m", "bench.golden_child", source, str(goldens), str(bench.scratch / name)]
    for line in output_of(command, cwd=ROOT).splitlines():
        told = json.loads(line)
        what = f"max error {told['error']:.1e}, most in {told['worst']}"
        if told["levels"]:
            what += f"; picture at most {told['levels']} level off"
        if told["different"]:
            what += f"; not equal: {', '.join(told['different'])}"
        yield Line(
            what,
            f"{told['tensors']} tensors, {told['values']:,} values",
            f"{told['of_promise']:.4f} of 1e-3 + 1e-3 |ref|",
            "<= 1",
            max(told["of_promise"], held(told["levels"] <= 1, not told["different"])),
            told["name"],
        )


CASES = {
    "dense-conv": (str(TINY / "dense-conv" / "checkpoint"), TINY / "dense-conv" / "goldens"),
    "dense-mlp": (str(TINY / "dense-mlp" / "checkpoint"), TINY / "dense-mlp" / "goldens"),
    "moe-mlp": (str(TINY / "moe-mlp" / "checkpoint"), TINY / "moe-mlp" / "goldens"),
    "demo-shapes": ("demo:shapes", DATA / "demo-shapes" / "goldens"),
}
ROWS = tuple(
    Row(
        f"goldens-{name}",
        f"accuracy on the goldens of {name}",
        partial(accuracy, name, *where),
        "Accuracy",
        most=1,
    )
    for name, where in CASES.items()
)
