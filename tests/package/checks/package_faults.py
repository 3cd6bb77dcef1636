"""Tools to damage a copy of a package: its JSON, its graphs, its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open

from ntool.lib.package import schema
from ntool.lib.package.checks.subject import Finding, Options, Subject
from ntool.lib.package.verify import record, select, verify
from ntool.lib.records import dumps

Damage = Callable[[Path], None]


def findings(
    path: Path, *, check: tuple[str, ...] = (), **options: Any
) -> list[tuple[str, Finding]]:
    """All findings about a package, with ids; their records fit the schema of `check` records."""
    found = list(verify(Subject(str(path), Options(**options)), select(check)))
    for i, finding in found:
        fits_schema({"kind": "check", **record(i, finding)})
    return found


CHECK_RECORD = schema.check_record()
_VALID = Draft202012Validator(CHECK_RECORD)
_SEEN: set[str] = set()


def fits_schema(row: dict[str, Any]) -> None:
    """Fail unless a record is what its schema says and has no field that the schema has not."""
    line = dumps(row)
    if line not in _SEEN:  # most findings of two packages are the same
        _VALID.validate(json.loads(line))
        assert row.keys() <= CHECK_RECORD["properties"].keys(), line
        _SEEN.add(line)


def false_ids(found: list[tuple[str, Finding]]) -> list[str]:
    """Ids with at least one finding that does not hold, in order."""
    return list(dict.fromkeys(i for i, f in found if f.ok is False))


@contextmanager
def edit_json(path: Path) -> Iterator[Any]:
    """The content of a JSON file, written back after changes."""
    value = json.loads(path.read_text())
    yield value
    path.write_text(json.dumps(value))


@contextmanager
def edit_graph(root: Path, component: str) -> Iterator[onnx.ModelProto]:
    """A component's model, written back after changes."""
    path = root / component / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    yield model
    path.write_bytes(model.SerializeToString())


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    """An initializer by name."""
    return next(t for t in model.graph.initializer if t.name == name)


def set_external(tensor: onnx.TensorProto, **values: str) -> None:
    """Replace values of external_data."""
    for entry in tensor.external_data:
        if entry.key in values:
            entry.value = values[entry.key]


def stated(name: str, array: Any) -> onnx.TensorProto:
    """An initializer inside the graph that states its origin."""
    tensor = numpy_helper.from_array(np.asarray(array), name)
    entry = tensor.metadata_props.add()
    entry.key, entry.value = "ntool.origin", "test"
    return tensor


def insert(model: onnx.ModelProto, value: str, *nodes: tuple[str, dict[str, Any]]) -> None:
    """Put a chain of one-input nodes in front of every node that reads `value`.

    The name of the last one's output is `patched`.
    """
    graph = model.graph
    first = next(i for i, n in enumerate(graph.node) if value in n.input)
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == value:
                node.input[i] = "patched"
    chain, last = [], value
    for i, (op, attributes) in enumerate(nodes):
        out = "patched" if i == len(nodes) - 1 else f"patched.{i}"
        inputs = [last, last] if op == "Add" else [last]
        chain.append(helper.make_node(op, inputs, [out], f"patch {op} {i}", **attributes))
        last = out
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*rest[:first], *chain, *rest[first:]])


def poke(root: Path, component: str, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Change the numbers of a stored weight (float32) in place."""
    path = root / component / "model.safetensors"
    with safe_open(path, "np") as f:
        array = f.get_tensor(name)
    header = json.loads(path.read_bytes()[8:][: int.from_bytes(path.read_bytes()[:8], "little")])
    at = 8 + int.from_bytes(path.read_bytes()[:8], "little") + header[name]["data_offsets"][0]
    array = array.copy()
    change(array)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(array.tobytes())


FLOAT, BFLOAT16, FLOAT16 = TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.FLOAT16
TEXT = Path(__file__).parents[2] / "data" / "qwen4-exp" / "text"
AGAINST = {"neo": "demo:shapes", "qwen": str(TEXT)}
"""The checkpoint that the good package of each family was made from."""
SOME = ("layout.*", "graph.*", "data.*", "weights.*", "dtype.*", "flow.*")
"""Checks that run no graph."""


def replace(path: Path, raw: bytes) -> None:
    """Give a file other bytes; other names of the old ones keep them."""
    path.unlink(missing_ok=True)
    path.write_bytes(raw)
