"""What is refused besides the reference cases, and what the config of a result says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import SourceNotFound, Unsupported, UsageProblem
from ntool.lib.experts import convert

from .moe_files import (
    LAYOUTS,
    Tensors,
    config_of,
    converted,
    laid_out,
    random_experts,
    refused,
    same,
    save,
)

G = "model.layers.0.mlp.experts"
PLAIN = random_experts(0, 3, 10, 4)


def config_after(source: Path, to: str) -> Any:
    plan = convert.plan(open_checkpoint(str(source)), convert.Wish(to))
    return json.loads(plan.config or b"null")


def test_options() -> None:
    for wish in (
        convert.Wish("flat"),
        convert.Wish("split", order="unknown"),
        convert.Wish("split", names="a"),
    ):
        with pytest.raises(UsageProblem, match="expected"):
            wish.check()


def test_nothing_to_convert(tmp_path: Path) -> None:
    source = save(tmp_path / "s", {"a.weight": ("F32", (1,), b"abcd")}, {})
    with pytest.raises(SourceNotFound, match="found none"):
        converted(source, "fused")


def test_a_package_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "p/decoder", laid_out(PLAIN, "split", G), None)
    (tmp_path / "p/package.json").write_text("{}")
    with pytest.raises(Unsupported, match="found package"):
        converted(tmp_path / "p", "fused")


def test_all_problems_of_all_groups(tmp_path: Path) -> None:
    """Those of opening, of detection and of every group, in one run."""
    made: Tensors = {}
    for i in range(3):
        made |= laid_out(PLAIN, "split", f"model.layers.{i}.mlp.experts")
    del made["model.layers.0.mlp.experts.1.up_proj.weight"]
    del made["model.layers.2.mlp.experts.2.gate_proj.weight"]
    source = save(tmp_path / "s", made, config_of(3, 10, 4))
    with pytest.raises(convert.Refused) as e:
        converted(source, "split")
    assert [p.code for p in e.value.problems] == ["missing-expert"] * 2
    assert "model.layers.0" in str(e.value) and "(and 1 more)" in str(e.value)
    (source / "other.safetensors").write_bytes(b"\5")
    assert refused(source, "fused") != ["missing-expert"]
    with pytest.raises(convert.Refused) as e:
        converted(source, "fused")
    assert e.value.exit_code == 3 and len(e.value.problems) > 2


def test_a_tensor_that_the_index_forgot(tmp_path: Path) -> None:
    source = save(tmp_path / "s", laid_out(PLAIN, "split", G), config_of(3, 10, 4), files=2)
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"][f"{G}.0.up_proj.weight"]
    path.write_text(json.dumps(index))
    assert refused(source, "fused") == ["not-in-index"]


@pytest.mark.parametrize("extra", ["0.gate_proj.input_scale", "2.up_proj.lora_A.weight"])
def test_parts_that_are_not_known(extra: str, tmp_path: Path) -> None:
    made = laid_out(PLAIN, "split", G)
    made[f"{G}.{extra}"] = "BF16", (1,), b"ab"
    made["model.layers.0.mlp.shared_experts.0.gate_proj.x"] = "BF16", (1,), b"cd"
    made[f"{G}.e_score_correction_bias"] = "BF16", (1,), b"ef"
    source = save(tmp_path / "s", made, config_of(3, 10, 4))
    assert refused(source, "fused") == ["unrecognized-layout"]
    same(converted(source, "split"), made)


def test_parts_of_banks_that_are_not_known(tmp_path: Path) -> None:
    made = laid_out(PLAIN, "fused", G)
    for extra in ("gate_up_proj_input_scale", "down_proj.lora_B.weight"):
        more = {**made, f"{G}.{extra}": ("BF16", (1,), b"ab")}
        source = save(tmp_path / extra, more, config_of(3, 10, 4))
        assert refused(source, "fused-transposed") == ["unrecognized-layout"]


def test_two_populations(tmp_path: Path) -> None:
    made: Tensors = {}
    for j, I in enumerate((4, 4, 6, 6)):  # noqa: E741
        for role, shape in (("gate", (I, 10)), ("up", (I, 10)), ("down", (10, I))):
            made[f"{G}.{j}.{role}_proj.weight"] = "BF16", shape, bytes(20 * I)
    config = {"hidden_size": 10, "moe_num_experts": [2, 2], "moe_intermediate_size": [4, 6]}
    source = save(tmp_path / "s", made, config)
    assert refused(source, "fused") == refused(source, "stacked") == ["two-populations"]
    same(converted(source, "split"), made)


def test_stacked_that_nothing_could_read_back(tmp_path: Path) -> None:
    """Three banks fit both orientations; without a hidden size in the config nothing decides."""
    square = random_experts(1, 3, 6, 6)
    for config in ({}, config_of(3, 6, 6)):
        source = save(tmp_path / str(len(config)), laid_out(square, "split", G), config)
        assert refused(source, "stacked") == ["ambiguous-orientation"]
        same(converted(source, "fused"), laid_out(square, "fused", G))
    source = save(tmp_path / "x", laid_out(PLAIN, "split", G), None)
    assert refused(source, "stacked") == ["ambiguous-orientation"]
    same(converted(source, "fused-transposed"), laid_out(PLAIN, "fused-transposed", G))


def test_names_that_are_taken(tmp_path: Path) -> None:
    made = laid_out(PLAIN, "stacked", "model.layers.0.moe")
    made |= laid_out(PLAIN, "fused", G)
    source = save(tmp_path / "s", made, config_of(3, 10, 4))
    assert refused(source, "fused") == ["name-taken"]
    assert refused(source, "split") == ["name-taken"]


def test_biases_of_matrices(tmp_path: Path) -> None:
    made = laid_out(PLAIN, "split", G)
    for j in range(3):
        for role, n in (("gate", 4), ("up", 4), ("down", 10)):
            made[f"{G}.{j}.{role}_proj.bias"] = "BF16", (n,), bytes(2 * n)
    source = save(tmp_path / "s", made, config_of(3, 10, 4))
    for to in ("fused", "fused-transposed", "stacked"):
        assert refused(source, to) == ["bias-split-unsupported"]
    same(converted(source, "split"), made)


def test_named_order_of_biased_banks(tmp_path: Path) -> None:
    """Rows of biases are put into the order of their weights."""
    rng = np.random.default_rng(0)
    bias = {r: rng.integers(0, 9, (3, n), np.uint16) for r, n in (("gate", 4), ("up", 4))}
    down = ("BF16", (3, 10), rng.bytes(60))
    mixed = np.stack([bias["gate"], bias["up"]], 2).reshape(3, 8)
    made = laid_out(PLAIN, "fused-transposed", G, order="interleaved")
    made |= {f"{G}.gate_up_proj_bias": ("BF16", (3, 8), mixed.tobytes()),
             f"{G}.down_proj_bias": down}  # fmt: skip
    source = save(tmp_path / "s", made, config_of(3, 10, 4))
    joined = np.concatenate([bias["gate"], bias["up"]], 1)
    for to in ("fused", "fused-transposed"):
        wanted = laid_out(PLAIN, to, G)
        wanted |= {f"{G}.gate_up_proj_bias": ("BF16", (3, 8), joined.tobytes()),
                   f"{G}.down_proj_bias": down}  # fmt: skip
        same(converted(source, to, order="interleaved"), wanted)
        if to == "fused-transposed":
            same(converted(source, to), made)
            same(converted(source, to, order="concatenated"), made)


def fp8(block: Any, **more: Any) -> tuple[Any, Any]:
    x = random_experts(2, 3, 16, 8, "F8_E4M3", block=block)
    return x, config_of(3, 16, 8, block, **more)


def test_no_block_size_in_the_config(tmp_path: Path) -> None:
    x, config = fp8((4, 4))
    del config["quantization_config"]["weight_block_size"]
    source = save(tmp_path / "s", laid_out(x, "split", G), config)
    for to in ("fused", "fused-transposed", "stacked"):
        assert refused(source, to) == ["scale-unaligned"]


def test_blocks_of_alternating_rows(tmp_path: Path) -> None:
    """A block of several rows is of gate and of up; a scale for each row is not."""
    for block, codes in (((4, 4), ["scale-unaligned"]), ((1, 4), None), ("row", None)):
        x, config = fp8(block)
        made = laid_out(x, "fused", G, order="interleaved")
        source = save(tmp_path / str(block), made, config)
        for to in ("fused", "stacked") if block != (1, 4) else ("split",):
            if codes:
                assert refused(source, to, order="interleaved") == codes
            else:
                same(converted(source, to, order="interleaved"), laid_out(x, to, G))


def test_scales_of_two_dtypes(tmp_path: Path) -> None:
    x, config = fp8((4, 4))
    made = laid_out(x, "split", G)
    made[f"{G}.1.up_proj.weight_scale_inv"] = "BF16", (2, 4), bytes(16)
    source = save(tmp_path / "s", made, config)
    assert refused(source, "fused") == ["dtype-mismatch"]


def test_sides_of_blocks_change_places(tmp_path: Path) -> None:
    """The config says it, where nothing else has such blocks."""
    x, config = fp8((4, 2), text_config={})
    source = save(tmp_path / "s", laid_out(x, "split", G), config)
    same(converted(source, "fused-transposed"), laid_out(x, "fused-transposed", G))
    new = config_after(source, "fused-transposed")
    assert new["quantization_config"]["weight_block_size"] == [2, 4]
    assert config_after(source, "fused") == config
    back = save(tmp_path / "t", laid_out(x, "fused-transposed", G), new)
    same(converted(back, "split"), laid_out(x, "split", G))
    assert config_after(back, "split") == config


def test_sides_of_blocks_that_others_have_too(tmp_path: Path) -> None:
    x, config = fp8((4, 2))
    made = laid_out(x, "split", G)
    attention: Tensors = {
        "model.q_proj.weight": ("F8_E4M3", (8, 8), bytes(64)),
        "model.q_proj.weight_scale_inv": ("F32", (2, 4), bytes(32)),
    }
    source = save(tmp_path / "s", {**made, **attention}, config)
    assert refused(source, "fused-transposed") == ["block-orientation"]
    two = {**config, "text_config": config}
    source = save(tmp_path / "t", made, two)
    assert refused(source, "fused-transposed") == ["block-orientation"]
    mixed = {**made, **laid_out(x, "stacked", "model.layers.1.mlp.experts")}
    source = save(tmp_path / "u", mixed, config)
    new = config_after(source, "fused-transposed")
    assert new["quantization_config"]["weight_block_size"] == [2, 4]


def test_scales_are_called_as_others_are(tmp_path: Path) -> None:
    x, config = fp8("matrix")
    made = laid_out(x, "fused", G)
    source = save(tmp_path / "s", made, config)
    assert converted(source, "split")[f"{G}.0.up_proj.weight_scale_inv"][1] == (1, 1)
    attention: Tensors = {
        "model.q_proj.weight": ("F8_E4M3", (8, 8), bytes(64)),
        "model.q_proj.weight_scale": ("F32", (), bytes(4)),
    }
    source = save(tmp_path / "t", {**made, **attention}, config)
    found = converted(source, "split")
    assert found[f"{G}.2.down_proj.weight_scale"][1] == ()
    names = converted(source, "split", names="w1-w3-w2")
    assert names[f"{G}.2.w2.weight_scale"] == found[f"{G}.2.down_proj.weight_scale"]


def test_one_scale_for_gate_and_up(tmp_path: Path) -> None:
    """Apart, each of them has it."""
    x, config = fp8("matrix")
    x.scales["up"] = x.scales["gate"]
    made = laid_out(x, "fused", G)
    shared = x.scales["gate"].tobytes()
    made[f"{G}.gate_up_proj_scale_inv"] = "F32", (3, 1), shared
    source = save(tmp_path / "s", made, config)
    same(converted(source, "split"), laid_out(x, "split", G))
    found = converted(source, "fused-transposed")
    assert found[f"{G}.gate_up_proj_scale_inv"] == ("F32", (3, 1, 1), shared)


def lists(*names: str, key: str = "modules_to_not_convert") -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "fp8", key: list(names)}}


def listed(tmp_path: Path, layout: str, to: str, group: str, *names: str, **more: Any) -> list[str]:
    made = laid_out(PLAIN, layout, group, **more)
    made["model.layers.0.moe.gate.weight"] = "F32", (1,), b"abcd"
    made["model.lm_head.weight"] = "F32", (1,), b"abcd"
    source = save(tmp_path / "s", made, {**config_of(3, 10, 4), **lists(*names)})
    found: list[str] = config_after(source, to)["quantization_config"]["modules_to_not_convert"]
    return found


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_names_of_modules_after_fusing(layout: str, tmp_path: Path) -> None:
    given = ("model.lm_head", f"{G}.0.gate_proj", f"{G}.0.up_proj", f"{G}.10.x", "mlp.gate")
    assert listed(tmp_path, "split", layout, G, *given) == [
        "model.lm_head", G, f"{G}.10.x", "mlp.gate",
    ]  # fmt: skip


def test_names_of_modules_that_cover_the_new_ones(tmp_path: Path) -> None:
    for i, given in enumerate(([G], ["model.layers.0.mlp"], ["model"], [f"{G}.gate_up_proj"])):
        found = listed(tmp_path / str(i), "fused", "fused-transposed", G, *given)
        assert found == given


def test_names_of_modules_after_splitting(tmp_path: Path) -> None:
    found = listed(tmp_path, "fused", "split", G, f"{G}.down_proj", "model.lm_head")
    assert found == [*(f"{G}.{j}.down_proj" for j in range(3)), "model.lm_head"]


def test_names_of_modules_of_another_container(tmp_path: Path) -> None:
    """`moe` still names the router; its experts are under `mlp` now."""
    found = listed(tmp_path, "stacked", "fused", "model.layers.0.moe", "model.layers.0.moe", "x")
    assert found == ["model.layers.0.moe", G, "x"]


def test_names_by_expressions_and_ends(tmp_path: Path) -> None:
    """They cannot be renamed: the groups that they may be about are named too."""
    for i, given in enumerate((["re:.*experts.*"], ["*.gate_proj"], ["gate_proj"])):
        assert listed(tmp_path / str(i), "split", "fused", G, *given) == [*given, G]
    kept = ["lm_head", "model.layers.0.mlp"]
    assert listed(tmp_path / "x", "split", "fused", G, *kept) == kept
    both = ["re:.*", "model.layers.0.mlp"]
    assert listed(tmp_path / "y", "split", "fused", G, *both) == both


def test_lists_in_other_places(tmp_path: Path) -> None:
    inner = {"hidden_size": 10, "num_experts": 3, **lists(f"{G}.0.up_proj", key="ignore")}
    config = {"text_config": inner, "x": 1}
    source = save(tmp_path / "s", laid_out(PLAIN, "split", G), config)
    new = config_after(source, "fused")
    assert new == {"text_config": {**inner, **lists(G, key="ignore")}, "x": 1}
