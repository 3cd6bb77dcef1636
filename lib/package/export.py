"""Checkpoint to package: plan everything from headers, then stream the weights and write the
folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from onnx import TensorProto

from ..checkpoint.paths import read_inside
from ..checkpoint.tensor import Checkpoint
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
from ..errors import InputError, SourceNotFound, Unsupported, UsageProblem
from ..families import find, gguf
from ..graph.builder import IR_VERSION, OPSET, Graph
from ..graph.external import point_at
from ..numeric.convert import Band, Tally, convert, narrows
from ..text.tokenizer import MAX_BYTES, load
from . import layout, manifest
from .bindings import Binding, Bindings

SHARD_NBYTES = 5_000_000_000
DTYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""Element types that components can be exported as."""
STORED = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
PROVIDERS = ("default", "cpu", "cuda", "onnx-standard")
"""Execution providers that a package can be meant for; all graphs use standard operators alone."""


@dataclass
class Component:
    """One component, ready to be written: its graph, where its bytes come from and where they
    go."""

    name: str
    graph: Graph
    bindings: dict[str, Binding]
    dtype: str
    forced: bool = False
    tallies: dict[str, Tally] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    placed: dict[str, Placed] = field(default_factory=dict)


@dataclass
class Plan:
    """An export that has been decided from headers alone."""

    checkpoint: Checkpoint
    family: Any
    model: Any
    components: list[Component]
    tokens: dict[str, int]
    provider: str
    notes: list[str]
    all_bindings: dict[str, dict[str, Binding]]

    @property
    def nbytes(self) -> int:
        """Bytes of all data files."""
        return sum(f.nbytes for c in self.components for f in c.files)


def plan(
    checkpoint: Checkpoint,
    names: Iterable[str] = (),
    *,
    dtype: str = "auto",
    dtypes: Mapping[str, str] | None = None,
    provider: str = "default",
    force_f16: bool = False,
    shard_nbytes: int = SHARD_NBYTES,
    dry_run: bool = False,
) -> Plan:
    """Build the graphs of the named components (all, if none) and bind every parameter.

    No payload byte is read.

    Args:
        dtype: `f32`, `f16`, `bf16`, or `auto`: float32, but on CUDA the checkpoint's own type for
            components that do not generate.
        dtypes: component -> its own dtype.
        provider: one of PROVIDERS.
        force_f16: allow float16 for generation, whose activations leave its range.
    Raises:
        InputError, SourceNotFound, Unsupported: the checkpoint, its config, a component name, a
            tensor or a type; named.
    """
    if checkpoint.format == "package":
        raise Unsupported(f"{checkpoint.source}: is a package already", expected="a checkpoint")
    gguf.refuse_payload(checkpoint)
    checkpoint.refuse_if_broken()
    if checkpoint.config_hash is None:
        raise SourceNotFound(
            f"{checkpoint.source}: config.json: no such file", hint="give the checkpoint's folder"
        )
    family = find(checkpoint.config, f"{checkpoint.source}: config.json")
    chosen = list(dict.fromkeys(names)) or list(family.COMPONENTS)
    for name in chosen:
        if name not in family.COMPONENTS:
            raise SourceNotFound(
                f"component '{name}'", expected=f"one of {', '.join(family.COMPONENTS)}"
            )
    if provider not in PROVIDERS:
        raise UsageProblem("--ep", found=provider, expected=" or ".join(PROVIDERS))
    own = dict(dtypes or {})
    for name in own:
        if name not in family.COMPONENTS:
            raise SourceNotFound(f"--set {name}", expected=f"one of {', '.join(family.COMPONENTS)}")
    model = import_module(f"{family.__name__}.export").NeoChat(checkpoint)
    notes: list[str] = []
    model.defaults()  # refuses what it cannot use, in a dry run too
    tokens = _special_tokens(checkpoint, model, dry_run, notes)
    components, every = [], {}
    for name in family.COMPONENTS:
        code = own.get(name, dtype)
        code = _auto(checkpoint, family, name, provider) if code == "auto" else code
        if code not in DTYPES:
            raise UsageProblem("dtype", found=code, expected=f"auto or {' or '.join(DTYPES)}")
        generates = name in family.GENERATION_COMPONENTS
        if code == "f16" and generates and not force_f16 and name in chosen:
            raise Unsupported(
                f"{name} in f16: its activations leave the range of float16, and end as NaN",
                expected="f32 or bf16",
                hint=f"--set {name}=f32; --force-f16 for experiments",
            )
        bindings = Bindings(checkpoint, model.rename)
        graph = model.build(name, bindings, DTYPES[code], tokens)
        every[name] = bindings.bound
        if name in chosen:
            component = Component(name, graph, bindings.bound, code, code == "f16" and generates)
            entries = [_entry(checkpoint, b, component) for b in bindings.bound.values()]
            component.files, component.placed = plan_files(entries, shard_nbytes)
            components.append(component)
    _refuse_unknown(checkpoint, every)
    return Plan(checkpoint, family, model, components, tokens, provider, notes, every)


def summary(plan: Plan, *, written: bool) -> dict[str, Any]:
    """Fields of the `summary` record of an export, without its time and memory."""
    bindings = [b for c in plan.components for b in c.bindings.values()]
    return {
        "components": {
            c.name: {
                "nodes": len(c.graph.nodes),
                "initializers": len(c.graph.initializers),
                "bound": len(c.bindings),
                "dtype": c.dtype,
                "nbytes": sum(f.nbytes for f in c.files),
            }
            for c in plan.components
        },
        "nodes": sum(len(c.graph.nodes) for c in plan.components),
        "initializers": sum(len(c.graph.initializers) for c in plan.components),
        "source_tensors": len(plan.checkpoint.tensors),
        "copied": sum(b.action == "copied" for b in bindings),
        "converted": sum(b.action == "converted" for b in bindings),
        "bytes_linked": 0,
        "bytes_written": plan.nbytes if written else 0,
        "bytes_planned": plan.nbytes,
        "dry_run": not written,
    }


def write(
    plan: Plan,
    out: Path,
    *,
    force: bool = False,
    progress: Callable[[int], object] = lambda n: None,
) -> None:
    """Write the package. It appears under its name only when it is complete.

    Raises:
        UsageProblem: the output is, holds or lies in the source, or exists and `force` is not set.
        EnvironmentProblem: not enough disk space.
    """
    checkpoint = plan.checkpoint
    check_output(out, [checkpoint.root], force=force, marker=layout.MANIFEST)
    check_space(out, plan.nbytes + (16 << 20))
    with new_folder(out, replace=layout.MANIFEST if force else None) as folder:
        for component in plan.components:
            target = folder / component.name
            target.mkdir()
            for data in component.files:
                write_file(target, data, progress)
            write_bytes(target / layout.GRAPH, graph_bytes(plan, component))
        for name, content in assets(plan).items():
            write_bytes(folder / name, content)
        write_bytes(folder / layout.REPORT, _json(manifest.weight_report(plan)))
        write_bytes(folder / layout.MANIFEST, _json(manifest.package(plan)))


def graph_bytes(plan: Plan, component: Component) -> bytes:
    """The component's model.onnx, its external data pointing at the placed bytes."""
    model = component.graph.model(manifest.graph_metadata(plan, component))
    point_at(model, component.placed)
    return model.SerializeToString(deterministic=True)


def assets(plan: Plan) -> dict[str, bytes]:
    """Tokenizer files byte for byte, and processor.json; path in the package -> content.

    Raises:
        SourceNotFound: the checkpoint lacks a tokenizer file that prompts need.
        InputError: a file that leads outside of the checkpoint, is not regular, or is too large.
    """
    files = {}
    for name in layout.TOKENIZER_FILES:
        raw = read_inside(plan.checkpoint.root, name, MAX_BYTES)
        if raw is not None:
            files[f"{layout.TOKENIZER}/{name}"] = raw
        elif name in layout.REQUIRED_TOKENIZER_FILES:
            raise SourceNotFound(f"{plan.checkpoint.source}: tokenizer file '{name}' is missing")
    processor = import_module(f"{plan.family.__name__}.processor")
    files[layout.PROCESSOR] = _json(processor.processor_json(plan.checkpoint.config))
    return files


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


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


def _auto(checkpoint: Checkpoint, family: Any, component: str, provider: str) -> str:
    """float32; on CUDA the type of most of the checkpoint's parameters, but for generation."""
    if provider != "cuda" or component in family.GENERATION_COMPONENTS:
        return "f32"
    counts: dict[str, int] = {}
    for t in checkpoint.tensors.values():
        counts[t.dtype] = counts.get(t.dtype, 0) + t.params
    return STORED.get(max(counts, key=lambda d: counts[d]), "f32")


def _entry(checkpoint: Checkpoint, b: Binding, component: Component) -> Entry:
    def bands() -> Iterable[Band]:
        for tensor in b.sources:
            tally = Tally()
            if narrows(tensor.dtype, b.dtype):
                component.tallies[tensor.name] = tally
            stored = checkpoint.bands(tensor)
            yield from convert(stored, tensor.dtype, b.dtype, tensor.name, tally)

    return Entry(b.name, b.dtype, b.shape, b.nbytes, bands)


def _special_tokens(
    checkpoint: Checkpoint, model: Any, dry_run: bool, notes: list[str]
) -> dict[str, int]:
    names = import_module(type(model).__module__).SPECIAL_TOKENS
    required = layout.REQUIRED_TOKENIZER_FILES
    missing = [n for n in required if not os.path.lexists(checkpoint.path(n))]
    if missing and dry_run:
        notes.append(
            f"no {', '.join(missing)}: token ids stay open in this dry run; an export needs them"
        )
        return dict.fromkeys(names, 0)
    if missing:
        raise SourceNotFound(f"{checkpoint.source}: tokenizer file '{missing[0]}' is missing")
    tokenizer = load(checkpoint.root)
    ids = {name: tokenizer.id(name) for name in names}
    words = model.config.llm.V
    for name, i in ids.items():
        if i >= words:
            raise InputError(
                f"{checkpoint.source}: token '{name}': id",
                found=i,
                expected=f"< vocab_size {words}",
            )
    return ids


def _refuse_unknown(checkpoint: Checkpoint, every: dict[str, dict[str, Binding]]) -> None:
    """Every tensor must belong to a component: what is not understood is not dropped in silence."""
    used = {t.name for bound in every.values() for b in bound.values() for t in b.sources}
    unknown = [t for t in checkpoint.tensors.values() if t.name not in used]
    if unknown:
        t = unknown[0]
        raise Unsupported(
            f"{t.file}: tensor '{t.name}' {list(t.shape)} belongs to no component"
            + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else "")
        )


__all__ = ["IR_VERSION", "OPSET", "Component", "Plan", "plan", "write"]
