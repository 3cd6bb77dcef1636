"""Random groups in all layouts against NumPy's stack, concatenate and swapaxes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.conversion.verify import payload as verified
from ntool.lib.experts import convert, payload

from .moe_files import (
    LAYOUTS,
    Tensors,
    config_of,
    converted,
    laid_out,
    planned,
    random_experts,
    refused,
    same,
    save,
)

GROUPS = {
    "model.layers.3.mlp.experts": "model.layers.3.mlp.experts",
    "a.language_model.layers.10.feed_forward.experts": (
        "a.language_model.layers.10.feed_forward.experts"
    ),
    "mtp.0.block_sparse_moe": "mtp.0.block_sparse_moe.experts",
    "layers.2.moe": "layers.2.mlp.experts",
}
INPUT_OUTPUT = {"gate_up": "input_linear.weight", "down": "output_linear.weight"}
W13 = {"gate_up": "w13_weight", "down": "w2_weight"}


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path / "source"
    finally:
        shutil.rmtree(path)


@contextmanager
def small_pieces(nbytes: int, tile: int) -> Iterator[None]:
    """Pieces, strips and tiles of a few bytes, so that tiny matrices have several."""
    before = payload.READ, payload.STRIP, payload.LINE, payload.TILE
    payload.READ, payload.STRIP, payload.LINE, payload.TILE = nbytes, nbytes, 1, tile
    try:
        yield
    finally:
        payload.READ, payload.STRIP, payload.LINE, payload.TILE = before


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """E, H, I; with H = I and H = 2I among them."""
    inner = draw(st.integers(1, 9))
    hidden = draw(st.sampled_from([inner, 2 * inner, 4 * inner]) | st.integers(1, 20))
    return draw(st.sampled_from([1, 2, 3, 11])), hidden, inner


@given(
    sizes(),
    st.sampled_from(["U8", "F8_E5M2", "BF16", "F32", "I64", "C64"]),
    st.sampled_from([*LAYOUTS, "stacked-transposed", "fused-interleaved"]),
    st.sampled_from(LAYOUTS),
    st.sampled_from(sorted(GROUPS)),
    st.sampled_from([None, "matrix", "row", (1, 1), (2, 2), (3, 3)]),
    st.booleans(),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(0, 9),
)
@settings(deadline=None, max_examples=400)
def test_any_group(
    size: tuple[int, int, int], dtype: str, source: str, to: str, group: str, block: Any,
    gated: bool, piece: int, tile: int, seed: int,
) -> None:  # fmt: skip
    E, H, I = size  # noqa: E741
    if dtype in ("U8", "F8_E5M2", "I64"):
        block = block or "matrix"  # what is not plain floats has scales
    elif block is not None:
        block = None
    if block == "row" and H == I == 1:
        block = "matrix"  # a row is all of it
    x = random_experts(seed, E, H, I, dtype, gated, block)
    order = "interleaved" if source == "fused-interleaved" else "concatenated"
    layout = {"fused-interleaved": "fused"}.get(source, source)
    if not gated and order == "interleaved":
        return
    if isinstance(block, tuple) and layout.startswith("fused") and gated and I % block[0]:
        return  # its grids are not those of gate and up, one below the other
    where, banks = group, None
    if not group.endswith("experts"):
        if layout.startswith("fused") and gated and group.endswith("block_sparse_moe"):
            banks = INPUT_OUTPUT
        elif layout.startswith("stacked") and group.endswith("moe"):
            where = "layers.2.moe"
        else:
            where = GROUPS[group]
    made = laid_out(x, layout, where, order=order, banks=banks)
    other: Tensors = {"norm.weight": ("F32", (1,), b"abcd"), "x": ("BF16", (H, 64), bytes(H * 128))}
    target = GROUPS.get(where, where)
    wanted = laid_out(x, to, target) if not (where == target and source == to) else made
    if layout in ("split",) and to == "split":
        wanted = made
    config = config_of(E, H, I, block)
    aligned = not isinstance(block, tuple) or I % block[0] == 0
    with folder() as path, small_pieces(piece, tile):
        save(path, {**made, **other}, config, files=min(len(made), 3))
        wish = {"order": order} if order == "interleaved" else {}
        ambiguous = H == I and (to == "stacked" or not gated) and to != "split"
        unread = H == I and (layout.startswith("stacked") or not gated) and layout != "split"
        joins = gated and (layout.startswith("fused") != to.startswith("fused"))
        if not joins:
            joins = order == "interleaved"
        splits_only = {layout.partition("-")[0], to} <= {"split", "stacked"}
        crossing = order == "interleaved" and isinstance(block, tuple) and block[0] > 1
        if unread:
            assert refused(path, to, **wish) == ["ambiguous-orientation"]
            return
        if gated and joins and not splits_only and (not aligned or crossing):
            assert refused(path, to, **wish) == ["scale-unaligned"]
            return
        if ambiguous:
            assert refused(path, to, **wish) == ["ambiguous-orientation"]
            return
        same(converted(path, to, **wish), {**wanted, **other})
        plan = convert.plan(open_checkpoint(str(path)), convert.Wish(to, **wish))
        with plan.files:  # the way that --verify takes
            by_formula = {
                e.name: b"".join(verified(plan, e)) for s in plan.shards for e in s.entries
            }
        assert by_formula == {n: raw for n, (_, _, raw) in {**wanted, **other}.items()}


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("source", [*LAYOUTS, "fused-interleaved", "stacked-transposed"])
@pytest.mark.parametrize("dtype", ["F8_E4M3", "BF16"])
def test_sizes_of_many_tiles(source: str, to: str, dtype: str, tmp_path: Path) -> None:
    """With pieces and tiles as they are; no side is a multiple of one."""
    E, H, I = 2, 1030, 520  # noqa: E741
    block = (8, 8) if dtype != "BF16" and source != "fused-interleaved" else None
    x = random_experts(1, E, H, I, dtype, block="matrix" if block is None and dtype != "BF16"
                       else block)  # fmt: skip
    order = "interleaved" if source == "fused-interleaved" else "concatenated"
    group = "model.layers.0.mlp.experts"
    made = laid_out(x, source.removesuffix("-interleaved"), group, order=order,
                    banks=W13 if order == "interleaved" else None)  # fmt: skip
    save(tmp_path / "s", made, config_of(E, H, I, block or (None if dtype == "BF16" else "matrix")))
    wanted = laid_out(x, to, group)
    same(converted(tmp_path / "s", to), wanted)


def test_flat(tmp_path: Path) -> None:
    """DBRX: gate and up direct, down with its input first."""
    x = random_experts(3, 4, 10, 6)
    flat = {
        "w1": x.weights["gate"], "v1": x.weights["up"], "w2": x.weights["down"].swapaxes(1, 2),
    }  # fmt: skip
    made: Tensors = {
        f"b.0.ffn.experts.mlp.{n}": ("BF16", (24, 10), np.ascontiguousarray(a).tobytes())
        for n, a in flat.items()
    }
    save(tmp_path / "s", made, config_of(4, 10, 6))
    for to in LAYOUTS:
        same(converted(tmp_path / "s", to), laid_out(x, to, "b.0.ffn.experts"))


def test_groups_do_not_need_to_be_alike(tmp_path: Path) -> None:
    """Layers in four layouts, of other sizes, and numbers of experts that sort badly as text."""
    config = {"num_experts": [12, 3, 2, 1], "num_hidden_layers": 4, "hidden_size": 10}
    made: Tensors = {}
    layers = []
    for i, (layout, E, I) in enumerate(  # noqa: E741
        zip(LAYOUTS, (12, 3, 2, 1), (5, 10, 7, 4), strict=True)
    ):
        layers.append((random_experts(i, E, 10, I), f"model.layers.{i}.mlp.experts"))
        made |= laid_out(layers[-1][0], layout, layers[-1][1])
    save(tmp_path / "s", dict(reversed(made.items())), config, files=4)
    for to in ("split", "fused", "fused-transposed"):
        wanted: Tensors = {}
        for x, group in layers:
            wanted |= laid_out(x, to, group)
        same(converted(tmp_path / "s", to), wanted)


def test_bytes_that_no_number_format_knows(tmp_path: Path) -> None:
    """Sub-byte dtypes: whole rows move; 4 and 6 bits of transposed ones would not."""
    for dtype, bits in (("F4", 4), ("F6_E2M3", 6)):
        E, H, I = 3, 8, 4  # noqa: E741
        rng = np.random.default_rng(0)
        config = config_of(E, H, I)
        made: Tensors = {}
        for j in range(E):
            for module, shape in (
                ("gate_proj", (I, H)), ("up_proj", (I, H)), ("down_proj", (H, I)),
            ):  # fmt: skip
                name = f"m.experts.{j}.{module}.weight"
                made[name] = dtype, shape, rng.bytes(H * I * bits // 8)
                grid = (shape[0], 1)
                made[name + "_scale_inv"] = "F8_E8M0", grid, rng.bytes(shape[0])
        path = save(tmp_path / dtype, made, config)
        fused = converted(path, "fused")
        gate_up = b"".join(
            made[f"m.experts.{j}.{m}.weight"][2] for j in range(E) for m in ("gate_proj", "up_proj")
        )
        assert fused["m.experts.gate_up_proj"] == (dtype, (E, 2 * I, H), gate_up)
        back = save(tmp_path / f"{dtype}-fused", fused, config)
        same(converted(back, "split"), made)
        assert refused(path, "fused-transposed") == ["packed-transpose"]


def test_same_layout_changes_no_byte(tmp_path: Path) -> None:
    x = random_experts(5, 3, 10, 4, "F16")
    for layout in LAYOUTS:
        made = laid_out(x, layout, "e.experts", banks={"down": "down_proj.weight"})
        path = save(tmp_path / layout, made, config_of(3, 10, 4))
        plan = convert.plan(open_checkpoint(str(path)), convert.Wish(layout))
        assert plan.counts() == {"copied": len(made)}
        same(planned(plan), made)
        assert json.loads(plan.config or b"") == config_of(3, 10, 4)
