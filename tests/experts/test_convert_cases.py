"""The reference cases: every digest, every refusal, in files that are written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import safetensors

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.conversion.run import Options, merge, run
from ntool.lib.conversion.verify import differences
from ntool.lib.experts import convert
from ntool.lib.experts.detect import detect_checkpoint

from ..conftest import DATA
from .moe_files import (
    LAYOUTS,
    Tensors,
    config_of,
    converted,
    laid_out,
    planned,
    random_experts,
    same,
    save,
    tensors_of,
)

CASES = sorted(p.parent for p in (DATA / "expert-layouts").glob("*/expected.json"))
EXPECTED = {case: json.loads((case / "expected.json").read_text()) for case in CASES}
PAIRS = [(c, to, e) for c in CASES for to, e in EXPECTED[c]["convert"].items()]
ALLOWED = [p for p in PAIRS if p[2]["ok"]]
REFUSED = [p for p in PAIRS if not p[2]["ok"]]
GOOD = [c for c in CASES if EXPECTED[c]["detect"]["exit"] == 0]


def names(pairs: list) -> list[str]:
    return [f"{c.name}-{to}" for c, to, _ in pairs]


def test_how_many() -> None:
    assert (len(CASES), len(ALLOWED), len(REFUSED), len(GOOD)) == (31, 44, 49, 16)


def planned_in(case: Path, to: str, **wish: object):
    return convert.plan(open_checkpoint(str(case)), convert.Wish(to, **wish))  # type: ignore[arg-type]


@pytest.mark.parametrize("case, to, expected", ALLOWED, ids=names(ALLOWED))
def test_allowed(case: Path, to: str, expected: dict, tmp_path: Path) -> None:
    plan, out = planned_in(case, to), tmp_path / "out"
    with plan.files:
        run(plan, out, Options())
        assert [*differences(plan, out, plan.shards)] == []
    result = open_checkpoint(str(out))
    assert result.problems == []
    found = tensors_of(result)
    digests = {
        name: {"dtype": dtype, "shape": list(shape), "sha256": hashlib.sha256(raw).hexdigest()}
        for name, (dtype, shape, raw) in found.items()
    }
    assert {n: digests[n] for n in expected["tensors"]} == expected["tensors"]
    source = tensors_of(open_checkpoint(str(case)))
    others = found.keys() - expected["tensors"].keys()
    assert len(others) == expected["other_tensors_unchanged"]
    same({n: found[n] for n in others}, {n: source[n] for n in others})

    detection = detect_checkpoint(result)
    assert detection.problems == []
    kinds = {(g.layout, g.orientation) for g in detection.groups}
    orientation = {"split": None, "fused": "direct", "fused-transposed": "transposed"}[to]
    assert kinds == {(to.removesuffix("-transposed"), orientation)}
    assert len(detection.groups) == len(EXPECTED[case]["detect"]["groups"])
    by_official_library(out, found)
    report = json.loads((out / "weight-loading-report.json").read_text())
    assert {row["name"] for row in report["tensors"]} == source.keys()
    assert sum(report["counts"].values()) == len(source)
    assert {t for row in report["tensors"] for t in row["targets"]} == found.keys()
    assert (out / "config.json").read_bytes() == (case / "config.json").read_bytes()


def by_official_library(out: Path, found: Tensors) -> None:
    read: dict[str, tuple[list[int], bytes]] = {}
    for file in sorted(out.glob("*.safetensors")):
        for name, value in safetensors.deserialize(file.read_bytes()):
            read[name] = value["shape"], bytes(value["data"])
    assert read == {n: (list(shape), raw) for n, (_, shape, raw) in found.items()}


@pytest.mark.parametrize("case, to, expected", REFUSED, ids=names(REFUSED))
def test_refused(case: Path, to: str, expected: dict) -> None:
    with pytest.raises(convert.Refused) as refused:
        planned_in(case, to)
    codes = sorted({p.code for p in refused.value.problems if p.severity == "error"})
    assert codes == expected["codes"]
    assert refused.value.exit_code == 1


def test_two_orders_of_a_bias() -> None:
    """Named, the order of gate and up is one more reason gone; biases are another."""
    case = DATA / "expert-layouts/fused-bias-interleaved-equal-dims"
    for to in ("split", "stacked"):
        for order in convert.ORDERS:
            with pytest.raises(convert.Refused, match="no agreed names"):
                planned_in(case, to, order=order)


@pytest.mark.parametrize("case", GOOD, ids=lambda c: c.name)
def test_round_trips(case: Path, tmp_path: Path) -> None:
    """From each layout over each other one and back: names, dtypes, shapes and bytes."""
    config = json.loads((case / "config.json").read_text())
    forms: dict[str, Tensors] = {}
    for to in LAYOUTS:
        try:
            plan = planned_in(case, to)
        except convert.Refused as e:
            assert not EXPECTED[case]["convert"].get(to, {}).get("ok"), e
            continue
        forms[to] = planned(plan)
        assert json.loads(plan.config or b"") == config
    assert len(forms) == POSSIBLE.get(case.name, 4)
    wish = {"names": "w1-w3-w2"} if case.name in ("split-w1-w3-w2", "fp4-packed-split") else {}
    for to, tensors in forms.items():
        folder = save(tmp_path / to, tensors, config, files=2)
        for over in forms:
            wanted = forms[over]
            if case.name == "fp4-packed-split" and over == "split":
                # nothing in the checkpoint tells what the scales of matrices are called
                wanted = {n.replace(".scale", ".weight_scale_inv"): t for n, t in wanted.items()}
                wanted = wanted if to != "split" else forms[over]
            same(converted(folder, over, **wish), wanted)


POSSIBLE = {
    "fused-bias-interleaved-equal-dims": 2,  # biases have no agreed names in others
    "fp4-packed-split": 3,  # packed values are not transposed
    "fp8-split-aligned": 3,  # H = I: stacked, nothing tells one orientation from the other
    "fp8-scale-unaligned": 2,  # blocks would span gate and up
}


@pytest.mark.parametrize("to", ["fused", "fused-transposed", "split"])
def test_parts_make_the_whole(to: str, tmp_path: Path) -> None:
    case = DATA / "expert-layouts/fp8-split-aligned"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(planned_in(case, to, shard_nbytes=500), whole, Options(jobs=2))
    for i in (3, 1, 2):
        run(planned_in(case, to, shard_nbytes=500), parts, Options(part=(i, 3)))
    merge(parts, force=False, kinds=("experts",))
    files = {f.name: f.read_bytes() for f in whole.iterdir()}
    assert len(files) > 5
    assert {f.name: f.read_bytes() for f in parts.iterdir()} == files
    index = json.loads(files["model.safetensors.index.json"])
    result = open_checkpoint(str(whole))
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in result.tensors.values())
    assert index["weight_map"] == {n: t.file for n, t in result.tensors.items()}
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_order_and_alignment(tmp_path: Path) -> None:
    """Others first, then layers by number; what has an odd size comes last."""
    made: Tensors = {"odd": ("BF16", (3,), bytes(6)), "z.weight": ("BF16", (32,), bytes(64))}
    for layer in (10, 2):
        x = random_experts(layer, 2, 64, 32)
        made |= laid_out(x, "split", f"model.layers.{layer}.mlp.experts")
    source = save(tmp_path / "s", made, config_of(2, 64, 32))
    plan, out = planned_in(source, "fused"), tmp_path / "out"
    with plan.files:
        run(plan, out, Options())
    tensors = open_checkpoint(str(out)).tensors.values()
    assert [t.name for t in tensors] == [
        "z.weight",
        *(f"model.layers.2.mlp.experts.{bank}_proj" for bank in ("gate_up", "down")),
        *(f"model.layers.10.mlp.experts.{bank}_proj" for bank in ("gate_up", "down")),
        "odd",
    ]  # fmt: skip
    assert all(t.offset % 64 == 0 for t in tensors)


def test_damage_is_noticed(tmp_path: Path) -> None:
    """--verify looks at turned tensors and at copied ones."""
    case = DATA / "expert-layouts/split-gate-up-down"
    for to in ("fused", "fused-transposed"):
        plan, out = planned_in(case, to), tmp_path / to
        with plan.files:
            run(plan, out, Options())
            (shard,) = plan.shards
            raw = bytearray((out / shard.name).read_bytes())
            raw[-1] ^= 1
            (out / shard.name).write_bytes(raw)
            (problem,) = differences(plan, out, plan.shards)
        assert problem.name == shard.entries[-1].name
