"""What the reference tool does not notice or gets wrong, on its small configs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from .projects import REFERENCE, copy_project, patchgen

CASES = json.loads((REFERENCE / "better.json").read_text())["cases"]
SEVERITY = {"error": "error", "note": "info"}


def matches(record: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether a record says what is expected; `kind` is the record's own, `level` its severity."""
    spelled = {"target": "name", "kind": "patch_kind", "level": "severity"}
    wanted = {spelled.get(k, k): v for k, v in expected.items()}
    wanted["severity"] = SEVERITY[wanted["severity"]]
    return all(record.get(k) == v for k, v in wanted.items())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["config"].rpartition(".")[2])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    before = set(root.rglob("*"))
    arguments = ["generate", case["config"], "-c", case.get("config_name", "config")]
    done = patchgen(*arguments, "--json", cwd=root)
    assert done.code == case["exit"]
    records = done.of("problem")
    for expected in case["findings"]:
        assert any(matches(r, expected) for r in records), expected
    errors = [r for r in records if r["severity"] == "error"]
    assert len(errors) == sum(f["level"] == "error" for f in case["findings"])
    if case["exit"]:
        assert set(root.rglob("*")) == before
    text = patchgen(*arguments, "--stdout", "--allow-findings", cwd=root).out
    for part in case.get("must_contain", ()):
        assert part in text
    for part in case.get("must_not_contain", ()):
        assert part not in text
    body = ast.parse(text).body
    if case.get("first_statement_is_docstring"):
        assert isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    top = {a.name for n in body if isinstance(n, ast.Import) for a in n.names}
    assert top & set(case.get("no_top_level_import", ())) == set()
