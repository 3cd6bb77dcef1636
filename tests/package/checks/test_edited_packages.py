"""Edits of the JSON files of a good package and the ids that they are caught by, and forms in which
a good package comes.

Sabotage of other files is in test_sabotage.py.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from package_edits import EDITS, put
from package_faults import (
    AGAINST,
    SOME,
    false_ids,
    findings,
    replace,
)

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import export, sums
from ntool.lib.package.checks.parse import Reading, read_model


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """Graphs of equal bytes are parsed once: the edits leave them alone."""
    known: dict[tuple[str, bytes], Reading] = {}

    def read(path: str, file: str) -> Reading:
        key = (file, Path(path).read_bytes())
        if key not in known:
            known[key] = read_model(path, file)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ntool.lib.package.checks.parse.read_model", read)
        yield


EDITED = (
    *("layout.*", "graph.parse", "graph.names", "data.path", "data.bounds", "weights.complete"),
    *("dtype.policy", "flow.*"),
)
"""Checks that read the JSON files; the others are about graphs and bytes alone."""


@pytest.mark.parametrize(
    ("file", "path", "value", "id"), EDITS, ids=[f"{e[0]}:{e[1]}={e[2]!r:.20}" for e in EDITS]
)
def test_an_edit_is_caught_by(
    file: str, path: str, value: Any, id: str, linkable: Path, tmp_path: Path, read_once: None
) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(linkable, root, copy_function=os.link)
    content = json.loads((root / file).read_text())
    put(content, path, value)
    replace(root / file, json.dumps(content).encode())
    found = findings(root, check=EDITED)
    assert false_ids(found) == [id], [f for _, f in found if f.ok is False]


# -- forms in which a good package comes -----------------------------------------------------------


def as_snapshot(package: Path, cache: Path) -> Path:
    """The package as the Hub's cache holds it: links into the blobs of its repository."""
    blobs = cache / "models--org--m" / "blobs"
    snapshot = cache / "models--org--m" / "snapshots" / ("41cc25fe" * 5)
    blobs.mkdir(parents=True)
    for path in sorted(p for p in package.rglob("*") if p.is_file()):
        link = snapshot / path.relative_to(package)
        blob = blobs / sums.digest(str(package), path.relative_to(package).as_posix())
        link.parent.mkdir(parents=True, exist_ok=True)
        if not blob.exists():
            os.link(path, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


@pytest.mark.parametrize("family", AGAINST)
def test_a_snapshot_of_the_hub_passes(family: str, good: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(good[family], root)
    sums.write(str(root))
    found = findings(as_snapshot(root, tmp_path / "hub"), against=AGAINST[family])
    assert false_ids(found) == []
    assert {i for i, f in found if f.ok is None} <= {
        "graph.standard",
        "run.placement",
        "golden.values",
    }
    assert {f.reason for _, f in found if f.warning} <= {"symlink", "hard-link"}


def test_a_snapshot_that_leads_elsewhere_does_not(good: dict[str, Path], tmp_path: Path) -> None:
    root = as_snapshot(good["qwen"], tmp_path / "hub")
    other = tmp_path / "hub" / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    data = root / "decoder" / "model.safetensors"
    shutil.copy(data, other / "x")
    data.unlink()
    data.symlink_to(os.path.relpath(other / "x", data.parent))
    assert false_ids(findings(root, check=("layout.*", "data.*"))) == [
        "layout.files",
        "data.path",
    ]


@pytest.mark.parametrize("family", AGAINST)
def test_hard_links_only_warn(family: str, good: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(good[family], root, copy_function=os.link)
    found = findings(root, check=("layout.*", "graph.*", "data.*"))
    assert false_ids(found) == []
    warned = [f for _, f in found if f.warning]
    assert warned and {f.reason for f in warned} == {"hard-link"}


@pytest.mark.parametrize(("plain", "others"), [("f16", {}), ("bf16", {"decoder": "f32"})])
def test_mixed_types_pass(plain: str, others: dict[str, str], tmp_path: Path) -> None:
    """Components of neo_chat in types of their own; those of pictures stay float32."""
    dtypes = dict.fromkeys(("vision_encoder", "embedding", "decoder"), plain) | others
    plan = export.plan(open_checkpoint("demo:shapes"), dtypes=dtypes)
    export.write(plan, tmp_path / "pkg")
    found = findings(tmp_path / "pkg", check=SOME, against="demo:shapes")
    assert false_ids(found) == []
    assert not any(f.warning for _, f in found)


# -- edits of the manifest of qwen4_exp ------------------------------------------------------------

QWEN_EDITS: tuple[tuple[str, object], ...] = (
    ("workflow/inputs/token_ids", ["decoder.attention_mask"]),
    ("workflow/inputs/token_ids", []),
    ("workflow/inputs/other", []),
    ("workflow/tasks", {}),
    ("workflow/tasks/chat/once", []),
    ("workflow/tasks/chat/prefixes", {"cond": "zz"}),
    ("workflow/tasks/chat/decode/each_token", []),
    ("workflow/tasks/chat/decode/stop_token_ids", []),
    ("workflow/tasks/chat/decode/stop_token_ids", [10**6]),
    ("workflow/positions/image_token_id", 5),
    ("workflow/positions/video", True),
    ("components/decoder/unsupported_token_ids", [9]),
    ("cache/0/initial", 5),
    ("cache/1/initial", 1),
)


@pytest.mark.parametrize(("place", "value"), QWEN_EDITS)
def test_a_workflow_that_is_not_the_family_s(
    place: str, value: object, good: dict[str, Path], tmp_path: Path
) -> None:
    """What a run would do otherwise, or not at all, is told by the workflow or by the graph."""
    root = tmp_path / "pkg"
    shutil.copytree(good["qwen"], root)
    manifest = json.loads((root / "package.json").read_text())
    at: Any = manifest
    *path, last = place.split("/")
    for key in path:
        at = at[int(key)] if isinstance(at, list) else at[key]
    assert (at[last] if not isinstance(at, list) and last in at else None) != value
    at[last] = value
    (root / "package.json").write_text(json.dumps(manifest))
    false = {i for i, f in findings(root) if f.ok is False}
    assert false and false <= {"flow.ports", "flow.tokens", "graph.names", "layout.schema"}


def test_the_context_begins_as_the_graph_says(good: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    shutil.copytree(good["qwen"], root)
    manifest = json.loads((root / "package.json").read_text())
    (entry, *_) = [e for e in manifest["cache"] if e["role"] == "ple_context"]
    entry["initial"] += 1
    (root / "package.json").write_text(json.dumps(manifest))
    assert [i for i, f in findings(root) if f.ok is False] == ["graph.names"]
