"""Checkpoint to package: plan everything from headers, then stream the weights and write the
folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx import TensorProto

from ..checkpoint.folder import Readable
from ..checkpoint.hidden_folder import remove_left
from ..checkpoint.kept_open import kept_open
from ..checkpoint.tensor import Checkpoint, Problem
from ..checkpoint.writer import (
    DataFile,
    Entry,
    Placed,
    check_output,
    check_space,
    new_folder,
    plan_files,
    write_bytes,
    write_file,
)
from ..conversion.open_files import OpenFiles
from ..errors import SourceNotFound, Unsupported, UsageProblem
from ..families import find, gguf
from ..graph.builder import IR_VERSION, OPSET, Graph
from ..graph.external import point_at
from ..graph.standard import foreign_nodes
from ..numeric.convert import Band, Tally, convert, narrows
from ..progress import step, tracked
from ..suggestions import did_you_mean, nearest
from . import in_place, layout, linked, manifest
from .beside import as_json, assets, special_tokens
from .bindings import Binding, Bindings
from .model import READINGS, Model, Wishes, open_model

DTYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""Element types that components can be exported as."""
OTHER_NAMES = {
    "fp32": "f32",
    "float32": "f32",
    "float": "f32",
    "fp16": "f16",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
}
"""What libraries of tensors call them."""
PROVIDERS = ("default", "cpu", "cuda", "onnx-standard")
"""Execution providers that a package can be meant for. Graphs for `default` and `onnx-standard` use
standard operators alone; whether others do is the family's business."""


@dataclass(frozen=True)
class Limit:
    """Largest data file, bytes, and the option that says it."""

    nbytes: int
    option: str = "--shard-size"


@dataclass
class Component:
    """One component, ready to be written: its graph, where its bytes come from and where they
    go.

    Attributes:
        form: how its bytes get there: `linked.COPY`, or by a link to the checkpoint's files.
        files: data files that are written. shards: those that are linked instead.
        placed: where each parameter stands in them.
    """

    name: str
    graph: Graph
    bindings: dict[str, Binding]
    dtype: str
    forced: bool = False
    tallies: dict[str, Tally] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    placed: dict[str, Placed] = field(default_factory=dict)
    form: str = linked.COPY
    shards: list[linked.Shard] = field(default_factory=list)

    @property
    def is_linked(self) -> bool:
        """Whether its bytes stay in the checkpoint's files."""
        return self.form != linked.COPY

    @property
    def graph_file(self) -> str:
        """Path of the graph in the package."""
        alone = self.form == layout.INPLACE
        return f"{self.name}.onnx" if alone else f"{self.name}/{layout.GRAPH}"

    def data_file(self, name: str) -> str:
        """Path in the package of a data file that the graph calls `name`."""
        return name if self.form == layout.INPLACE else f"{self.name}/{name}"

    @property
    def data(self) -> list[tuple[str, int]]:
        """Paths in the package and sizes of all data files."""
        files = self.shards if self.is_linked else self.files
        return [(self.data_file(f.name), f.nbytes) for f in files]

    @property
    def nbytes(self) -> int:
        """Bytes of its data files; of linked ones those of its own parameters."""
        if self.is_linked:
            return sum({(p.file, p.offset): p.nbytes for p in self.placed.values()}.values())
        return sum(f.nbytes for f in self.files)


@dataclass
class Plan:
    """An export that has been decided from headers alone."""

    checkpoint: Checkpoint
    family: Any
    model: Model
    components: list[Component]
    tokens: dict[str, int]
    provider: str
    notes: list[str]
    all_bindings: dict[str, dict[str, Binding]]
    sources: OpenFiles

    @property
    def nbytes(self) -> int:
        """Bytes of all data files that are written."""
        return sum(c.nbytes for c in self.components if not c.is_linked)

    @property
    def nbytes_linked(self) -> int:
        """Bytes of weights that stay in the checkpoint's files."""
        return sum(c.nbytes for c in self.components if c.is_linked)

    def data_files(self) -> list[dict[str, Any]]:
        """Fields of the `file` records, one for each data file."""
        files = {}
        for c in self.components:
            for path, nbytes in c.data:
                files[path] = {"path": path, "nbytes": nbytes, "role": "data"}
                if c.is_linked:
                    files[path]["data"] = c.form
        return list(files.values())


def plan(
    checkpoint: Checkpoint,
    names: Iterable[str] = (),
    *,
    dtype: str = "auto",
    dtypes: Mapping[str, str] | None = None,
    provider: str = "default",
    force_f16: bool = False,
    limit: Limit | None = None,
    dry_run: bool = False,
    text_only: bool = False,
    dequantize: bool = False,
    reading: str = READINGS[0],
    data: str = linked.COPY,
    out: Path | None = None,
) -> Plan:
    """Build the graphs of the named components (all, if none) and bind every parameter.

    No payload byte is read but of tensors that are compared with the config (a few hundred bytes).

    Args:
        dtype: `f32`, `f16`, `bf16`, or `auto`: float32, but on CUDA the checkpoint's own type for
            components that do not generate.
        dtypes: component -> its own dtype.
        provider: one of PROVIDERS.
        force_f16: allow float16 for generation, whose activations leave its range.
        limit: of a data file; by default what the family says.
        text_only, dequantize, reading: see `model.Wishes`.
        data, out: how weights get into the package, and where that will be: see `linked.choose`.
    Raises:
        InputError, SourceNotFound, Unsupported: the checkpoint, its config, a component name, a
            tensor or a type; named.
        UsageProblem: an option that does not fit.
        EnvironmentProblem: the file system cannot do what `data` asks for.
    """
    if checkpoint.format == "package":
        raise Unsupported(
            f"{checkpoint.source}: is a package already",
            expected="a checkpoint",
            hint=f"ntool verify-package {shlex.quote(checkpoint.source)} checks it",
        )
    gguf.refuse_payload(checkpoint)
    checkpoint.refuse_if_broken(headers_only=True)  # the family judges names and shapes first
    if checkpoint.config_hash is None:
        hint = "give the checkpoint's folder"
        if checkpoint.format == "onnx":
            hint = "this is a graph already; ntool verify-package checks graphs"
        raise SourceNotFound(f"{checkpoint.source}: config.json: no such file", hint=hint)
    family = find(checkpoint.config, f"{checkpoint.source}: config.json")
    named = list(dict.fromkeys(names))
    for name in named:
        reason = getattr(family, "NOT_PROVIDED", {}).get(name)
        if reason is not None:
            raise Unsupported(f"component '{name}': {reason}")
        if name not in family.COMPONENTS:
            raise _no_component(f"component '{name}'", name, family.COMPONENTS)
    if provider not in PROVIDERS:
        raise UsageProblem("--ep", found=provider, expected=" or ".join(PROVIDERS))
    if reading not in READINGS:
        raise UsageProblem("--scale-reading", found=reading, expected=" or ".join(READINGS))
    own = dict(dtypes or {})
    for name in own:
        if name not in family.COMPONENTS:
            raise _no_component(f"--set {name}", name, family.COMPONENTS)
    model = open_model(family, checkpoint, Wishes(text_only, dequantize, reading, provider))
    checkpoint.refuse_if_broken()
    for name in (*named, *own):
        if name not in model.components:
            raise _no_component(f"component '{name}' of a text-only export", name, model.components)
    limit = Limit(model.shard_nbytes) if limit is None else limit
    if model.most_shard_nbytes is not None and limit.nbytes > model.most_shard_nbytes:
        expected = f"at most {model.most_shard_nbytes} bytes"
        raise UsageProblem(limit.option, found=f"{limit.nbytes} bytes", expected=expected)
    notes: list[str] = []
    model.defaults()  # refuses what it cannot use, in a dry run too
    tokens = special_tokens(checkpoint, family, model, dry_run, notes)
    chosen = named or list(model.components)
    codes: dict[str, str] = {}
    for name in model.components:
        code = own.get(name, dtype)
        codes[name] = model.auto(name) if code == "auto" else code
        if codes[name] not in DTYPES:
            raise _no_such_dtype(f"--set {name}={code}" if name in own else "--dtype", code)
        if name in chosen:
            model.refuse(name, codes[name], force_f16=force_f16)
    components, every = [], {}
    sources = OpenFiles(checkpoint.folder, checkpoint.stamps)
    for name, code in tracked(codes.items(), len(codes), "building graphs", "graph"):
        bindings = Bindings(model.checkpoint, model.rename)
        graph = model.build(name, bindings, DTYPES[code], tokens)
        every[name] = bindings.bound
        if name in chosen:
            component = Component(
                name, graph, bindings.bound, code, forced=model.forced(name, code)
            )
            entries = [
                _entry(model.checkpoint, b, component, sources) for b in bindings.bound.values()
            ]
            component.files, component.placed = plan_files(entries, limit.nbytes)
            components.append(component)
    made = Plan(checkpoint, family, model, components, tokens, provider, notes, every, sources)
    _refuse_unknown(made)
    if provider in layout.STANDARD_EPS:
        for component in components:
            refuse_foreign(made, component)
    linked.choose(data, checkpoint, components, out)
    return made


def _no_component(what: str, name: str, known: Iterable[str]) -> SourceNotFound:
    known = list(known)
    return SourceNotFound(
        what, expected=f"one of {', '.join(known)}", hint=did_you_mean(name, known)
    )


def refuse_foreign(plan: Plan, component: Component) -> None:
    """Refuse a graph with an operator that is not standard, wherever it stands.

    Raises:
        Unsupported: names component, path, domain and operator.
    """
    found = next(foreign_nodes(component.graph.model()), None)
    if found is not None:
        path, domain, op_type, why = found
        raise Unsupported(
            f"{component.name}: {path}: operator {domain or 'ai.onnx'}::{op_type}: {why}",
            expected=f"operators of the standard domains alone (--ep {plan.provider})",
        )


def summary(plan: Plan, *, written: bool) -> dict[str, Any]:
    """Fields of the `summary` record of an export, without its time and memory."""
    bindings = [b for c in plan.components for b in c.bindings.values()]
    stored = plan.checkpoint.tensors  # not those of a view, which shows codes as what they become
    copied = sum(all(stored[t.name].dtype == b.dtype for t in b.sources) for b in bindings)
    return {
        "components": {
            c.name: {
                "nodes": len(c.graph.nodes),
                "initializers": len(c.graph.initializers),
                "bound": len(c.bindings),
                "dtype": c.dtype,
                "nbytes": c.nbytes,
                "data": c.form,
            }
            for c in plan.components
        },
        "nodes": sum(len(c.graph.nodes) for c in plan.components),
        "initializers": sum(len(c.graph.initializers) for c in plan.components),
        "source_tensors": len(plan.checkpoint.tensors),
        "copied": copied,
        "converted": len(bindings) - copied,
        "bytes_linked": plan.nbytes_linked,
        "bytes_written": plan.nbytes if written else 0,
        "bytes_planned": plan.nbytes,
        "dry_run": not written,
    }


def write(
    plan: Plan,
    out: Path | None,
    *,
    force: bool = False,
) -> list[Problem]:
    """Write the package. It appears under its name only when it is complete.

    Args:
        out: its folder; None for a plan whose components stay in place.
    Returns:
        what is odd about payloads.
    Raises:
        UsageProblem: the output is, holds or lies in the source, or exists and `force` is not set.
        EnvironmentProblem: not enough disk space; the file system makes no such links.
        InputError: a file of the source is another one than when it was planned.
    """
    checkpoint = plan.checkpoint
    if any(c.form == layout.INPLACE for c in plan.components):
        return _write_in_place(plan, force)
    assert out is not None
    inputs = [checkpoint.root] if checkpoint.folder.local else []
    check_output(out, inputs, force=force, marker=layout.MANIFEST)
    remove_left(out)  # before the room is counted that they take
    check_space(out, plan.nbytes + (16 << 20))
    problems = plan.model.before_writing([b for c in plan.components for b in c.bindings.values()])
    with (
        kept_open(checkpoint, plan.model.checkpoint),
        plan.sources,
        new_folder(out, replace=layout.MANIFEST if force else None) as folder,
        step(plan.nbytes, "exporting") as bar,
    ):
        for component in plan.components:
            target = folder / component.name
            target.mkdir()
            if component.is_linked:
                linked.write_shards(component, target, checkpoint.stamps)
            else:
                for data in component.files:
                    write_file(target, data, bar.update)
            write_bytes(folder / component.graph_file, graph_bytes(plan, component))
        for name, content in _beside(plan).items():
            write_bytes(folder / name, content)
        linked.require_unchanged(checkpoint)
    return problems


def _beside(plan: Plan) -> dict[str, bytes]:
    """All files of the package but graphs and data, package.json last."""
    return {
        **assets(plan),
        layout.REPORT: as_json(manifest.weight_report(plan)),
        layout.MANIFEST: as_json(manifest.package(plan)),
    }


def _write_in_place(plan: Plan, force: bool) -> list[Problem]:
    root = Path(os.path.realpath(plan.checkpoint.root))
    files = {c.graph_file: graph_bytes(plan, c) for c in plan.components} | _beside(plan)
    in_place.check(root, files, force=force)
    problems = plan.model.before_writing([b for c in plan.components for b in c.bindings.values()])
    linked.require_unchanged(plan.checkpoint)
    in_place.write(root, files, force=force)
    return problems


def graph_bytes(plan: Plan, component: Component) -> bytes:
    """The component's model.onnx, its external data pointing at the placed bytes."""
    model = component.graph.model(manifest.graph_metadata(plan, component))
    point_at(model, component.placed)
    return model.SerializeToString(deterministic=True)


def _no_such_dtype(option: str, code: str) -> UsageProblem:
    """Torch's and NumPy's names for them are told apart by one letter or by the bits."""
    meant = OTHER_NAMES.get(code.casefold()) or nearest(code, ("auto", *DTYPES))
    hint = f"did you mean '{meant}'?" if meant else None
    expected = f"auto or {' or '.join(DTYPES)}"
    return UsageProblem(option, found=code, expected=expected, hint=hint)


def parse_dtypes(pairs: Iterable[str]) -> dict[str, str]:
    """`COMPONENT=DTYPE` options as a table.

    Raises:
        UsageProblem: no such form, or a component twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, code = pair.partition("=")
        if not equals or not name or name in found:
            raise UsageProblem("--set", found=pair, expected="COMPONENT=DTYPE, each once")
        found[name] = code
    return found


def _entry(checkpoint: Checkpoint, b: Binding, component: Component, files: OpenFiles) -> Entry:
    def bands() -> Iterable[Band]:
        for tensor in b.sources:
            tally = Tally()
            if narrows(tensor.dtype, b.dtype):
                component.tallies[tensor.name] = tally
            stored = checkpoint.bands(tensor)
            yield from convert(stored, tensor.dtype, b.dtype, tensor.name, tally)

    def copies() -> Iterable[tuple[Readable, int, int]]:
        for tensor in b.sources:
            yield files(tensor.file), tensor.offset, tensor.nbytes

    unchanged = all(t.dtype == b.dtype and checkpoint.is_plain(t) for t in b.sources)
    if unchanged and checkpoint.folder.local:
        return Entry(b.name, b.dtype, b.shape, b.nbytes, copies=copies)
    return Entry(b.name, b.dtype, b.shape, b.nbytes, bands)


def _refuse_unknown(plan: Plan) -> None:
    """Every tensor must belong to a component, or be left with a reason: what is not understood is
    not dropped in silence."""
    every = plan.all_bindings
    used = {t.name for bound in every.values() for b in bound.values() for t in b.sources}
    unknown = [
        t
        for t in plan.checkpoint.tensors.values()
        if t.name not in used and plan.model.left(t) is None
    ]
    if unknown:
        t = unknown[0]
        raise Unsupported(
            f"{t.file}: tensor '{t.name}' {list(t.shape)} belongs to no component"
            + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else "")
        )


__all__ = ["IR_VERSION", "OPSET", "Component", "Plan", "plan", "write"]
