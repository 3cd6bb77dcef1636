"""Components of a package of FP8 weights: which tensors a graph holds, its ports, its bytes.

A component is a layer, the rest, or a table: names do not depend on the size of shards, and a
runtime loads a layer at a time. Codes and scales of a pair are always in one component, wherever
the checkpoint has them, because a graph reads data of its own folder alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.onnx_types import TYPES, type_name
from ..checkpoint.tensor import Tensor
from ..checkpoint.writer import DataFile, Entry, Placed, plan_files
from .forms import Form, Table

STORED = {t.dtype: number for number, t in TYPES.items() if not t.dtype.startswith("ONNX:")}
"""safetensors dtype -> ONNX element type."""
PORTS = frozenset((
    *("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8"),
    *("U64", "U32", "U16", "U8", "BOOL"),
))  # fmt: skip
"""dtypes that a port of a package may have."""
VALUES, ROWS, IDS = ".dequantized", ".rows", ".row_ids"
"""Ends of names of ports: values of an FP8 tensor, rows gathered from a table, their numbers."""
OTHER = "other"
MAX_NAME = 100
_LAYER = re.compile(r"(?:.*?\.)?(?:layers|blocks|h)\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Matrix:
    """An FP8 tensor that is no shard of a table, with its scale if it has one."""

    tensor: Tensor
    scale: Tensor | None
    form: Form


@dataclass
class Component:
    """One graph with the tensors it holds.

    Attributes:
        matrices, tables: FP8 tensors with their scales.
        plain: tensors that keep type and bytes; they are outputs under their own names.
        entries: what is written, by the name of the parameter.
    """

    name: str
    matrices: list[Matrix] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plain: list[Tensor] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    placed: dict[str, Placed] = field(default_factory=dict)

    def lay_out(self, shard_nbytes: int) -> None:
        """Place every entry in a data file of the component's folder."""
        files, self.placed = plan_files(list(self.entries.values()), shard_nbytes)
        self.files = [DataFile(f"{self.name}/{f.name}", f.header, f.entries) for f in files]

    def graph_file(self) -> str:
        """Path of the graph in the package."""
        return f"{self.name}/model.onnx"

    def inputs(self) -> list[dict[str, Any]]:
        """Ports as package.json has them: of each table the numbers of rows."""
        return [_port(t.name + IDS, "int64", [f"{t.name}.count"]) for t in self.tables]

    def outputs(self, reading: str) -> list[dict[str, Any]]:
        """Ports as package.json has them: values of FP8 tensors, rows, plain tensors."""
        value = "bfloat16" if reading == "bf16" else "float32"
        return [
            *(_port(m.tensor.name + VALUES, value, m.tensor.shape) for m in self.matrices),
            *(_port(t.name + ROWS, value, [f"{t.name}.count", t.width]) for t in self.tables),
            *(_port(t.name, type_name(STORED[t.dtype]), t.shape) for t in self.plain),
        ]

    def float_types(self) -> list[str]:
        """Floating-point types of the stored tensors, as package.json spells them; the one with
        most bytes first."""
        nbytes: dict[str, int] = {}
        for e in self.entries.values():
            name = type_name(STORED[e.dtype])
            if "float" in name or name == "double":
                nbytes[name] = nbytes.get(name, 0) + e.nbytes
        return sorted(nbytes, key=lambda n: (-nbytes[n], n))

    def runs_on_cpu(self, lowering: str, reading: str) -> str | None:
        """None, or why ONNX Runtime has no CPU kernel for it."""
        if reading == "bf16" and any(m.scale for m in self.matrices) | bool(self.tables):
            return "DequantizeLinear of FP8 codes with a BF16 scale has no CPU kernel"
        if lowering == "tiles" and any(m.form.ragged(m.tensor.shape) for m in self.matrices):
            return (
                "Pad of FP8 codes has no CPU kernel; partial blocks need it in the tiles lowering"
            )
        return None

    def graph_bytes(self, lowering: str, reading: str, metadata: dict[str, str]) -> bytes:
        """The model.onnx: opset 21, standard operators, external data in the component's files.

        Raises:
            GraphError: a bug in the lowering.
        """
        from ..graph import fp8
        from ..graph.builder import INT64, Graph, Value
        from ..graph.external import point_at

        entries = self.entries
        g = Graph(self.name, _Stored(), opset=fp8.OPSET)

        def parameter(t: Tensor) -> Value:
            return g.parameter(t.name, t.shape, STORED[entries[t.name].dtype])

        for m in self.matrices:
            scale = parameter(m.scale) if m.scale else None
            name = m.tensor.name
            how = {"lowering": lowering, "reading": reading, "name": name + VALUES}
            scope = g.at(name)
            g.outputs.append(fp8.dequantized(scope, parameter(m.tensor), scale, m.form, **how))
        for table in self.tables:
            scope = g.at(table.name)
            ids = g.input(table.name + IDS, INT64, [f"{table.name}.count"])
            one = fp8.scale_values(scope, parameter(table.scale), reading)
            shards = [parameter(t) for t in table.shards]
            g.outputs.append(fp8.table_rows(scope, ids, shards, one, table.name + ROWS))
        g.outputs += [parameter(t) for t in self.plain]
        model = g.model(metadata)
        vars(g).clear()  # it refers to itself: thousands of nodes are freed now, not some day
        point_at(model, self.placed)
        return model.SerializeToString(deterministic=True)


class _Stored:
    """A WeightSource of tensors that were bound before; places are filled in at the end."""

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        return "model.safetensors"


def _port(name: str, dtype: str, shape: Iterable[Any]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


class Namer:
    """Names of components from scopes of tensors, each once, as package.json allows them.

    Args:
        taken: names of files that stand in the same folder.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._by_scope: dict[str, str] = {}
        self._taken = {n.lower() for n in taken}  # file systems that see no case

    def of(self, scope: str) -> str:
        """The name of a scope, always the same."""
        found = self._by_scope.get(scope)
        if found is None:
            found = re.sub(r"[^A-Za-z0-9]+", "_", scope.removesuffix(".weight")).strip("_")
            if not found[:1].isalpha() or not found.isascii():
                found = f"part_{found}".rstrip("_")
            digest = hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            if len(found) > MAX_NAME or found.lower() in self._taken:
                found = f"{found[:MAX_NAME]}_{digest}"
            self._taken.add(found.lower())
            self._by_scope[scope] = found
        return found


def scope_of(name: str) -> str:
    """The layer that a tensor belongs to, by its name, or OTHER."""
    match = _LAYER.match(name)
    return match[0] if match else OTHER
