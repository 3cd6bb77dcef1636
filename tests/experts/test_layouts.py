"""Every layout, set of names and quantised form, as made in code."""

from __future__ import annotations

from typing import Any

import pytest

from .making import (
    SPLIT_NAMES,
    Headers,
    Sizes,
    codes,
    flat,
    found,
    fused,
    mxfp4,
    one,
    packed,
    scaled,
    split,
    stacked,
)

GROUP = "model.layers.0.mlp.experts"
SIZES = Sizes()


def record(headers: Headers, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """The only group, without problems."""
    detection = found(headers, config)
    assert detection.problems == [] and detection.exit == 0
    (group,) = detection.records()
    assert group.pop("problems") == []
    return group


@pytest.mark.parametrize("naming", SPLIT_NAMES)
def test_split(naming: str) -> None:
    expected = {"group": GROUP, "layout": "split", "naming": naming, "dtype": "BF16"}
    assert record(split(GROUP, SIZES, naming)) == {**expected, "E": 4, "H": 8, "I": 6}


def test_a_gate_under_numbered_names() -> None:
    headers = {
        n.replace("experts.", "experts.expert_"): t
        for n, t in split(GROUP, SIZES, "fc1-fc3-fc2").items()
    }
    assert record(headers)["naming"] == "fc1-fc3-fc2"


@pytest.mark.parametrize(
    ("container", "names", "transposed"),
    [
        ("mlp.experts", ("gate_up_proj", "down_proj"), False),
        ("feed_forward.experts", ("gate_up_proj", "down_proj"), True),
        ("mlp.experts", ("gate_up_proj.weight", "down_proj.weight"), False),
        ("block_sparse_moe", ("input_linear.weight", "output_linear.weight"), False),
        ("mlp.experts", ("fc1.weight", "fc2.weight"), True),
    ],
)
@pytest.mark.parametrize("sizes", [Sizes(), Sizes(H=8, I=4), Sizes(H=8, I=8)])
def test_fused(container: str, names: tuple[str, str], transposed: bool, sizes: Sizes) -> None:
    """The pair decides, with sizes that coincide as well, and without a config."""
    group = f"layers.3.{container}"
    got = record(fused(group, sizes, names, transposed))
    orientation = "transposed" if transposed else "direct"
    facts = {"E": 4, "H": sizes.H, "I": sizes.I, "dtype": "BF16"}
    order = {"gate_up_order": "concatenated"}
    expected = {"group": group, "layout": "fused", "orientation": orientation, **order, **facts}
    assert got == expected


def test_rows_of_w13_alternate() -> None:
    got = record(fused(GROUP, SIZES, ("w13_weight", "w2_weight")))
    assert (got["orientation"], got["gate_up_order"]) == ("direct", "interleaved")


def test_fused_bias_hides_the_order() -> None:
    headers = fused(GROUP, SIZES) | {f"{GROUP}.gate_up_proj_bias": ("BF16", (4, 12))}
    got = record(headers)
    assert (got["gate_up_order"], got["bias"]) == ("unknown", True)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("up_proj", "down_proj")]
)
def test_stacked(names: tuple[str, ...], transposed: bool) -> None:
    got = record(stacked(GROUP, SIZES, names, transposed), SIZES.config)
    assert got["orientation"] == ("transposed" if transposed else "direct")
    assert (got["layout"], got["E"], got["H"], got["I"]) == ("stacked", 4, 8, 6)
    assert "gate_up_order" not in got and "naming" not in got


def test_stacked_under_moe() -> None:
    names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    headers = stacked("model.layers.4.moe", SIZES, names)
    headers["model.layers.4.moe.gate.weight"] = "BF16", (4, 8)
    headers["model.layers.4.share_expert.up_proj.weight"] = "BF16", (6, 8)
    assert record(headers, SIZES.config)["group"] == "model.layers.4.moe"


def test_the_config_decides_stacked() -> None:
    """The same shapes mean the other orientation when the hidden size is the other side."""
    headers = stacked(GROUP, SIZES)
    got = record(headers, {"hidden_size": 6})
    assert (got["orientation"], got["H"], got["I"]) == ("transposed", 6, 8)


def test_nemo_export_has_no_gate_and_is_transposed() -> None:
    headers = stacked("b.mixer.experts", SIZES, ("gate_and_up_projs", "down_projs"), True)
    got = record(headers)
    assert (got["layout"], got["orientation"], got["H"]) == ("stacked", "transposed", 8)


def test_flat() -> None:
    config = {"d_model": 8, "ffn_config": {"moe_num_experts": 4, "ffn_hidden_size": 6}}
    group = "transformer.blocks.0.ffn.experts"
    expected = {"group": group, "layout": "flat", "E": 4, "H": 8, "I": 6, "dtype": "BF16"}
    assert record(flat(group, SIZES), config) == expected


def test_mxfp4() -> None:
    got = record(mxfp4(GROUP, Sizes(H=64, I=32)))
    assert (got["layout"], got["orientation"], got["E"]) == ("fused", "direct", 4)
    assert (got["H"], got["I"], got["dtype"], got["gate_up_order"]) == (64, 32, "U8", "unknown")
    assert (got["scales"], got["block"], got["gate_up_scale_fusable"]) == ("scales", [1, 32], True)
    assert got["packed"] == "2 values per byte along the input axis"


@pytest.mark.parametrize("dtype", ["I8", "U8"])
def test_packed_split(dtype: str) -> None:
    got = record(packed("layers.0.ffn.experts", Sizes(H=64, I=32), dtype=dtype))
    assert (got["H"], got["I"], got["dtype"], got["block"]) == (64, 32, dtype, [1, 32])
    assert "packed" in got and got["scales"] == "scale"


def test_packed_block_of_the_config() -> None:
    groups = {"group_0": {"weights": {"group_size": 16}}}
    headers = packed(GROUP, Sizes(H=64, I=32))
    for name in [n for n in headers if n.endswith("scale")]:
        rows, columns = headers[name[: -len("scale")] + "weight"][1]
        headers[name] = "F8_E4M3", (rows, columns * 2 // 16)
    got = record(headers, {"quantization_config": {"config_groups": groups}})
    assert got["block"] == [1, 16]


def test_packed_fused_and_stacked() -> None:
    """What joining packed matrices along the output axis gives."""
    headers: Headers = {
        f"{GROUP}.gate_up_proj": ("I8", (3, 64, 32)),
        f"{GROUP}.gate_up_proj_scale_inv": ("F32", (3, 64, 2)),
        f"{GROUP}.down_proj": ("I8", (3, 64, 16)),
        f"{GROUP}.down_proj_scale_inv": ("F32", (3, 64, 1)),
    }
    got = record(headers)
    assert (got["orientation"], got["H"], got["I"]) == ("direct", 64, 32)
    assert "packed" in got and got["block"] == [1, 32]
    headers = {
        f"{GROUP}.up_proj": ("U8", (3, 32, 32)),
        f"{GROUP}.up_proj_scale": ("F32", (3, 32, 2)),
        f"{GROUP}.down_proj": ("U8", (3, 64, 16)),
        f"{GROUP}.down_proj_scale": ("F32", (3, 64, 1)),
    }
    assert record(headers)["H"] == 64


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "scale", "weight_scale", "qscale_weight"])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E8M0", "U8"])
def test_split_scales(suffix: str, dtype: str) -> None:
    config = {"quantization_config": {"weight_block_size": [4, 4]}}
    headers = scaled(split(GROUP, SIZES), suffix, (4, 4))
    headers = {n: (dtype if d == "F32" else d, s) for n, (d, s) in headers.items()}
    got = record(headers, config)
    assert (got["scales"], got["block"]) == (suffix, [4, 4])
    assert got["gate_up_scale_fusable"] is False  # 6 rows in blocks of 4
    assert (got["dtype"], got["E"], got["H"], got["I"]) == ("F8_E4M3", 4, 8, 6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("suffix", ["_scale_inv", "_scale"])
def test_fused_scales(suffix: str, transposed: bool) -> None:
    """The block is that of the stored axes; a fusable I is a multiple of its output side."""
    config = {"text_config": {"quantization_config": {"weight_block_size": [4, 3]}}}
    headers = scaled(fused(GROUP, SIZES, transposed=transposed), suffix, (4, 3))
    got = record(headers, config)
    assert (got["scales"], got["block"]) == (suffix[1:], [4, 3])
    assert got["gate_up_scale_fusable"] is transposed  # 6 is a multiple of 3, not of 4


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_each_matrix(shape: tuple[int, ...]) -> None:
    headers = scaled(split(GROUP, SIZES), "weight_scale", (4, 4))
    headers = {n: (d, shape if "scale" in n else s) for n, (d, s) in headers.items()}
    got = record(headers)
    assert (got["block"], got["gate_up_scale_fusable"]) == (None, True)


def test_one_scale_for_each_matrix_of_a_fused_group() -> None:
    headers = scaled(fused(GROUP, SIZES), "_scale_inv", (4, 4))
    headers[f"{GROUP}.gate_up_proj_scale_inv"] = "F32", (4, 2, 1)
    headers[f"{GROUP}.down_proj_scale_inv"] = "F32", (4, 1, 1)
    assert record(headers)["block"] is None


def test_one_scale_for_each_row() -> None:
    headers = scaled(split(GROUP, SIZES), "weight_scale", (1, 99))
    assert record(headers)["gate_up_scale_fusable"] is True


def test_a_block_is_never_derived() -> None:
    """Without a config the grids of blocks stay unknown, but equal weights have equal grids."""
    headers = scaled(split(GROUP, SIZES), "weight_scale_inv", (4, 4))
    got = record(headers)
    assert (got["block"], got["gate_up_scale_fusable"]) == (None, None)
    headers[f"{GROUP}.3.up_proj.weight_scale_inv"] = "F32", (2, 3)
    problem = one(found(headers))
    assert (problem["code"], problem["expected"]) == ("scale-grid", [2, 2])


def test_two_populations() -> None:
    """Ernie 4.5 VL: the second half of the experts has another I."""
    text, vision = Sizes(E=4, H=8, I=6), Sizes(E=4, H=8, I=2)
    headers = split(GROUP, text, experts=range(2)) | split(GROUP, vision, experts=range(2, 4))
    config = {"hidden_size": 8, "moe_num_experts": [2, 2], "moe_intermediate_size": [6, 2]}
    got = record(headers, config)
    assert (got["E"], got["H"], got["I"]) == (4, 8, [6, 2])
    headers[f"{GROUP}.3.up_proj.weight"] = "BF16", (3, 8)
    assert "shape-mismatch" in codes(found(headers, config))


def test_layers_may_differ_in_experts() -> None:
    config = {"num_experts": [4, 6], "hidden_size": 8, "num_hidden_layers": 2}
    one_, two = "model.layers.0.mlp.experts", "model.layers.1.mlp.experts"
    headers = split(one_, SIZES) | split(two, Sizes(E=6))
    detection = found(headers, config)
    assert codes(detection) == []
    assert [g["E"] for g in detection.records()] == [4, 6]
    assert codes(found(split(two, SIZES), config))[0] == "count-mismatch"


def test_prediction_layers_are_groups_like_others() -> None:
    groups = [
        "model.layers.0.mlp.experts",
        "model.layers.1.mlp.experts",
        "mtp.layers.0.mlp.experts",
    ]
    headers = {n: t for g in groups for n, t in split(g, SIZES).items()}
    detection = found(headers, {**SIZES.config, "num_hidden_layers": 1})
    assert [g.name for g in detection.groups] == groups and not detection.mixed


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.shared_experts.gate_proj.weight",
        "model.layers.0.mlp.shared_experts.experts.0.gate_proj.weight",
        "model.layers.0.mlp.shared_expert.down_proj.weight",
        "model.layers.0.mlp.shared_mlp.up_proj.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.router.weight",
        "model.layers.0.block_sparse_moe.router.layer.weight",
        "model.layers.0.block_sparse_moe.gate.weight",
        "model.layers.0.moe.gate.weight",
        "model.layers.0.mlp.experts.e_score_correction_bias",
        "model.layers.0.mlp.my_experts.0.gate_proj.weight",
        "model.layers.0.mlp.experts_bank.gate_up_proj",
        "model.layers.0.mlp.experts.0.attention.query.weight",
        "model.layers.0.mlp.experts.0.gate_proj.lora_A.weight",
        "experts",
        ".experts.",
        "moe.",
        "",
    ],
)
def test_not_routed(name: str) -> None:
    assert found({name: ("BF16", (4, 6, 8))}).groups == []
    headers = {**split(GROUP, SIZES), name: ("BF16", (4, 6, 8))}
    detection = found(headers, SIZES.config)
    assert [g.name for g in detection.groups] == [GROUP] and detection.exit == 0


def test_a_group_without_prefix() -> None:
    assert record(split("experts", SIZES))["group"] == "experts"
    assert record(fused("experts", SIZES))["group"] == "experts"


def test_weights_by_role_and_number() -> None:
    """What a converter reads: tensors by role and expert, in order of numbers when sorted."""
    (group,) = found(split(GROUP, Sizes(E=12), "w1-w3-w2")).groups
    assert sorted(group.weights["up"]) == list(range(12))
    assert group.weights["up"][10].name == f"{GROUP}.10.w3.weight"
    assert group.weights["down"][2].name == f"{GROUP}.2.w2.weight"


def test_summary() -> None:
    assert found({"a": ("F32", (1,))}).summary() is None
    headers = split("a.0.experts", SIZES) | fused("a.1.experts", Sizes(E=5))
    assert found(headers).summary() == {
        "layout": ["fused", "split"],
        "orientation": [None, "direct"],
        "naming": [None, "gate-up-down"],
        "groups": 2,
        "E": [4, 5],
        "H": 8,
        "I": 6,
        "dtype": "BF16",
        "scales": None,
        "mixed": True,
    }
