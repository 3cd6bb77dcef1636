"""Each problem of what is missing, there twice or there in another number: one thing of a whole
checkpoint is damaged, and that code is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.experts.detect import detect_checkpoint
from ntool.lib.experts.messages import message

from ..checkpoint.header_files import index, shard
from .making import (
    GROUP,
    OTHER,
    SIZES,
    Sizes,
    codes,
    flat,
    found,
    fused,
    one,
    split,
    stacked,
    tensors,
    without,
)


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
