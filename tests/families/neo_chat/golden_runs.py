"""Running an entry of a goldens manifest through the command line, as a user would."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

from ...conftest import Ended, run_ntool
from .golden_cases import CASES, DATA, Case, load_case

Ntool = Callable[..., Ended]


@cache
def package(name: str, into: Path, overrides: tuple[tuple[str, Any], ...] = ()) -> Path:
    """A tiny checkpoint's package, exported once a run; with config fields changed, from a copy."""
    import json
    import shutil

    source = DATA / name / "checkpoint"
    folder = into / f"{name}{len(list(into.iterdir()))}"
    if overrides:
        copied = into / f"{folder.name}-checkpoint"
        shutil.copytree(source, copied)
        config = json.loads((copied / "config.json").read_text())
        config.update(overrides)
        (copied / "config.json").write_text(json.dumps(config))
        source = copied
    done = run_ntool("export-component", source, "-o", folder)
    assert done.code == 0, done.err
    return folder


def golden_noise(case: Case, entry: dict[str, Any]) -> Path:
    """A file that holds the run's unit noise."""
    return case.folder / "goldens" / entry.get("noise_file", entry["file"])


def names(kind: str, cases: list[str] = CASES) -> list[tuple[str, str]]:
    """(case, run) of every manifest entry of a kind."""
    return [(c, run) for c in cases for run, e in load_case(c).runs.items() if e["kind"] == kind]


def sampler_options(args: dict[str, Any]) -> list[object]:
    """Command-line options of a golden's arguments; what it leaves out is the model function's
    default."""
    shift = args["timestep_shift"] if args.get("enable_timestep_shift", True) else 1
    lo, hi = args.get("cfg_interval", [0, 1])
    return [
        "--size", f"{args['width']}x{args['height']}", "--steps", args["num_steps"],
        "--cfg", args["cfg_scale"], "--shift", shift, "--cfg-interval", f"{lo},{hi}",
        "--cfg-norm", args.get("cfg_norm", "none"), "--t-eps", args.get("t_eps", 0.02),
    ]  # fmt: skip


def drawn(ntool: Ntool, package: Path, tmp: Path, *options: object) -> tuple[dict, np.ndarray]:
    """Trace arrays and the uint8 picture of one sample-image run."""
    ntool("sample-image", package, *options, "-o", tmp / "out.png", "--trace", tmp / "trace")
    with Image.open(tmp / "out.png") as image:
        return load_file(tmp / "trace"), np.asarray(image)


def check_picture(picture: np.ndarray, golden: np.ndarray) -> None:
    """At most one level off, and that only for rounding ties."""
    off = np.abs(picture.astype(int) - golden.astype(int))
    assert off.max() <= 1 and (off > 0).sum() <= 8
