"""The cases of the reference: detection says exactly what is written there."""

from __future__ import annotations

import json

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.experts.detect import Detection, detect, detect_checkpoint

from ..conftest import DATA

CASES = sorted(p.parent for p in (DATA / "expert-layouts").glob("*/expected.json"))


def said(detection: Detection) -> object:
    """As the reference writes it; JSON has lists where Python has tuples."""
    fields = {
        "exit": detection.exit,
        "groups": list(detection.records()),
        "problems": detection.problems,
        "mixed": detection.mixed,
    }
    return json.loads(json.dumps(fields))


def test_all_cases_are_here() -> None:
    assert len(CASES) == 31


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case) -> None:
    expected = json.loads((case / "expected.json").read_text())
    detection = detect_checkpoint(open_checkpoint(str(case)))
    assert said(detection) == expected["detect"]
    assert len(detection.as_problems()) == len(detection.problems)
    for problem in detection.as_problems():
        assert problem.severity == "error" and not problem.malformed
        assert "\n" not in problem.message and "found" in problem.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_neither_family_nor_order_matter(case) -> None:
    """Without model type and architectures, and with tensors in another order, all is the same."""
    checkpoint = open_checkpoint(str(case))
    expected = said(detect(checkpoint.tensors.values(), checkpoint.config))
    config = {k: v for k, v in checkpoint.config.items() if k != "architectures"}
    config |= {"model_type": "something_else"}
    backwards = list(checkpoint.tensors.values())[::-1]
    assert said(detect(backwards, config)) == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prefixes_do_not_matter(case) -> None:
    """A prefix goes into the names of groups and tensors and changes nothing else."""
    checkpoint = open_checkpoint(str(case))
    tensors = list(checkpoint.tensors.values())
    plain = json.dumps(said(detect(tensors, checkpoint.config)))
    for prefix in ("model.language_model.", "backbone.", "a.b-c_d.0.", "experts.", "moe."):
        moved = [t._replace(name=prefix + t.name) for t in tensors]
        got = json.loads(json.dumps(said(detect(moved, checkpoint.config))))
        text = json.dumps(got).replace(f'"{prefix}', '"')
        assert text == plain, prefix
