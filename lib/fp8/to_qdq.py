"""FP8 checkpoint -> ONNX package of its weights, in which codes and scales keep their bytes.

The graphs are opset 21 of the standard domain; what they compute is written in graph/fp8.py. What
is not FP8 goes along as it is, an output of its graph under its own name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any

from ..checkpoint.folder import read_small
from ..checkpoint.tensor import Checkpoint, Problem, Tensor
from ..checkpoint.writer import Entry
from ..conversion.entries import copied, report_row
from ..conversion.open_files import OpenFiles
from ..conversion.plan import CONFIG, SHARD_NBYTES, Plan, files_beside
from ..errors import InputError, Unsupported, UsageProblem
from ..families.recognise import recognise
from ..package import layout
from . import qdq_report
from .codes import NOT_FINITE, Codes, Scales
from .forms import Table, form_of, tables_of
from .pairs import FP8, is_scale
from .qdq_component import IDS, PORTS, ROWS, VALUES, Component, Matrix, Namer, scope_of
from .to_dense import Judged, Refused, judge

LOWERINGS, READINGS = ("blocked", "tiles"), ("exact", "bf16")
_PACKED = frozenset(("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", *FP8))


@dataclass
class Choice:
    """What the user wants.

    Attributes:
        include, exclude: patterns of tensor names; a scale goes where its weights go.
        unscaled: patterns of FP8 tensors that may lack a scale; their codes are the values.
        lowering: `blocked` or `tiles`.
        reading: of BF16 scales: `exact` or `bf16`.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()
    lowering: str = "blocked"
    reading: str = "exact"
    shard_nbytes: int = SHARD_NBYTES


def plan(
    checkpoint: Checkpoint, choice: Choice, statistics: dict[str, Any]
) -> tuple[Plan, list[Problem]]:
    """What a conversion will write, and what is odd but no reason to refuse.

    Args:
        statistics: gets the numbers of codes that are not finite, while they are written.
    Raises:
        Refused: the checkpoint breaks a rule of FP8, or of its family; every reason is named.
        InputError, SourceNotFound: the files are not sound, or hold no FP8.
        Unsupported: not a safetensors checkpoint; a tensor of another quantisation, NVFP4 for
            instance; a scale that the reading is not for.
        UsageProblem: patterns that take a part of a table.
    """
    if choice.lowering not in LOWERINGS:
        raise UsageProblem("--lowering", found=choice.lowering, expected=" or ".join(LOWERINGS))
    if choice.reading not in READINGS:
        raise UsageProblem("--scale-reading", found=choice.reading, expected=" or ".join(READINGS))
    _refuse_nvfp4(checkpoint)
    judged = judge(checkpoint, choice.unscaled)
    made = _Planner(checkpoint, choice, judged, statistics)
    return made.plan(), made.warnings


@dataclass
class _Planner:
    checkpoint: Checkpoint
    choice: Choice
    judged: Judged
    statistics: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = OpenFiles(self.checkpoint.folder, self.checkpoint.stamps)
        self.pairs = self.judged.pairs
        self.warnings += self.judged.warnings
        self.tables: list[Table] = []
        self.components: dict[str, Component] = {}
        names = self.checkpoint.tensors.keys()
        self.family = recognise(self.checkpoint.config, names)
        self.contract = _contract(self.family)

    def plan(self) -> Plan:
        checkpoint, choice = self.checkpoint, self.choice
        if not self.pairs.scale_of and not self.pairs.unpaired:
            raise InputError(f"{checkpoint.source}: FP8 weights", found="none",
                             expected="at least one: codes and scales are kept")  # fmt: skip
        self._refuse_by_family()
        tables = tables_of(checkpoint.tensors, self.pairs)
        beside = files_beside(checkpoint.folder, (layout.MANIFEST, layout.SUMS))
        self._namer = Namer([*beside, CONFIG, layout.MANIFEST, layout.SUMS, layout.REPORT])
        self._assign(tables)
        self._refuse_names()
        for c in self.components.values():
            c.lay_out(choice.shard_nbytes)
        self._targets()
        self._kernels()
        return self._plan(beside)

    def _plan(self, beside: list[str]) -> Plan:
        from ..package.manifest import source_of

        checkpoint, choice = self.checkpoint, self.choice
        source = source_of(checkpoint)
        components = list(self.components.values())
        config = None
        if checkpoint.config_hash is not None:
            config = read_small(checkpoint.folder, CONFIG, 16_000_000)
        quantization = {
            "format": "fp8_qdq", "lowering": choice.lowering, "scale_reading": choice.reading,
            "block": self.pairs.settings.block,
        }  # fmt: skip
        files = [*([CONFIG] if config is not None else []), *beside]
        metadata = {
            "ntool.schema": layout.SCHEMA,
            "ntool.family": self.family or "",
            "ntool.quantization": f"fp8_qdq/{choice.lowering}/{choice.reading}",
            "ntool.source": source["uri"],
            "ntool.source_revision": source["resolved_revision"] or "",
            "ntool.source_schema_hash": source["schema_hash"],
        }
        return Plan(
            source=checkpoint,
            options={"convert": "qdq", "include": choice.include, "exclude": choice.exclude,
                     "unscaled": choice.unscaled, "lowering": choice.lowering,
                     "reading": choice.reading},
            shards=[f for c in components for f in c.files],
            config=config,
            beside=beside,
            files=self.files,
            rows=self.rows,
            report=self._report(source, quantization),
            made={layout.MANIFEST: partial(_manifest, components, source=source, family=self.family,
                                    quantization=quantization, files=files)},
            companions={
                c.files[0].name: {c.graph_file(): partial(
                    c.graph_bytes, choice.lowering, choice.reading,
                    {**metadata, "ntool.component": c.name})}
                for c in components
            },
            indexed=False,
        )  # fmt: skip

    def _refuse_by_family(self) -> None:
        if self.contract is None:
            return
        found = list(self.contract.problems(
            self.checkpoint.config, self.checkpoint.tensors, self.pairs, self._read))  # fmt: skip
        if found:
            first = found[0]
            where = ": ".join(x for x in (first.file, first.name, first.message) if x)
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise Refused(f"{self.checkpoint.source}: {where}{more}", [*self.warnings, *found])

    def _read(self, t: Tensor) -> bytes:
        with self.checkpoint.folder.open(t.file) as f:
            return f.read(t.offset, t.nbytes)

    def _excluded(self, name: str) -> str | None:
        """None, or why a tensor is left out."""
        choice = self.choice
        if choice.include and not any(fnmatchcase(name, g) for g in choice.include):
            return "--include or --exclude"
        if any(fnmatchcase(name, g) for g in choice.exclude):
            return "--include or --exclude"
        if not choice.include:
            for _, pattern, reason in self._defaults():
                if fnmatchcase(name, pattern):
                    return reason
        return None

    def _defaults(self) -> tuple[tuple[str, str, str], ...]:
        return self.contract.EXCLUDED if self.contract is not None else ()

    def _assign(self, tables: list[Table]) -> None:
        """Every tensor to its component, or to those that are left out; a row for each."""
        tensors, pairs = self.checkpoint.tensors, self.pairs
        in_table = {t.name: table for table in tables for t in table.shards}
        why = {n: self._excluded(n) for n in tensors if n not in pairs.scales}
        for table in tables:
            left = [t.name for t in table.shards if why[t.name] is not None]
            if left and len(left) < len(table.shards):
                raise UsageProblem(
                    f"--include, --exclude: shards of the table '{table.name}'",
                    found=f"{len(table.shards) - len(left)} of {len(table.shards)}",
                    expected="all or none: row numbers count through the table",
                )
            if not left:
                self.tables.append(table)
                component = self._component(table.name)
                component.tables.append(table)
                self._hold(component, table.scale)
        users = {pairs.scale_of[w] for w in pairs.scale_of if why[w] is None}
        reasons = {pairs.scale_of[w]: why[w] for w in pairs.scale_of}
        for name, t in tensors.items():
            if name in pairs.scales:
                if name in users:
                    self.rows.append(report_row(t, "copied", [], None))
                else:
                    self.rows.append(report_row(t, "excluded", [], reasons[name]))
                continue
            if why[name] is not None:
                self.rows.append(report_row(t, "excluded", [], why[name]))
                continue
            self.rows.append(report_row(t, "copied", [], None, pairs.scale_of.get(name)))
            if name in in_table:
                self._hold(self._component(in_table[name].name), t)
            elif t.dtype in FP8 and (name in pairs.scale_of or name in pairs.unpaired):
                self._matrix(t)
            else:
                self._require_plain(t)
                component = self._component(scope_of(name))
                component.plain.append(t)
                self._hold(component, t)
        if not self.tables and not any(c.matrices for c in self.components.values()):
            raise UsageProblem("--include, --exclude: FP8 weights left", found="none",
                               expected="at least one")  # fmt: skip

    def _component(self, scope: str) -> Component:
        if scope not in self.components:
            self.components[scope] = Component(self._namer.of(scope))
        return self.components[scope]

    def _matrix(self, t: Tensor) -> None:
        scale = self.pairs.scales.get(self.pairs.scale_of.get(t.name, ""))
        form = form_of(t.shape, scale.shape if scale else None, self.pairs.settings.block)
        component = self._component(scope_of(t.name))
        component.matrices.append(Matrix(t, scale, form))
        self._hold(component, t)
        if scale is not None:
            self._hold(component, scale)

    def _hold(self, component: Component, t: Tensor) -> None:
        """Take a tensor's bytes into a component."""
        if not t.nbytes:
            what = f"{self.checkpoint.source}: {t.file}: tensor '{t.name}'"
            raise Unsupported(f"{what}: no elements: no runtime reads empty external data")
        if t.dtype in NOT_FINITE:
            counting = Codes(t, self.files, self.statistics)
            component.entries[t.name] = Entry(
                t.name, t.dtype, t.shape, t.nbytes, bands=counting.bands
            )
            return
        if t.name in self.pairs.scales:
            self._require_reading(t)
            checking = Scales(t, self.files)
            entry = Entry(t.name, t.dtype, t.shape, t.nbytes, bands=checking.bands)
        else:
            entry = copied(t, self.files)
        component.entries[t.name] = replace(entry, dtype="U8") if t.dtype == "F8_E8M0" else entry

    def _require_reading(self, scale: Tensor) -> None:
        if self.choice.reading == "bf16" and scale.dtype != "BF16":
            what = f"{self.checkpoint.source}: {scale.file}: tensor '{scale.name}': dtype"
            raise Unsupported(f"{what} of a scale", found=scale.dtype, expected="BF16",
                              hint="--scale-reading exact takes every scale")  # fmt: skip

    def _require_plain(self, t: Tensor) -> None:
        """Refuse what is quantised in another way, and types that no port has."""
        what = f"{self.checkpoint.source}: {t.file}: tensor '{t.name}'"
        if t.dtype in _PACKED or t.dtype not in PORTS:
            raise Unsupported(f"{what}: dtype", found=t.dtype,
                              expected="FP8 weights with scales, or plain tensors")  # fmt: skip
        if is_scale(t.name) and t.name.removesuffix("_scale") in self.checkpoint.tensors:
            raise Unsupported(f"{what}: a scale of another quantisation than FP8")

    def _refuse_names(self) -> None:
        """A port must not have the name of a tensor."""
        tensors = self.checkpoint.tensors
        for c in self.components.values():
            ports = [m.tensor.name + VALUES for m in c.matrices]
            ports += [t.name + end for t in c.tables for end in (IDS, ROWS)]
            for name in ports:
                if name in tensors:
                    what = f"{self.checkpoint.source}: tensor '{name}'"
                    raise Unsupported(f"{what}: has the name of a port of the graph")

    def _targets(self) -> None:
        """Into each row where the tensor went."""
        places: dict[str, dict[str, Any]] = {}
        for c in self.components.values():
            files = {f.name.rsplit("/", 1)[1]: f.name for f in c.files}  # one string for each file
            for name, p in c.placed.items():
                places[name] = {"component": c.name, "name": name, "dtype": c.entries[name].dtype,
                                "file": files[p.file], "offset": p.offset,
                                "nbytes": p.nbytes}  # fmt: skip
        for row in self.rows:
            if row["action"] == "excluded":
                continue
            place = places[row["name"]]
            row["targets"] = [place]
            if place["dtype"] != row["source"]["dtype"]:
                row["action"] = "converted"
                row["reason"] = "the same bytes as uint8: opset 21 has no type for E8M0"

    def _kernels(self) -> None:
        """Say before anything is written what a CPU cannot run."""
        reasons: dict[str, list[str]] = {}
        for c in self.components.values():
            reason = c.runs_on_cpu(self.choice.lowering, self.choice.reading)
            if reason is not None:
                reasons.setdefault(reason, []).append(c.name)
        self.no_kernel = reasons
        for reason, names in reasons.items():
            text = f"{len(names)} components will be valid, and not run on CPU: {reason}"
            self.warnings.append(Problem("no-cpu-kernel", text, "warning", name=names[0]))

    def _report(self, source: dict[str, Any], quantization: dict[str, Any]) -> dict[str, Any]:
        account = qdq_report.account(
            self.checkpoint, self.family, self.pairs, self.rows, self._defaults(), self.tables
        )
        return {
            "schema": layout.REPORT_SCHEMA,
            "source": source,
            "output_weight_format": "fp8_qdq",
            "storage_preserving": True,
            "native_fp8": False,
            "quantization": quantization,
            "cpu": {"runs": not self.no_kernel,
                    "without_kernel": self.no_kernel},
            **account,
            "counts": {"source_tensors": len(self.rows)},
            **(qdq_report.mtp_and_ple(account) if self.contract is not None else {}),
        }  # fmt: skip


def _contract(family: str | None) -> Any:
    """The family's rules for FP8 checkpoints, None where it has none."""
    if family is None:
        return None
    name = f"..families.{family}.fp8_contract"
    try:
        return import_module(name, package=__package__)
    except ModuleNotFoundError as e:
        if e.name is None or not e.name.endswith(".fp8_contract"):
            raise
        return None


def _refuse_nvfp4(checkpoint: Checkpoint) -> None:
    """Say NVFP4 where a checkpoint is, or a weight of it.

    Raises:
        Unsupported: names the config, or the tensor.
    """
    quantization = checkpoint.config.get("quantization_config")
    if isinstance(quantization, dict):
        given = [quantization.get(k) for k in ("quant_method", "quant_algo", "format")]
        if any(isinstance(v, str) and re.search("nvfp4", v, re.IGNORECASE) for v in given):
            what = f"{checkpoint.source}: config.json: quantization_config"
            raise Unsupported(what, found="NVFP4", expected="FP8")
    for name, t in checkpoint.tensors.items():
        if t.dtype == "F8_E4M3" and name.endswith(".weight_scale"):
            weight = checkpoint.tensors.get(name.removesuffix("_scale"))
            if weight is not None and weight.dtype in ("U8", "F4"):
                what = f"{checkpoint.source}: {weight.file}: tensor '{weight.name}'"
                raise Unsupported(f"{what}: NVFP4 weights", expected="FP8 with BF16 scales")


def _manifest(components: list[Component], **fields: Any) -> bytes:
    from ..graph.builder import IR_VERSION
    from ..graph.fp8 import OPSET

    value = qdq_report.package(components, opset=OPSET, ir_version=IR_VERSION, **fields)
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
