"""Each problem: one thing of a whole checkpoint is damaged, and that code is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.experts.detect import detect_checkpoint
from ntool.lib.experts.messages import message

from ..checkpoint.header_files import index, shard
from .making import (
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
    tensors,
)

GROUP = "model.layers.0.mlp.experts"
OTHER = "model.layers.1.mlp.experts"
SIZES = Sizes()
BLOCKS = {"quantization_config": {"weight_block_size": [4, 4]}}


def without(headers: Headers, *parts: str) -> Headers:
    kept = {n: t for n, t in headers.items() if not any(p in n for p in parts)}
    assert len(kept) < len(headers)
    return kept


def test_missing_expert() -> None:
    headers = without(split(GROUP, SIZES), ".2.up_proj")
    expected = {"code": "missing-expert", "group": GROUP, "role": "up", "experts": [2]}
    assert one(found(headers)) == expected


def test_the_config_knows_the_last_expert() -> None:
    headers = without(split(GROUP, SIZES), ".3.")
    assert found(headers).exit == 0
    detection = found(headers, SIZES.config)
    assert codes(detection) == ["count-mismatch", *["missing-expert"] * 3]
    assert detection.problems[0] == {
        "code": "count-mismatch",
        "group": GROUP,
        "config": 4,
        "found": 3,
    }


def test_more_experts_than_the_config_says() -> None:
    assert codes(found(split(GROUP, Sizes(E=5)), SIZES.config)) == ["count-mismatch"]


@pytest.mark.parametrize("number", ["99999999999", "999999999999999"])
def test_an_absurd_number_of_an_expert(number: str) -> None:
    """Neither time nor memory grow with it; what is missing is counted, and listed in part."""
    name = f"{GROUP}.{number}.up_proj.weight"
    detection = found({**split(GROUP, SIZES), name: ("BF16", (6, 8))})
    up = next(p for p in detection.problems if p.get("role") == "up")
    assert up["experts"][:2] == [4, 5] and len(up["experts"]) == 4096
    assert up["count"] == int(number) + 1 - 5
    assert all(len(message(p)) < 300 for p in detection.problems)


@pytest.mark.parametrize("number", ["9" * 20, "9" * 5000, "01", "-1", "1e3", "٣", "²", "", "+1"])
def test_what_is_no_number(number: str) -> None:
    name = f"{GROUP}.{number}.up_proj.weight"
    assert found({**split(GROUP, SIZES), name: ("BF16", (6, 8))}).exit == 0


def test_an_absurd_number_in_the_config() -> None:
    detection = found(split(GROUP, SIZES), {"num_experts": 10**18})
    assert codes(detection) == ["count-mismatch", *["missing-expert"] * 3]
    assert detection.problems[1]["count"] == 10**18 - 4


@pytest.mark.parametrize("role", ["gate_proj", "up_proj", "down_proj"])
def test_missing_projection(role: str) -> None:
    """In one layer of two; without other layers an absent gate is a model that has none."""
    headers = {**without(split(GROUP, SIZES), role), **split(OTHER, SIZES)}
    expected = {"code": "missing-projection", "group": GROUP, "role": role.removesuffix("_proj")}
    assert one(found(headers)) == expected


@pytest.mark.parametrize(("naming", "gate"), [("w1-w3-w2", "w1"), ("fc1-fc3-fc2", "fc1")])
def test_names_that_always_have_a_gate(naming: str, gate: str) -> None:
    problem = one(found(without(split(GROUP, SIZES, naming), f".{gate}.")))
    assert (problem["code"], problem["role"]) == ("missing-projection", "gate")


def test_plain_numbers_with_two_fc_lack_up() -> None:
    """fc1 is up only under `expert_J`."""
    problem = one(found(without(split(GROUP, SIZES, "fc1-fc3-fc2"), ".fc3.")))
    assert (problem["code"], problem["role"]) == ("missing-projection", "up")


@pytest.mark.parametrize("layout", [fused, stacked])
def test_gate_missing_in_one_layer_of_banks(layout: Any) -> None:
    headers = {**stacked(GROUP, SIZES, ("up_proj", "down_proj")), **layout(OTHER, SIZES)}
    problem = one(found(headers, SIZES.config))
    assert problem == {"code": "missing-projection", "group": GROUP, "role": "gate"}


@pytest.mark.parametrize("half", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("transposed", [False, True])
def test_half_of_a_fused_group(half: str, transposed: bool) -> None:
    headers = without(fused(GROUP, SIZES, transposed=transposed), half)
    detection = found(headers, SIZES.config)
    role = half.removesuffix("_proj")
    assert one(detection) == {"code": "missing-projection", "group": GROUP, "role": role}
    (group,) = detection.groups
    assert group.orientation == ("transposed" if transposed else "direct")
    assert (group.H, group.I) == (8, 6)
    # a config that fits neither, or none at all, decides nothing
    for config in ({**SIZES.config, "hidden_size": 9}, {}, {"hidden_size": 8}):
        detection = found(headers, config)
        assert codes(detection) == ["missing-projection", "ambiguous-orientation"]
        assert detection.groups[0].orientation == "ambiguous"


@pytest.mark.parametrize(
    ("sizes", "half"), [(Sizes(H=8, I=4), "down_proj"), (Sizes(H=8, I=8), "gate_up_proj")]
)
def test_a_lone_square(sizes: Sizes, half: str) -> None:
    headers = without(fused(GROUP, sizes), half)
    detection = found(headers, sizes.config)
    assert codes(detection) == ["missing-projection", "ambiguous-orientation"]
    (headers_shape,) = (list(s) for _, s in headers.values())
    assert detection.problems[1]["shape"] == headers_shape


def test_a_lone_down_is_what_its_tower_is() -> None:
    lone = without(stacked(GROUP, SIZES), "gate_proj", "up_proj")
    detection = found({**lone, **stacked(OTHER, SIZES)}, SIZES.config)
    assert [g.layout for g in detection.groups] == ["stacked", "stacked"]
    assert [p["role"] for p in detection.problems] == ["gate", "up"]
    detection = found({**lone, **fused(OTHER, SIZES)}, SIZES.config)
    assert [g.layout for g in detection.groups] == ["fused", "fused"]


@pytest.mark.parametrize("which", ["gate_up_proj", "down_proj"])
def test_counts_of_a_fused_group_disagree(which: str) -> None:
    headers = fused(GROUP, SIZES)
    dtype, shape = headers[f"{GROUP}.{which}"]
    headers[f"{GROUP}.{which}"] = dtype, (3, *shape[1:])
    detection = found(headers, SIZES.config)
    assert one(detection) == {"code": "count-mismatch", "group": GROUP, "found": [3, 4]}
    assert detection.groups[0].E == 4


@pytest.mark.parametrize("layout", [fused, stacked])
def test_banks_against_the_config(layout: Any) -> None:
    detection = found(layout(GROUP, Sizes(E=3)), SIZES.config)
    assert one(detection) == {"code": "count-mismatch", "group": GROUP, "config": 4, "found": 3}


def test_duplicates_in_a_stream() -> None:
    """Tensors of several streams together may have one name twice."""
    from ntool.lib.experts.detect import detect

    rows = tensors({**split(GROUP, SIZES), **fused(OTHER, SIZES)})
    for name in (f"{GROUP}.1.up_proj.weight", f"{OTHER}.down_proj"):
        again = next(t for t in rows if t.name == name)._replace(file="b.safetensors")
        expected = {"code": "duplicate-tensor", "tensor": name}
        files = ["a.safetensors", "b.safetensors"]
        assert one(detect([*rows, again], SIZES.config)) == {**expected, "files": files}


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


@pytest.mark.parametrize("config", [{}, {"hidden_size": 8}])
def test_needs_expert_count(config: dict[str, Any]) -> None:
    detection = found(flat(GROUP, SIZES), config)
    assert one(detection) == {"code": "needs-expert-count", "group": GROUP}


def test_damaged_flat() -> None:
    assert codes(found(flat(GROUP, SIZES), {"num_experts": 5})) == ["count-mismatch"]
    lone = without(flat(GROUP, SIZES), "v1")
    assert codes(found(lone, SIZES.config)) == ["missing-projection"]
    wrong = {**flat(GROUP, SIZES), f"{GROUP}.mlp.v1": ("BF16", (24, 9))}
    assert codes(found(wrong, SIZES.config)) == ["unrecognized-layout"]


def test_all_problems_are_told_in_order_of_names() -> None:
    headers = {**without(split(GROUP, SIZES), ".0.up"), **without(split(OTHER, SIZES), ".1.down")}
    headers[f"{GROUP}.3.up_proj.weight"] = "F32", (6, 9)
    detection = found(dict(sorted(headers.items(), reverse=True)))
    expected = ["missing-expert", "shape-mismatch", "dtype-mismatch", "missing-expert"]
    assert codes(detection) == expected
    assert [p["group"] for p in detection.problems] == [GROUP] * 3 + [OTHER]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards, the index of which is wrong in every way."""
    shard(tmp_path / "a.safetensors", *split("x.experts", Sizes(E=1)), "stray", shape=(6, 6))
    shard(tmp_path / "b.safetensors", "x.experts.0.up_proj.weight", "moved", shape=(6, 6))
    weight_map = dict.fromkeys(split("x.experts", Sizes(E=1)), "a.safetensors")
    weight_map |= {"moved": "a.safetensors", "gone": "b.safetensors", "lost": "c.safetensors"}
    index(tmp_path / "model.safetensors.index.json", weight_map)
    return tmp_path


def test_index_against_shards(model: Path) -> None:
    checkpoint = open_checkpoint(str(model))
    detection = detect_checkpoint(checkpoint)
    files = ["a.safetensors", "b.safetensors"]
    absent = "index-names-absent-tensor"
    assert detection.problems == [
        {"code": "missing-shard", "file": "c.safetensors"},
        {"code": absent, "tensor": "gone", "file": "b.safetensors"},
        {"code": absent, "tensor": "moved", "file": "a.safetensors"},
        {"code": "not-in-index", "tensor": "stray", "file": "a.safetensors"},
        {"code": "duplicate-tensor", "tensor": "x.experts.0.up_proj.weight", "files": files},
    ]
    assert detection.exit == 1
    assert [p.code for p in detection.as_problems()] == codes(detection)
    assert detection.as_problems(index=False) == []
    (group,) = detection.groups
    assert (group.E, group.H, group.I, group.problems) == (1, 6, 6, [])


def test_a_missing_shard_leaves_groups_incomplete(model: Path) -> None:
    (model / "a.safetensors").unlink()
    detection = detect_checkpoint(open_checkpoint(str(model)))
    told = [p["role"] for p in detection.problems if p["code"] == "missing-projection"]
    assert told == ["down"] and {"code": "missing-shard", "file": "a.safetensors"} in (
        detection.problems
    )


def test_components_of_a_package_are_apart(tmp_path: Path) -> None:
    names = split("layers.0.experts", Sizes(E=2))
    (tmp_path / "package.json").write_text("{}")
    for component in ("one", "two"):
        (tmp_path / component).mkdir()
        shard(tmp_path / component / "a.safetensors", *names, shape=(6, 6))
    detection = detect_checkpoint(open_checkpoint(str(tmp_path)))
    assert [g.name for g in detection.groups] == ["one/layers.0.experts", "two/layers.0.experts"]
    assert detection.exit == 0
