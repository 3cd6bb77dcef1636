from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntool.lib.checkpoint.tensor import Tensor
from ntool.lib.fp8.pairs import expected_grid, pair, table_problems
from ntool.lib.fp8.preflight import preflight
from ntool.lib.fp8.settings import read_settings

W = "model.layers.0.mlp.down_proj.weight"
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def tensor(name: str, dtype: str, *shape: int) -> Tensor:
    return Tensor(name, dtype, shape, "f", 0, 0)


def judged(*tensors: Tensor, config: dict[str, Any] | None = None) -> Any:
    return pair(tensors, read_settings(BLOCKS if config is None else config))


def found(*tensors: Tensor, config: dict[str, Any] | None = None) -> list[tuple[str, str, str]]:
    problems = judged(*tensors, config=config).problems
    return [(p.code, p.severity, p.name) for p in problems]


@pytest.mark.parametrize(
    "scale",
    [
        f"{W}_scale_inv",
        f"{W}_scale",
        W.replace(".weight", ".scale"),
        W.replace(".weight", ".qscale_weight"),
    ],
)
def test_names_of_scales(scale: str) -> None:
    got = judged(tensor(W, "F8_E4M3", 256, 128), tensor(scale, "BF16", 2, 1))
    assert got.scale_of == {W: scale}
    assert got.problems == []
    assert got.forms == Counter(block=1)


def test_the_scale_of_a_fused_bank() -> None:
    bank, scale = "l.mlp.experts.gate_up_proj", "l.mlp.experts.gate_up_proj_scale_inv"
    got = judged(tensor(bank, "F8_E4M3", 8, 256, 200), tensor(scale, "F32", 8, 2, 2))
    assert (got.scale_of, got.problems) == ({bank: scale}, [])
    wrong = found(tensor(bank, "F8_E4M3", 8, 256, 200), tensor(scale, "F32", 16, 2))
    assert wrong == [("scale-grid", "error", scale)]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_a_scalar_whatever_its_rank(shape: tuple[int, ...]) -> None:
    weight, scale = tensor(W, "F8_E4M3", 256, 128), tensor(f"{W}_scale", "F32", *shape)
    plain = judged(weight, scale, config={})
    assert (plain.forms, plain.problems) == (Counter(tensor=1), [])
    assert found(weight, scale) == [("scalar-scale", "warning", scale.name)]


def test_a_matrix_of_one_block_has_a_grid_of_one() -> None:
    got = judged(tensor(W, "F8_E4M3", 100, 128), tensor(f"{W}_scale_inv", "F32", 1, 1))
    assert (got.forms, got.problems) == (Counter(block=1), [])


def test_shards_share_one_scale() -> None:
    table = "m.ple.ngram_embedding"
    for shard in ("shard_{}", "shards.{}", "shard.{}"):
        weights = [tensor(f"{table}.{shard.format(i)}.weight", "F8_E4M3", 300, 160)
                   for i in range(12)]  # fmt: skip
        got = judged(*weights, tensor(f"{table}.weight_scale", "BF16", 1))
        assert got.problems == []
        assert got.shared == {f"{table}.weight_scale": 12}
        assert got.forms == Counter(tensor=12)
        own = judged(*weights, *(tensor(f"{w.name}_scale_inv", "F32", 3, 2) for w in weights))
        assert (own.shared, own.problems) == ({}, [])


def test_a_weight_without_its_scale() -> None:
    got = judged(tensor(W, "F8_E4M3", 128, 128))
    [problem] = got.problems
    assert (problem.code, problem.name, got.unpaired) == ("missing-scale", W, [W])
    assert f"{W}_scale_inv" in problem.message and ".qscale_weight" in problem.message


@pytest.mark.parametrize(
    "other, orphan",
    [
        ([], True),
        ([tensor(W, "BF16", 128, 128)], True),
        ([tensor(W, "U8", 128, 64)], False),
        ([tensor(W, "I32", 16, 128)], False),
    ],
)
def test_a_scale_without_its_weight(other: list[Tensor], orphan: bool) -> None:
    """Scales of integer and 4-bit weights belong to another quantisation."""
    scale = f"{W}_scale_inv"
    expected = [("orphan-scale", "error", scale)] if orphan else []
    assert found(*other, tensor(scale, "F32", 1, 1)) == expected


@pytest.mark.parametrize(
    "name", ["x.input_scale", "x.k_scale", "norm.scale", "x.weight_scale_2", "x.scales"]
)
def test_names_that_are_no_orphans(name: str) -> None:
    assert found(tensor(name, "F32", 1)) == []


def test_a_scale_in_fp8_is_no_weight() -> None:
    """NVFP4: packed 4-bit weights whose block scales are FP8."""
    nv = [tensor(W, "U8", 128, 64), tensor(f"{W}_scale", "F8_E4M3", 128, 8)]
    got = judged(*nv, config={})
    assert (got.scale_of, got.unpaired, got.problems) == ({}, [], [])


@pytest.mark.parametrize(
    "grid, config, form",
    [
        ((128,), {}, "channel"),
        ((128, 1), {}, "channel"),
        ((2, 2), {}, None),
        ((1, 128), {}, None),
        ((2, 1), BLOCKS, None),
    ],
)
def test_forms_without_a_block_size(grid: Any, config: Any, form: str | None) -> None:
    got = judged(tensor(W, "F8_E4M3", 128, 256), tensor(f"{W}_scale", "F32", *grid), config=config)
    if form:
        assert (got.forms, got.problems) == (Counter({form: 1}), [])
    else:
        assert [(p.code, p.severity) for p in got.problems] == [("scale-grid", "error")]
        assert str(list(grid)) in got.problems[0].message


@pytest.mark.parametrize("grid", [(8,), (8, 1), (8, 1, 1), (8, 2, 1)])
def test_one_scale_for_each_matrix_of_a_stack(grid: tuple[int, ...]) -> None:
    bank = "l.experts.gate_up_proj"
    got = judged(
        tensor(bank, "F8_E4M3", 8, 16, 4), tensor(f"{bank}_scale", "F32", *grid), config={}
    )
    assert (got.forms, got.problems) == (Counter(tensor=1), [])


def test_dtypes() -> None:
    scale = f"{W}_scale_inv"
    assert found(tensor(W, "F8_E4M3FNUZ", 8, 8), tensor(scale, "F32", 1, 1)) == [
        ("fp8-dtype", "error", W)
    ]
    assert found(tensor(W, "F8_E5M2", 8, 8), tensor(scale, "I8", 1, 1)) == [
        ("scale-dtype", "error", scale)
    ]
    for dtype in ("BF16", "F16", "F32", "F8_E8M0", "U8"):
        assert found(tensor(W, "F8_E5M2", 8, 8), tensor(scale, dtype, 1, 1)) == []


def test_many_findings_are_counted_not_all_listed() -> None:
    weights = [tensor(f"l.{i}.weight", "F8_E4M3", 8, 8) for i in range(250)]
    problems = judged(*weights).problems
    assert len(problems) == 101
    assert "150 more" in problems[-1].message


@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 300), st.integers(1, 300))
def test_the_grid_is_that_of_walking_over_blocks(r: int, c: int, bo: int, bi: int) -> None:
    rows = sum(1 for _ in range(0, r, bo))
    columns = sum(1 for _ in range(0, c, bi))
    assert expected_grid((r, c), (bo, bi)) == (rows, columns)
    config = {"quantization_config": {"weight_block_size": [bo, bi]}}
    scale = tensor(f"{W}_scale_inv", "F32", rows, columns)
    assert found(tensor(W, "F8_E4M3", r, c), scale, config=config) == []
    if rows * columns > 1:
        wide = tensor(f"{W}_scale_inv", "F32", rows, columns + 1)
        codes = [f[0] for f in found(tensor(W, "F8_E4M3", r, c), wide, config=config)]
        assert codes == ["scale-grid"]


@pytest.mark.parametrize(
    "config, block",
    [
        (BLOCKS, (128, 128)),
        ({"text_config": BLOCKS}, (128, 128)),
        ({"compression_config": {"weight_block_size": [64, 32]}}, (64, 32)),
        (
            {"quantization_config": {"config_groups": {"g": {"weights": {"block_structure":
             "128x64"}}}}},
            (128, 64),
        ),
        (
            {"quantization_config": {"config_groups": {"g": {"weights": {"block_structure":
             [16, 16]}}}}},
            (16, 16),
        ),
        ({"quantization_config": {}}, None),
        ({"quantization_config": None}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_where_the_block_size_stands(config: dict[str, Any], block: Any) -> None:
    settings = read_settings(config)
    assert (settings.block, settings.problems) == (block, [])


@pytest.mark.parametrize(
    "block", [[128, 0], [128], [128, -1], [True, True], "128", [128.0, 128.0], {}, [1, 2**60]]
)
def test_block_sizes_that_cannot_be(block: Any) -> None:
    settings = read_settings({"quantization_config": {"weight_block_size": block}})
    assert settings.block is None
    assert [p.code for p in settings.problems] == ["bad-block"]


@pytest.mark.parametrize("value", ["fp8", [], 8, True])
def test_settings_that_are_no_object(value: Any) -> None:
    settings = read_settings({"quantization_config": value})
    assert [p.code for p in settings.problems] == ["bad-quantization"]


def test_the_skip_list_has_names_and_expressions() -> None:
    names = ["lm_head", "model.visual", "re:.*gate$", "model.*.norm", "lm_head"]
    settings = read_settings({"quantization_config": {"modules_to_not_convert": names}})
    assert settings.skip == ["lm_head", "model.visual"]
    assert settings.patterns == ["re:.*gate$", "model.*.norm"]
    bad = read_settings({"quantization_config": {"ignore": ["a", 1]}})
    assert [p.code for p in bad.problems] == ["bad-skip-list"]


def test_a_quantisation_that_is_no_object() -> None:
    for odd in ([1], "fp8", 5, [], False):
        settings = read_settings({"text_config": {"quantization_config": odd}})
        assert settings.method is None
        assert [p.code for p in settings.problems] == ["bad-quantization"]
        assert settings.problems[0].message.startswith(f"quantization_config: found {odd}, ")
    both = {"quantization_config": [1], "compression_config": {"quant_method": "x"}}
    assert read_settings(both).method == "x" and len(read_settings(both).problems) == 1
    for nothing in (None, {}):
        assert read_settings({"quantization_config": nothing}) == read_settings({})


def table(dtypes: dict[int, str], form: str = "shard_{}") -> list[Tensor]:
    rows = [tensor(f"ple.t.{form.format(i)}.weight", d, 30, 16) for i, d in dtypes.items()]
    return [*rows, tensor("ple.t.weight_scale", "BF16")]


@pytest.mark.parametrize("form", ["shard_{}", "shards.{}"])
def test_shards_of_a_table_are_alike(form: str) -> None:
    fp8 = dict.fromkeys(range(4), "F8_E4M3")
    assert table_problems(table(fp8, form)) == []
    name = f"ple.t.{form.format(2)}.weight"
    [problem] = table_problems(table({**fp8, 2: "BF16"}, form))
    assert (problem.code, problem.severity, problem.name) == ("mixed-shards", "error", name)
    assert "found BF16 in 2 of 4 shards, expected F8_E4M3" in problem.message
    [other] = table_problems(table({**fp8, 2: "F8_E5M2"}, form))
    assert (other.code, other.name) == ("mixed-shards", name)
    plain = table(dict.fromkeys((0, 3), "BF16"), form)
    assert table_problems(plain) == [], "tables without FP8 are not judged here"


def test_a_gap_in_the_shards_of_a_table() -> None:
    got = table_problems(table(dict.fromkeys((0, 1, 5), "F8_E4M3")))
    assert [(p.code, p.name) for p in got] == [("missing-table-shard", "ple.t.shard_5.weight")]
    assert got[0].message.endswith("found 3 shards, expected all of 0..5: no 2, 3, 4")
    many = table_problems(table({10**9: "F8_E4M3"}))
    assert many[0].message.endswith("0, 1, 2, 3, 4, 5, 6, 7, ...")
    long = tensor(f"ple.t.shard_{'9' * 5000}.weight", "F8_E4M3", 8, 8)
    assert [c for c, _, _ in found(long)] == ["missing-scale"] and table_problems([long]) == []


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_plain_scale_beside_a_dense_matrix(elsewhere: bool) -> None:
    """`.scale` is also what norms have; beside FP8 that pairs so it is a scale left over."""
    rows = [tensor("b.weight", "BF16", 8, 8), tensor("b.scale", "F32", 1, 1)]
    rows += [tensor("norm.weight", "BF16", 8), tensor("norm.scale", "F32", 8)]
    rows += [tensor("c.scale", "F32", 1, 1)]
    name = "a.scale" if elsewhere else "a.weight_scale_inv"
    rows += [tensor("a.weight", "F8_E4M3", 8, 8), tensor(name, "F32", 1, 1)]
    assert found(*rows) == ([("orphan-scale", "error", "b.scale")] if elsewhere else [])


def test_census_tells_of_tables() -> None:
    rows = table({0: "F8_E4M3", 1: "BF16"})
    codes = [p.code for p in preflight(rows, {t.name for t in rows}, {})[1]]
    assert codes == ["mixed-shards"]
