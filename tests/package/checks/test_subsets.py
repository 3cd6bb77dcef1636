"""Whatever export-component writes, verify-package accepts: every subset of the components."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from package_faults import edit_json, false_ids, findings

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.families import neo_chat
from ntool.lib.package import export

NAMES = neo_chat.COMPONENTS
SUBSETS = [s for n in range(1, len(NAMES) + 1) for s in combinations(NAMES, n)]
STRUCTURE = ("layout.*", "graph.*", "data.*", "weights.complete", "dtype.*", "flow.*")
CACHED = {"decoder", "image_gen_denoiser"}


@pytest.fixture(scope="module")
def everything() -> export.Plan:
    return export.plan(open_checkpoint("demo:shapes"))


def written(plan: export.Plan, names: tuple[str, ...], out: Path) -> Path:
    """The package of some components, as `export.plan` of their names would give it."""
    export.write(replace(plan, components=[c for c in plan.components if c.name in names]), out)
    return out


@pytest.mark.parametrize("names", SUBSETS, ids=",".join)
def test_structure(names: tuple[str, ...], everything: export.Plan, tmp_path: Path) -> None:
    package = written(everything, names, tmp_path / "pkg")
    found = findings(package, check=STRUCTURE, standard_only=True)
    assert [f for i, f in found if f.ok is not True and i != "data.hash"] == []
    assert not any(f.warning for _, f in found)
    manifest = json.loads((package / "package.json").read_text())
    assert bool(manifest["cache"]) == bool(CACHED & set(names))


@pytest.mark.parametrize("name", NAMES)
def test_one_component_runs(name: str, everything: export.Plan, tmp_path: Path) -> None:
    found = findings(written(everything, (name,), tmp_path / "pkg"), check=("run.*",))
    assert [(i, f.ok) for i, f in found] == [
        ("run.load", True),
        ("run.support", True),
        ("run.dynamic", True),
        ("run.finite", True),
        ("run.placement", None),
    ]
    assert found[-2][1].message == f"{name}: finite"


def test_as_planned_by_name(everything: export.Plan, tmp_path: Path) -> None:
    """`written` stands for an export of the names."""
    names = ("embedding", "image_gen_denoiser")
    a = written(everything, names, tmp_path / "a")
    b = tmp_path / "b"
    export.write(export.plan(open_checkpoint("demo:shapes"), names), b)
    for path in sorted(p for p in a.rglob("*") if p.is_file()):
        assert path.read_bytes() == (b / path.relative_to(a)).read_bytes(), path


def test_the_cache_of_a_denoiser_is_judged(everything: export.Plan, tmp_path: Path) -> None:
    """Without a decoder too: an entry that is missing, or of another shape."""
    package = written(everything, ("image_gen_denoiser",), tmp_path / "pkg")
    with edit_json(package / "package.json") as p:
        p["cache"][0]["shape"][1] += 1
    assert false_ids(findings(package, check=STRUCTURE)) == ["graph.names", "flow.ports"]
    with edit_json(package / "package.json") as p:
        del p["cache"][0]
    assert false_ids(findings(package, check=STRUCTURE)) == ["graph.names"]


def test_finite_says_what_ran(good_package: Path, everything: export.Plan, tmp_path: Path) -> None:
    ((_, f),) = findings(good_package, check=("run.finite",))
    assert f.message == "vision_encoder, prefill, two denoising steps: finite"
    package = written(everything, ("embedding", "decoder", "image_gen_denoiser"), tmp_path / "pkg")
    ((_, f),) = findings(package, check=("run.finite",))
    assert f.message == "image_gen_denoiser, prefill: finite"
