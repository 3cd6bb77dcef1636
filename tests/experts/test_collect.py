"""Tensors sorted into containers by whole layers, held against sorting them one by one."""

from __future__ import annotations

import random

import pytest

from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.experts import containers
from ntool.lib.experts.containers import Collected, collect

NAMES = [
    *(f"m.layers.{i}.mlp.experts.{e}.{p}.weight" for i in range(4) for e in range(5)
      for p in ("gate_proj", "up_proj", "down_proj")),
    *(f"m.layers.4.mlp.experts.{e}.{p}.weight" for e in ("0", "1", "01") for p in ("w1", "w2")),
    *("m.layers.5.mlp.experts.gate_up_proj", "m.layers.5.mlp.experts.down_proj"),
    *(f"m.layers.6.mlp.experts.expert_{e}.wi.weight" for e in range(3)),
    *(f"experts.{e}.w1.weight" for e in range(2)),
    *(f"one/experts.{e}.w1.weight" for e in range(2)),
    *("m.layers.7.block_sparse_moe.input_linear.weight", "m.norm.weight", ".experts.0.w1.weight"),
    *("m.experts..w1.weight", "m.experts.3", "m.shared_expert.experts.0.w1.weight"),
]  # fmt: skip


def facts(collected: Collected) -> object:
    """All that is known, orders included."""
    found = {name: repr(c) for name, c in sorted(collected.containers.items())}
    return found, list(collected.doubled.items())


@pytest.mark.parametrize("seed", range(8))
def test_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    names = list(NAMES)
    if seed % 2:  # the layers differ in order, and in what they lack
        rng.shuffle(names)
        del names[:5]
    if seed > 4:
        names += rng.sample(names, 6)
    rows = [Tensor(name, "F32", (i,), f"f{i % 3}", 8 * i, 4 * i) for i, name in enumerate(names)]
    monkeypatch.setattr(containers, "_BLOCK", 7)
    found = facts(collect(rows))
    monkeypatch.setattr(containers, "_sort_layers", lambda tensors, *_: tensors)
    assert found == facts(collect(rows))
    assert len(found[0]) > 6  # type: ignore[index]
