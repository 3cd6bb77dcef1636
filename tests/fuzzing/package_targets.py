"""Files of a package: any bytes give a verdict, as records that can be printed."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from onnx import ModelProto

from ntool.lib import demo
from ntool.lib.checkpoint.onnx_walk import walk
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.strict_json import load_object
from ntool.lib.errors import InputError, NtoolError
from ntool.lib.families.neo_chat import prefix_file
from ntool.lib.package import export, layout, quick_schema, schema, sums
from ntool.lib.package.checks.parse import Reading
from ntool.lib.package.checks.subject import Options, Subject
from ntool.lib.package.package import Package
from ntool.lib.package.verify import record, verify
from ntool.lib.records import dumps

DATA = Path(__file__).parents[1] / "data"
CORPUS = DATA / "fuzz"
OF_MANIFEST = ("layout.schema", "graph.names", "dtype.policy", "flow.ports", "flow.tokens")
_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-")
ROOT = Path(_FOLDER.name)
PREFIX_PACKAGE: dict[str, Any] = {
    "cache": [
        {"input": f"past.0.{role}", "dtype": "float32", "shape": ["batch", 1, "past_sequence", 2]}
        for role in ("key", "value")
    ]
}
DIGEST = "ab" * 32


@cache
def _models() -> dict[str, ModelProto]:
    """Graphs of both families by their names in the corpus; the tokenizer is put beside them."""
    (ROOT / layout.TOKENIZER).mkdir(exist_ok=True)
    for name in layout.TOKENIZER_FILES:
        shutil.copy(Path(demo.path("shapes")) / name, ROOT / layout.TOKENIZER)
    sources = (str(demo.path("shapes")), str(DATA / "qwen4-exp" / "text"))
    plans = [export.plan(open_checkpoint(s)) for s in sources]
    found = {f"qwen4_exp/{c.name}": c.graph.model({}) for c in plans[1].components}
    return found | {f"neo_chat/{c.name}": c.graph.model({}) for c in plans[0].components}


def subject_of(raw: bytes) -> Subject:
    """A package without files: its package.json is `raw`, its graphs are those of its family.

    Raises:
        InputError: no JSON object.
    """
    subject = Subject.__new__(Subject)
    subject.options, subject.root, subject.is_folder = Options(), str(ROOT), True
    subject.raw_manifest = raw
    subject.manifest = load_object(raw, layout.MANIFEST)
    subject.parts = subject._components()
    for part in subject.parts:
        model = _models().get(f"{subject.family}/{part.name}")
        if model is not None:
            part.path = "/nowhere/model.onnx"
            part.__dict__["reading"] = Reading([], model, walk(model))
    return subject


def _told(found: Any) -> bool:
    """Findings are records of one line; whether none of them is a fault."""
    rows = list(found)
    for check, finding in rows:
        line = dumps({"kind": "check", **record(check, finding)})
        assert "\n" not in line and len(finding.message) < 100_000
    return all(f.ok is not False for _, f in rows)


def manifest(raw: bytes) -> None:
    try:
        subject = subject_of(raw)
    except InputError as e:
        assert "\n" not in e.message
        return
    assert subject.manifest is not None
    sound = _told(verify(subject, OF_MANIFEST))
    whole = schema.schema()
    try:
        quick = quick_schema.accepts(subject.manifest, whole, whole["$defs"])
    except quick_schema.Unknown:
        quick = False
    assert not quick or not schema.in_words(subject.manifest)
    assert not sound or quick
    try:
        schema.require(subject.manifest, layout.MANIFEST)
    except InputError as e:
        assert "\n" not in e.message and not sound


def weight_report(raw: bytes) -> None:
    (ROOT / layout.REPORT).write_bytes(raw)
    name = "neo_chat" if len(raw) % 2 else "qwen4_exp"
    _told(verify(subject_of(_manifest(name)), ("weights.complete",)))


@cache
def _manifest(name: str) -> bytes:
    return (CORPUS / "manifest" / f"{name}.json").read_bytes()


def prefix(raw: bytes) -> None:
    path = ROOT / "prefix.safetensors"
    path.write_bytes(raw)
    try:
        ids, positions, state, words = prefix_file.read(
            path, Package(ROOT, PREFIX_PACKAGE, DIGEST), 7, 16
        )
    except NtoolError as e:
        assert "\n" not in e.message
        return
    S = ids.shape[1]
    assert positions.shape == (3, S) and ids.min() >= 0 and ids.max() < 16
    assert {k: v.shape for k, v in state.items()} == {
        e["input"]: (1, 1, S, 2) for e in PREFIX_PACKAGE["cache"]
    }
    json.dumps(words)


def checksums(raw: bytes) -> None:
    (ROOT / sums.NAME).write_bytes(raw)
    try:
        listed = sums.read(str(ROOT / sums.NAME))
    except NtoolError as e:
        assert "\n" not in e.message
        return
    assert listed and all(len(v) == 64 and not k.startswith("/") for k, v in listed.items())


TARGETS = {
    "manifest": manifest,
    "weight-report": weight_report,
    "prefix": prefix,
    "sums": checksums,
}


def seeds(target: str) -> list[bytes]:
    """The corpus of a target."""
    return [p.read_bytes() for p in sorted((CORPUS / target).iterdir())]
