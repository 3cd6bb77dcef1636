"""Each problem of shapes, layouts, dtypes, scales and biases: one thing of a whole checkpoint is
damaged, and that code is told.
"""

from __future__ import annotations

from typing import Any

import pytest

from .making import (
    BLOCKS,
    GROUP,
    SIZES,
    Headers,
    Sizes,
    codes,
    found,
    fused,
    mxfp4,
    one,
    packed,
    scaled,
    split,
    stacked,
    without,
)


def test_shape_mismatch() -> None:
    headers = split(GROUP, SIZES)
    name = f"{GROUP}.1.down_proj.weight"
    headers[name] = "BF16", (8, 7)
    detail = {"shape": [8, 7], "expected": [8, 6]}
    expected = {"code": "shape-mismatch", "group": GROUP, "tensor": name, **detail}
    assert one(found(headers)) == expected
    headers[name] = "BF16", (8, 6, 1)
    assert one(found(headers))["shape"] == [8, 6, 1]


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 12, 100])
def test_of_equally_frequent_shapes_the_first_name_has_it(rows: int) -> None:
    """gate and up of all experts disagree: those of up are the wrong ones, whatever the sizes."""
    headers = split(GROUP, SIZES)
    for j in range(4):
        headers[f"{GROUP}.{j}.up_proj.weight"] = "BF16", (rows, 8)
    detection = found(dict(reversed(headers.items())))
    assert codes(detection) == ["shape-mismatch"] * 4
    assert [p["tensor"] for p in detection.problems] == [
        f"{GROUP}.{j}.up_proj.weight" for j in range(4)
    ]


def test_populations_are_halves() -> None:
    """One of three experts that is narrower in all its matrices is not a population."""
    headers = {**split(GROUP, Sizes(E=3)), **split(GROUP, Sizes(I=5), experts=[0])}
    assert codes(found(headers)) == ["shape-mismatch"] * 3
    headers = {**split(GROUP, Sizes(E=3)), **split(GROUP, Sizes(H=7), experts=[2])}
    assert codes(found(headers)) == ["shape-mismatch"] * 3


def test_split_without_matrices() -> None:
    headers = {n: (d, (48,)) for n, (d, _) in split(GROUP, SIZES).items()}
    assert codes(found(headers)) == ["unrecognized-layout"] * 3


def test_shape_mismatch_of_packed_matrices() -> None:
    headers = packed(GROUP, Sizes(H=64, I=32))
    headers[f"{GROUP}.1.w3.weight"] = "I8", (32, 64)
    problem = one(
        found(without(headers, ".1.w3.scale") | {f"{GROUP}.1.w3.scale": ("F32", (32, 4))})
    )
    assert (problem["code"], problem["expected"]) == ("shape-mismatch", [32, 32])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gate_up_proj", (4, 12)),
        ("gate_up_proj", (4, 12, 8, 1)),
        ("gate_up_proj", ()),
        ("gate_up_proj", (4, 10, 8)),
        ("down_proj", (4, 9, 6)),
        ("down_proj", (4, 0, 0)),
    ],
)
def test_unrecognized(name: str, shape: tuple[int, ...]) -> None:
    headers = {**fused(GROUP, SIZES), f"{GROUP}.{name}": ("BF16", shape)}
    problem = one(found(headers, {"hidden_size": 8}))
    assert problem["code"] == "unrecognized-layout"
    assert problem[name.removesuffix("_proj")] == list(shape)
    assert found(headers).groups[0].orientation is None


def test_only_bytes_are_packed() -> None:
    headers: Headers = {
        f"{GROUP}.gate_up_proj": ("BF16", (3, 64, 64)),
        f"{GROUP}.down_proj": ("BF16", (3, 128, 16)),
    }
    assert codes(found(headers)) == ["unrecognized-layout"]
    plain = {n: ("F16", s) for n, (d, s) in packed(GROUP, Sizes(H=64, I=32)).items() if d == "I8"}
    assert codes(found(plain)) == ["shape-mismatch"] * 4


def test_empty_sides_fit_every_orientation_and_so_none() -> None:
    headers: Headers = {
        f"{GROUP}.gate_up_proj": ("BF16", (4, 0, 0)),
        f"{GROUP}.down_proj": ("BF16", (4, 0, 0)),
    }
    assert codes(found(headers)) == ["unrecognized-layout"]


def test_unrecognized_stack() -> None:
    headers = {**stacked(GROUP, SIZES), f"{GROUP}.gate_proj": ("BF16", (4, 7, 8))}
    assert one(found(headers, SIZES.config))["code"] == "unrecognized-layout"
    headers = {**stacked(GROUP, SIZES), f"{GROUP}.down_proj": ("BF16", (4, 8, 7))}
    assert one(found(headers, SIZES.config))["code"] == "unrecognized-layout"


@pytest.mark.parametrize("part", ["qweight", "weight_packed", "qzeros"])
def test_weights_of_an_unknown_kind(part: str) -> None:
    """GPTQ and its like are named once, not passed over."""
    headers = {n.replace("weight", part): t for n, t in split(GROUP, SIZES).items()}
    detection = found(headers)
    assert codes(detection) == ["unrecognized-layout"]
    assert detection.problems[0]["tensor"] == f"{GROUP}.0.down_proj.{part}"
    assert detection.groups[0].others == 12


@pytest.mark.parametrize("transposed", [False, True])
def test_contradictory(transposed: bool) -> None:
    whole, other = (fused(GROUP, SIZES, transposed=t) for t in (transposed, not transposed))
    down = f"{GROUP}.down_proj"
    problem = one(found({**whole, down: other[down]}, SIZES.config))
    assert problem["code"] == "contradictory-orientation"
    assert problem["down"] == list(other[down][1])
    whole, other = (stacked(GROUP, SIZES, transposed=t) for t in (transposed, not transposed))
    problem = one(found({**whole, down: other[down]}, SIZES.config))
    assert problem["code"] == "contradictory-orientation"


@pytest.mark.parametrize("config", [{}, {"hidden_size": 7}, {"num_experts": 4}])
def test_nothing_decides_a_stack(config: dict[str, Any]) -> None:
    detection = found(stacked(GROUP, SIZES), config)
    assert codes(detection)[0] == "ambiguous-orientation"
    assert ("config-mismatch" in codes(detection)) == ("hidden_size" in config)
    assert "H" not in next(detection.records())


def test_a_stack_of_squares() -> None:
    sizes = Sizes(H=8, I=8)
    assert codes(found(stacked(GROUP, sizes), sizes.config)) == ["ambiguous-orientation"]


@pytest.mark.parametrize("layout", [split, fused])
def test_config_mismatch(layout: Any) -> None:
    config = {**SIZES.config, "hidden_size": 16}
    expected = {"code": "config-mismatch", "group": GROUP, "config": 16, "found": 8}
    assert one(found(layout(GROUP, SIZES), config)) == expected


def test_mixed_in_group() -> None:
    both = {**split(GROUP, SIZES), **fused(GROUP, SIZES)}
    detail = {"families": ["split", "fused"]}
    assert one(found(both)) == {"code": "mixed-in-group", "group": GROUP, **detail}
    # one stray matrix in a fused group: the facts are those of the fused one
    stray = f"{GROUP}.0.up_proj.weight"
    detection = found({**fused(GROUP, SIZES), stray: both[stray]})
    assert codes(detection) == ["mixed-in-group"]
    assert detection.groups[0].layout == "fused" and detection.groups[0].others == 1
    three = {**fused(GROUP, SIZES), **without(stacked(GROUP, SIZES), "down_proj")}
    assert codes(found(three)) == ["mixed-in-group"]


def test_mixed_names_of_one_layout() -> None:
    both = {**split(GROUP, SIZES), **split(GROUP, SIZES, "w1-w3-w2")}
    problem = one(found(both))
    assert problem["families"] == ["split"]
    assert problem["namings"] == ["gate-up-down", "w1-w3-w2"]
    both = {**fused(GROUP, SIZES), f"{GROUP}.gate_up_proj.weight": ("BF16", (4, 12, 8))}
    assert codes(found(both)) == ["mixed-in-group"]


@pytest.mark.parametrize("layout", [split, fused, stacked])
def test_dtype_mismatch(layout: Any) -> None:
    headers = layout(GROUP, SIZES)
    name = next(iter(headers))
    headers[name] = "F32", headers[name][1]
    problem = one(found(headers, SIZES.config))
    assert problem["code"] == "dtype-mismatch"
    assert problem["dtypes"] == {"F32": 1, "BF16": len(headers) - 1}


def test_missing_and_orphan_scales() -> None:
    headers = scaled(split(GROUP, SIZES), "weight_scale_inv", (4, 4))
    scale = f"{GROUP}.2.up_proj.weight_scale_inv"
    problem = one(found(without(headers, scale), BLOCKS))
    assert problem == {
        "code": "missing-scale",
        "group": GROUP,
        "tensor": f"{GROUP}.2.up_proj.weight",
    }
    detection = found({n: t for n, t in headers.items() if n != problem["tensor"]}, BLOCKS)
    assert codes(detection) == ["missing-expert", "orphan-scale"]
    assert detection.problems[1]["tensor"] == scale


def test_scales_of_weights_that_need_none() -> None:
    headers = scaled(split(GROUP, SIZES), "weight_scale_inv", (4, 4))
    plain = {n: ("BF16" if d != "F32" else d, s) for n, (d, s) in headers.items()}
    assert codes(found(plain, BLOCKS)) == ["orphan-scale"] * 12


def test_two_scales_of_a_weight() -> None:
    headers = scaled(split(GROUP, SIZES), "weight_scale_inv", (4, 4))
    extra = f"{GROUP}.0.up_proj.scale"
    problem = one(found({**headers, extra: ("F32", (2, 2))}, BLOCKS))
    assert (problem["code"], problem["tensor"]) == ("orphan-scale", extra)


def test_no_scales_at_all() -> None:
    headers = split(GROUP, SIZES, dtype="F8_E4M3")
    assert codes(found(headers)) == ["missing-scale"] * 12
    assert codes(found(fused(GROUP, SIZES, dtype="F8_E4M3"))) == ["missing-scale"] * 2


def test_scales_of_another_layout() -> None:
    """Matrices joined, scales left under their old names: neither has the other."""
    headers = scaled(split(GROUP, SIZES), "weight_scale_inv", (4, 4))
    left = {n: t for n, t in headers.items() if "scale" in n}
    got = codes(found({**fused(GROUP, SIZES, dtype="F8_E4M3"), **left}, BLOCKS))
    assert sorted(got) == ["missing-scale"] * 2 + ["orphan-scale"] * 12


@pytest.mark.parametrize("layout", [split, fused])
def test_scale_grid(layout: Any) -> None:
    suffix = "weight_scale_inv" if layout is split else "_scale_inv"
    headers = scaled(layout(GROUP, SIZES), suffix, (4, 4))
    name = next(n for n in headers if "scale" in n)
    *lead, rows, columns = headers[name][1]
    headers[name] = "F32", (*lead, rows, columns + 1)
    problem = one(found(headers, BLOCKS))
    assert (problem["code"], problem["tensor"]) == ("scale-grid", name)
    assert problem["shape"] == [*lead, rows, columns + 1]
    assert problem["expected"] == [*lead, rows, columns]


def test_a_grid_of_another_block_than_the_config_says() -> None:
    headers = scaled(split(GROUP, SIZES), "weight_scale_inv", (2, 2))
    assert codes(found(headers, BLOCKS)) == ["scale-grid"] * 12


def test_grids_of_two_matrices_exchanged() -> None:
    headers = split(GROUP, SIZES)
    headers[f"{GROUP}.0.up_proj.weight"] = "BF16", (9, 8)
    headers = scaled(headers, "weight_scale_inv", (4, 4))
    assert codes(found(headers, BLOCKS)) == ["shape-mismatch"]
    first, second = (f"{GROUP}.{j}.up_proj.weight_scale_inv" for j in (0, 1))
    headers[first], headers[second] = headers[second], headers[first]
    assert codes(found(headers, BLOCKS)) == ["shape-mismatch", "scale-grid", "scale-grid"]


def test_half_of_a_packed_group() -> None:
    """Without down the config's hidden size tells whether a byte holds one value or two."""
    headers = without(packed(GROUP, Sizes(H=64, I=32)), ".w2.")
    for hidden, expected in (({64}, (64, True)), ({32}, (32, False)), ({32, 64}, (32, False))):
        config = {f"c{h}_config": {"hidden_size": h, "num_experts": 4} for h in hidden}
        (group,) = found(headers, config).groups
        assert (group.H, group.packed) == expected
    only = {n: t for n, t in packed(GROUP, Sizes(H=64, I=32)).items() if ".w2." in n}
    (group,) = found(only, Sizes(H=64, I=32).config).groups
    assert (group.H, group.I, group.packed) == (64, 32, True)


def test_damaged_mxfp4() -> None:
    sizes = Sizes(H=64, I=32)
    whole = mxfp4(GROUP, sizes)
    down = f"{GROUP}.down_proj"
    assert codes(found(without(whole, "down_proj_scales"))) == ["missing-scale"]
    wrong = {**whole, f"{down}_scales": ("U8", (4, 64, 2))}
    assert one(found(wrong))["expected"] == [4, 64, 1]
    flat_ = {**whole, f"{down}_blocks": ("U8", (4, 64, 16))}
    assert "unrecognized-layout" in codes(found(flat_))
    lone = without(whole, "down_proj")
    detection = found(lone, sizes.config)
    assert codes(detection) == ["missing-projection"]
    assert (detection.groups[0].H, detection.groups[0].packed) == (64, True)


def test_biases_have_the_width_of_the_output() -> None:
    wrong = {**fused(GROUP, SIZES), f"{GROUP}.down_proj_bias": ("BF16", (4, 6))}
    assert one(found(wrong))["expected"] == [4, 8]
    headers = split(GROUP, SIZES, "fc1-fc2")
    for j in range(4):
        headers[f"{GROUP}.expert_{j}.fc1.bias"] = "BF16", (6,)
        headers[f"{GROUP}.expert_{j}.fc2.bias"] = "BF16", (8,)
    assert found(headers).exit == 0 and next(found(headers).records())["bias"] is True
    problem = one(found(without(headers, "expert_3.fc2.bias")))
    assert (problem["code"], problem["experts"], problem["part"]) == ("missing-expert", [3], "bias")
    headers[f"{GROUP}.expert_0.fc1.bias"] = "BF16", (8,)
    assert one(found(headers))["code"] == "shape-mismatch"
