"""A long modelling file and a config of many patches: what patching and comparing them costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import NTOOL, Cost, in_turn, run
from .table import Bench, Line, Row, at_most, spent

LINES = 4000
"""At least so long is the source, as the longest modelling files in use are."""
SECONDS, RSS = 4.0, 400e6
PATCHED = 40
"""Layers whose forward is overridden."""

_HEAD = '''\
# Licence of the long model.
"""A long modelling file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional


@dataclass
class LongOutput:
    values: Optional[list] = None
    state: Optional[dict] = None
'''
_LAYER = '''

# remark above layer {n}
class Layer{n}:
    """Layer {n} of the model."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.size = size
        self.eps = eps

    @property
    def width(self):
        return self.size  # its only use

    def scale(self, values, factor: float = {n}.0):
        # scaled by the root of the size
        root = math.sqrt(self.size + self.eps)
        return [v * factor / root for v in values]

    def forward(
        self,
        values: list,
        mask: Optional[list] = None,
        cache: Optional[dict] = None,
        **kwargs,
    ) -> LongOutput:
        """Run layer {n}.

        Args:
            values: what goes in.
            mask: which of them count.
        """
        if mask is not None:
            values = [v for v, m in zip(values, mask) if m]
        for step, value in enumerate(values):
            if value is None:
                raise ValueError(f"value {{step}} of layer {n} is missing")
            if cache is not None:
                cache[step] = value
        values = self.scale(values)
        state = {{"layer": {n}, "count": len(values)}}
        return LongOutput(values=values, state=state)
'''
_CONFIG = '''\
"""Overrides many methods of the long model, replaces and adds some more."""

from patchgen import PatchConfig

config = PatchConfig(
    source_module="longkit.modeling_long",
    target_file="patched_long.py",
    transformers_version="bench",
)
config.add_import("statistics", names=["fmean"])


@config.add_helper
def averaged(values):
    # the mean of all
    return fmean(values)


@config.replace_class("Layer0", description="no scale")
class Plain:
    def forward(self, values, mask=None, cache=None, **kwargs):
        return LongOutput(values=values, state={})
'''
_PATCH = """

# Patch of layer {n}
@config.override_method(
    "Layer{n}.forward",
    description="averages",
)
def layer_{n}_forward(self, values, mask=None, cache=None, **kwargs):
    # --- Patch.1 ---
    values = [averaged(values)] * len(values)
    # --- Patch.1 ---
    return LongOutput(values=self.scale(values), state={{"layer": {n}}})
"""


def make(folder: Path) -> Path:
    """A project with a source of at least LINES lines; gives the path of its config."""
    package = folder / "longkit"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    text, count = _HEAD, 0
    while text.count("\n") < LINES:
        text += _LAYER.format(n=count)
        count += 1
    (package / "modeling_long.py").write_text(text)
    config = package / "long_patch_gen_config.py"
    config.write_text(_CONFIG + "".join(_PATCH.format(n=n) for n in range(1, PATCHED + 1)))
    return config


def _fresh(config: Path, out: Path) -> Cost:
    shutil.rmtree(out, ignore_errors=True)
    command = [*NTOOL, "patchgen", "generate", str(config), "-o", str(out)]
    return run(command, cwd=config.parents[1])


def generated(bench: Bench) -> Iterator[Line]:
    """One long module generated, checked, and compared with another version of its source."""
    config = make(bench.scratch / "long")
    root, out = config.parents[1], bench.scratch / "generated"
    other = bench.scratch / "other"
    shutil.copytree(root, other)
    source = other / "longkit" / "modeling_long.py"
    source.write_text(source.read_text().replace("# remark above", "# another remark above"))
    contract = [
        *NTOOL,
        "patchgen",
        "contract",
        str(config),
        "--old",
        str(root),
        "--new",
        str(other),
    ]
    written, compared = in_turn(
        bench.runs, partial(_fresh, config, out), partial(run, contract, cwd=root)
    )
    budget = f"<= {SECONDS:.0f} s, {RSS / 1e6:.0f} MB"
    what = f"{LINES:,} lines, {PATCHED + 1} patches"
    yield Line(
        spent(written, what),
        budget=budget,
        excess=max(at_most(written.cpu, SECONDS), at_most(written.rss, RSS)),
        part="generate",
    )
    yield Line(spent(compared, f"two versions of {LINES:,} lines"), part="contract")


ROWS = (Row("patchgen", "patchgen: a module of 4,000 lines generated, and compared", generated),)
