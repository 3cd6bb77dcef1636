"""The golden checkpoints of Qwen4-Exp, changed, and the check of their weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint
from ntool.lib.errors import InputError, SourceNotFound, Unsupported
from ntool.lib.families.qwen4_exp import weights
from ntool.lib.families.qwen4_exp.config import read_config

from ...conftest import DATA
from ...fp8.checkpoints import read, write

Tensors = dict[str, tuple[str, np.ndarray]]
Change = Callable[[Tensors, dict[str, Any]], object]
L = "model.language_model.layers."
NGRAM = f"{L}1.ple.ple_embedding.ngram_embedding"


def bf16(*shape: int) -> tuple[str, np.ndarray]:
    return "BF16", np.ones(shape, ml_dtypes.bfloat16)


def source(case: str) -> tuple[Tensors, dict[str, Any]]:
    folder = DATA / "qwen4-exp" / case
    tensors = {n: t for file in read(folder).values() for n, t in file.items()}
    return tensors, json.loads((folder / "config.json").read_text())


def edited(folder: Path, case: str, change: Change) -> Checkpoint:
    """A golden checkpoint in one file, changed."""
    tensors, config = source(case)
    change(tensors, config)
    return open_checkpoint(str(write(folder, {"model.safetensors": tensors}, config)))


def check(checkpoint: Checkpoint, text_only: bool = True) -> None:
    c = read_config(checkpoint.config, f"{checkpoint.source}: config.json", text_only=text_only)
    weights.check(checkpoint, c, text_only)


MISSING, WRONG, NOT = SourceNotFound, InputError, Unsupported
