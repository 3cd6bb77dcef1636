from __future__ import annotations

import math
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntool.lib.checkpoint.folder import LocalFolder
from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.fp8 import scale_values
from ntool.lib.fp8.preflight import preflight
from ntool.lib.fp8.scale_values import numbers

W = "model.layers.0.mlp.down_proj"


def checkpoint(*names: str) -> list[Tensor]:
    weights = [Tensor(f"{n}.weight", "F8_E4M3", (8, 8), "f", 0, 64) for n in names]
    scales = [Tensor(f"{n}.weight_scale_inv", "F32", (1, 1), "f", 0, 4) for n in names]
    return [*weights, *scales, Tensor("lm_head.weight", "BF16", (8, 8), "f", 0, 128)]


def flight(tensors: list[Tensor], skip: list[str] | None) -> tuple[Any, list[str]]:
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    if skip is not None:
        config["quantization_config"]["modules_to_not_convert"] = skip  # type: ignore[assignment]
    fields, problems = preflight(tensors, frozenset(t.name for t in tensors), config)
    return fields, [p.code for p in problems]


def test_no_quantisation_has_no_field() -> None:
    tensors = [Tensor("a.weight", "BF16", (2, 2), "f", 0, 8)]
    assert preflight(tensors, {"a.weight"}, {}) == (None, [])


@pytest.mark.parametrize(
    "skip, codes, resolved, unlisted",
    [
        (["lm_head"], [], 1, 0),
        ([], [], 0, 1),
        (["lm_head", "absent"], ["skip-unresolved"], 1, 0),
        ([W, "lm_head"], ["skip-list"], 2, 0),
        (["model.layers.0", "lm_head"], ["skip-list"], 2, 0),
        (["model.layers.00", "model.layer"], ["skip-unresolved"], 0, 1),
        (["re:lm_.*"], [], 0, None),
    ],
)
def test_skip_list(skip: list[str], codes: list[str], resolved: int, unlisted: int | None) -> None:
    fields, found = flight(checkpoint(W), skip)
    assert found == codes
    assert fields["skip_list"]["resolved"] == resolved
    assert fields["skip_list"]["unlisted"] == unlisted
    if "skip-list" in codes:
        assert fields["skip_list"]["stored_as_fp8"]


def test_without_a_list_there_is_no_verdict_on_it() -> None:
    fields, codes = flight(checkpoint(W), None)
    assert (fields["skip_list"], codes) == (None, [])
    assert fields["pairs"] == 1 and fields["scale_values"] is None


def bf16(*values: float) -> bytes:
    return b"".join(struct.pack("<f", v)[2:] for v in values)


PACK = {
    "F32": lambda *v: struct.pack(f"<{len(v)}f", *v),
    "F16": lambda *v: struct.pack(f"<{len(v)}e", *v),
    "BF16": bf16,
}
VALUES = [
    ((1.0, 0.5), "", 0),
    ((1.0, math.nan), "non_finite", 1),
    ((math.inf, 1.0), "non_finite", 1),
    ((-math.inf, 1.0), "non_finite", 1),
    ((0.5, -1.0), "negative", 1),
    ((0.5, 0.0), "zero", 1),
    ((0.5, -0.0), "zero", 1),
    ((0.0, 0.0), "zero", 0),
    ((2.0**-14, 60000.0), "", 0),
    ((-1.0, math.nan), "non_finite", 1),
]


@pytest.mark.parametrize("dtype", PACK)
@pytest.mark.parametrize("values, kind, listed", VALUES)
def test_values(
    dtype: str, values: tuple[float, ...], kind: str, listed: int, tmp_path: Path
) -> None:
    raw = PACK[dtype](*values)
    good = PACK[dtype](*([1.5] * 2))
    (tmp_path / "f").write_bytes(b"\xff" * 8 + good + raw + good)
    size = len(raw)
    scales = [Tensor(f"s{i}", dtype, (2,), "f", 8 + i * size, size) for i in range(3)]
    got, problems = scale_values.check(LocalFolder(str(tmp_path)), scales)
    counts = {"checked": 3, "non_finite": 0, "negative": 0, "zero": 0}
    if kind:
        counts[kind] = 1
    assert vars(got) == counts
    assert [p.name for p in problems] == ["s1"] * listed
    severity = {"negative": "warning", "zero": "info"}.get(kind, "error")
    assert [p.severity for p in problems] == [severity] * listed


@pytest.mark.parametrize("dtype", ["F8_E8M0", "U8"])
def test_exponents(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes([0, 127, 254, 255]))
    scales = [Tensor(f"s{i}", dtype, (1,), "f", i, 1) for i in range(4)]
    got, problems = scale_values.check(LocalFolder(str(tmp_path)), scales)
    assert (got.checked, got.non_finite) == (4, 1)
    assert [p.name for p in problems] == ["s3"]
    assert list(numbers(dtype, bytes([0, 127, 128, 254]))) == [2.0**-127, 1.0, 2.0, 2.0**127]


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=20))
def test_the_quick_look_never_passes_what_the_slow_one_finds(words: list[int]) -> None:
    raw = struct.pack(f"<{len(words)}H", *words)
    sound = all(math.isfinite(v) and v > 0 for v in numbers("BF16", raw))
    assert not scale_values._sound("BF16", raw) or sound


def test_scales_apart_are_read_apart(tmp_path: Path) -> None:
    """What lies between two scales is not read when it is large."""
    far = scale_values.GAP * 3
    (tmp_path / "f").write_bytes(bf16(1.0) + bytes(far) + bf16(math.nan))
    scales = [
        Tensor("b", "BF16", (1,), "f", 2 + far, 2),
        Tensor("a", "BF16", (1,), "f", 0, 2),
    ]
    [near, away] = scale_values._runs(sorted(scales, key=lambda t: t.offset))
    assert (near[0][0].name, away[0][0].name) == ("a", "b")
    assert near[1:] == (0, 2)
    _, [problem] = scale_values.check(LocalFolder(str(tmp_path)), scales)
    assert problem.name == "b"


@pytest.mark.parametrize("seed", range(6))
def test_many_scales_apart(seed: int, tmp_path: Path) -> None:
    """Read in batches and judged together, they get the verdicts of each by itself."""
    rng = random.Random(seed)
    count, step = scale_values._BATCH + 60, scale_values.GAP + 9
    words = {0: bf16(1.5), 1: bf16(0.0), 2: bf16(-1.0), 3: bf16(math.inf), 4: b"\0\0"}
    odd = {rng.randrange(count): rng.randrange(1, 5) for _ in range([0, 1, 2, 3, 20, 200][seed])}
    scales = []
    with open(tmp_path / "f", "wb") as f:
        for i in range(count):
            f.seek(i * step)
            f.write(words[odd.get(i, 0)] + bf16(2.0))
            scales.append(Tensor(f"s{i}", "BF16", (2,), "f", i * step, 4))
        if seed == 5:  # a batch of nothing but zeros
            f.truncate(0)
            f.truncate(count * step)
    got, problems = scale_values.check(LocalFolder(str(tmp_path)), scales, limit=count)
    each = [scale_values.check(LocalFolder(str(tmp_path)), [t]) for t in scales]
    assert vars(got) == {
        field: sum(getattr(values, field) for values, _ in each) for field in vars(got)
    }
    assert problems == [p for _, found in each for p in found]
    assert got.zero == (count if seed == 5 else sum(k in (1, 4) for k in odd.values()))
