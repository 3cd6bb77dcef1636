"""Converting to an ONNX package and running its graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.conversion import command
from ntool.lib.conversion.run import Options
from ntool.lib.fp8 import conversion
from ntool.lib.fp8.conversion import Wish


def planned(source: Path, **wish: Any) -> tuple[Any, Any]:
    """(plan, warnings) of a conversion."""
    return conversion.plan(open_checkpoint(str(source)), Wish(to="qdq", **wish), {})


def convert(source: Path, out: Path, **wish: Any) -> Path:
    """The package; what was verified holds."""
    options = Options()
    plan, _ = conversion.plan(
        open_checkpoint(str(source)), Wish(to="qdq", **wish), options.statistics
    )
    outcome = command.carry_out(plan, out, options, dry_run=False, verify=True)
    assert outcome.problems == []
    return out


def components(package: Path) -> dict[str, dict[str, Any]]:
    """Entries of package.json."""
    found: dict[str, dict[str, Any]] = json.loads((package / "package.json").read_text())
    return found["components"]


def graphs(package: Path) -> dict[str, Path]:
    """Path of each component's graph."""
    return {name: package / c["graph"] for name, c in components(package).items()}


def session(graph: Path) -> ort.InferenceSession:
    """A CPU session of stock ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def values(package: Path) -> dict[str, np.ndarray]:
    """Every dequantised tensor of a package, as ONNX Runtime computes it."""
    found = {}
    for graph in graphs(package).values():
        s = session(graph)
        names = [o.name for o in s.get_outputs() if o.name.endswith(".dequantized")]
        if names:
            for name, value in zip(names, s.run(names, {}), strict=True):
                found[name.removesuffix(".dequantized")] = value
    return found


def model(graph: Path) -> onnx.ModelProto:
    """A graph without its data."""
    return onnx.load(str(graph), load_external_data=False)
