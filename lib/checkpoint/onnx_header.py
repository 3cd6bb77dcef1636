"""Strict reader of ONNX graphs for their tensors: payload is not read, data files are not opened.

Listed are the stored tensors of the whole model (graphs in attributes, functions, sparse tensors,
training graphs too), and the inputs and outputs of the main graph. A tensor of the main graph is
called by its name; another one by the path that the messages of verify-package use, such as
`node if (If).then_branch: initializer 'w'` or `node k (Constant).value`. All stored tensors have
the role `initializer`: runtimes make initializers of constants, too.

The rules are those of verify-package (onnx_rules.py, onnx_scopes.py, onnx_external.py), on messages
of the own parser (protobuf.py). Operators of other domains than the standard ones are not judged.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..errors import MAX_ECHO, printable, shorten
from .folder import Folder, NotReadable, Readable
from .header import Header, noting_failures
from .onnx_external import (
    External,
    by_location,
    externals,
    location_fault,
    number_fault,
    overlaps,
    range_fault,
)
from .onnx_messages import MODEL
from .onnx_rules import MAX_FAULTS, Fault, tensor_faults, value_faults, version_faults
from .onnx_scopes import scope_faults
from .onnx_types import TYPES, dtype
from .onnx_types import nbytes as nbytes_of
from .onnx_walk import Walk, walk
from .protobuf import BLOCK, MAX_BYTES, WHOLE, Parsed, parse
from .sniff import what_is
from .tensor import NO_PAYLOAD, Port, Problem, Tensor

MAX_PROPERTY = 1 << 16
"""Longest value of metadata_props that is repeated, bytes; of longer ones length and head are."""
_HEAD = 256
MAX_FILES = 100_000
"""Data files of a graph that are looked up."""
MAX_LISTED = 1000
"""Operators, functions and opsets that `metadata` lists; of more, the most frequent or first."""
_RAW = frozenset(("float_data", "double_data"))
"""Fields whose values lie in the file as they would in raw_data."""


@dataclass
class DataFile:
    """A file that external tensors are in.

    Attributes:
        nbytes: its size; None where there is none, or it may not be read.
        ranges: first and last byte (exclusive) of each tensor in it.
    """

    nbytes: int | None = None
    ranges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def covered(self) -> int:
        """Bytes that belong to a tensor."""
        total = at = 0
        for begin, end in sorted(self.ranges):
            total += max(0, end - max(begin, at))
            at = max(at, end)
        return total


@dataclass
class OnnxHeader(Header):
    """What an ONNX file says.

    `tensors` are sorted by file (the graph's own first) and offset. `metadata` has the graph's
    `metadata_props`, and under `onnx.*` its versions, producer and operators.

    Attributes:
        component: name of the graph in records.
        ports: inputs (initializers are none) and outputs of the main graph.
        data_files: by path relative to the folder.
    """

    component: str | None = None
    ports: list[Port] = field(default_factory=list)
    data_files: dict[str, DataFile] = field(default_factory=dict)


def onnx_header_of(folder: Folder, file: str, component: str | None = None) -> OnnxHeader:
    """The header of a graph. Nothing is raised for a bad one: its problems are in the result.

    Args:
        file: path of the graph inside `folder`; locations of its data must not leave the folder.
        component: name of the graph in records.
    """
    header = OnnxHeader(file, component=component)
    with noting_failures(header), folder.open(file, BLOCK) as f:
        header.nbytes = f.nbytes
        _read(header, folder, f)
        header.bytes_read = f.bytes_read
        if not f.unchanged():
            header.broken("changed-while-reading", "the file changed while it was read")
    return header


def _read(header: OnnxHeader, folder: Folder, f: Readable) -> None:
    if f.nbytes == 0:
        header.broken("empty", "empty file: found 0 bytes")
        return
    first = f.read(0, f.nbytes if f.nbytes <= WHOLE else BLOCK)
    kind = what_is(first[:512])
    if kind:
        header.broken("not-onnx", f"not ONNX: it is {kind}")
        return
    if f.nbytes > MAX_BYTES:
        message = f"larger than one protobuf message can be: found {f.nbytes} bytes"
        header.broken("too-large", f"{message}, expected at most {MAX_BYTES}")
    parsed = parse(f, MODEL, first)
    for broken in parsed.faults:
        header.broken(broken.code, f"not a sound protobuf message: {broken.message}")
    model = parsed.message
    if not model.HasField("graph"):
        if parsed.complete:
            header.broken("no-graph", "no graph in it")
        return
    everything = walk(model)
    faults: list[Fault] = []
    if parsed.complete:
        faults += version_faults(model)
    _tensors(header, folder, everything, parsed)
    if parsed.complete:
        faults += islice(value_faults(everything.graphs), MAX_FAULTS)
        faults += scope_faults(model)
    for fault in faults:
        where = f"{fault.where}: " if fault.where else ""
        header.broken(fault.reason, f"{where}{_text(fault)}")
    _ports(header, model)
    _facts(header, f, model, everything)


def _text(fault: Fault) -> str:
    """The text of a fault with what was found and expected, where it does not say so itself."""
    text = fault.text
    values = []
    if fault.actual is not None and str(fault.actual) not in text:
        values.append(f"found {printable(fault.actual)}"[:200])
    if fault.expected is not None:
        values.append(f"expected {printable(fault.expected)}"[:200])
    return text + (": " + ", ".join(values) if values else "")


def _tensors(header: OnnxHeader, folder: Folder, everything: Walk, parsed: Parsed) -> None:
    """Judge all stored tensors and list the sound ones."""
    unfinished = set(map(id, parsed.open))
    main = {id(t): t.name for t in everything.graphs[0][1].initializer}
    times = Counter(main.values())
    sound: list[tuple[str, Any]] = []
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for path, t in everything.tensors:
        name = main.get(id(t))
        doubled = name is not None and times[name] > 1
        if name is None:  # two nodes may have one name
            seen[path] += 1
            name = path = path if seen[path] == 1 else f"{path} (#{seen[path]})"
        names[path] = name
        faults = tensor_faults(path, t) if id(t) not in unfinished else None
        for fault in faults or ():
            header.broken(fault.reason, _text(fault), name)
        if faults == [] and not doubled:
            sound.append((path, t))
        else:
            header.unsound.append(name)
    order = {header.file: 0}
    for path, t in sound:
        if t.data_location == 0:
            header.tensors.append(_inline(header, names[path], t))
    _external(header, folder, externals(sound), names, order)
    header.tensors.sort(key=lambda t: (order[t.file], t.offset))


def _inline(header: OnnxHeader, name: str, t: Any) -> Tensor:
    """A sound tensor whose values are in the graph."""
    size = nbytes_of(t)
    where = t.raw_data
    placed = t.HasField("raw_data")
    if not placed and t.data_type in TYPES:
        fields = [f for f in (TYPES[t.data_type].field,) if t.HasField(f)]
        where = getattr(t, fields[0]) if fields else where
        placed = bool(fields) and fields[0] in _RAW and where.whole
        if size is None:
            size = where.nbytes
    offset = where.start if placed else NO_PAYLOAD
    return _tensor(header, name, t, header.file, offset, size or 0)


def _tensor(header: OnnxHeader, name: str, t: Any, file: str, offset: int, nbytes: int) -> Tensor:
    return Tensor(
        name,
        dtype(t.data_type),
        tuple(t.dims),
        file,
        offset,
        nbytes,
        header.component,
        "initializer",
    )


def _external(
    header: OnnxHeader,
    folder: Folder,
    found: list[External],
    names: dict[str, str],
    order: dict[str, int],
) -> None:
    """Judge the tensors in other files and list the sound ones; each file is looked up once."""
    inside = header.file.rpartition("/")[0]
    for number, (location, tensors) in enumerate(by_location(found).items()):
        if number == MAX_FILES:
            header.broken("too-large", f"more than {MAX_FILES} data files")
        if number >= MAX_FILES:
            header.unsound += [names[e.where] for e in tensors]
            continue
        name = f"{inside}/{location}" if inside else location
        data = _data_file(header, folder, location, name, tensors)
        if data is None:
            header.unsound += [names[e.where] for e in tensors]
            continue
        header.data_files[name] = data
        order.setdefault(name, len(order))
        sound = []
        for e in tensors:
            fault = number_fault(e) if data.nbytes is None else range_fault(e, data.nbytes)
            if fault is None:
                sound.append(e)
                data.ranges.append((e.start, e.start + e.nbytes))
                t = _tensor(header, names[e.where], e.tensor, name, e.start, e.nbytes)
                header.tensors.append(t)
            else:
                header.broken(fault.reason, _text(fault), names[e.where])
                header.unsound.append(names[e.where])
        shared = []
        for fault in overlaps(sound):
            if fault.reason == "overlap":
                header.broken("overlap", f"{fault.where} {fault.text}", names[fault.where])
            else:
                shared.append(fault)
        if shared:
            more = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
            message = f"{shared[0].where} {shared[0].text}{more}"
            header.problems.append(Problem("shared", message, "info", header.file))


def _data_file(
    header: OnnxHeader, folder: Folder, location: str, name: str, tensors: list[External]
) -> DataFile | None:
    """The file that a location names; None if it may not be read, and then a problem tells why.

    A file that is not there yet does not make a tensor unsound: the graph says all of it.
    """
    shown = f"location '{printable(shorten(location, MAX_ECHO))}'"
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    users = f" ({tensors[0].where}{more})"
    fault = location_fault(location)
    if fault is not None:
        header.broken(fault[0], f"{shown} {fault[1]}{users}")
        return None
    if _is_graph_itself(folder, header.file, name):
        header.broken("own-graph", f"{shown} is the graph's own file{users}")
        return None
    try:
        return DataFile(folder.size(name))
    except NotReadable as e:
        code = {"path-escape": "symlink-out", "missing-shard": "missing"}.get(e.code, "device")
        header.broken(code, f"{shown}: {e.reason}{users}")
        return DataFile() if code == "missing" else None
    except OSError as e:
        header.broken("unreadable", f"{shown}: {e.strerror or e}{users}")
        return None


def _is_graph_itself(folder: Folder, graph: str, name: str) -> bool:
    """Whether a data file is the graph, under its own name or another: no writer makes such, and
    whoever appends to the data destroys the graph."""
    if name == graph or not folder.local:
        return name == graph
    try:
        return os.path.samefile(*(os.path.join(folder.root, n) for n in (graph, name)))
    except OSError:
        return False


def _ports(header: OnnxHeader, model: Any) -> None:
    stored = {t.name for t in model.graph.initializer}
    stored.update(s.values.name for s in model.graph.sparse_initializer)
    for role, values in (("input", model.graph.input), ("output", model.graph.output)):
        for v in values:
            if role == "output" or v.name not in stored:
                kind, shape = _port_type(v.type)
                header.ports.append(Port(v.name, kind, shape, header.file, header.component, role))


def _port_type(declared: Any) -> tuple[str, tuple[int | str | None, ...] | None]:
    """Dtype and shape of a declared type; None for a shape that is not declared or has no meaning.

    `ONNX:` and the kind of what is no tensor: `ONNX:SEQUENCE`.
    """
    kind = declared.WhichOneof("value") or "undefined"
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return f"ONNX:{kind.removesuffix('_type').upper()}", None
    tensor = getattr(declared, kind)
    name = dtype(tensor.elem_type)
    if kind == "sparse_tensor_type":
        name = f"ONNX:SPARSE_{name.removeprefix('ONNX:')}"
    if not tensor.HasField("shape"):
        return name, None
    return name, tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
    )


def _facts(header: OnnxHeader, f: Readable, model: Any, everything: Walk) -> None:
    """`metadata`: properties of the model, then what it is made of."""
    found = header.metadata
    for p in model.metadata_props:
        if len(p.value) <= MAX_PROPERTY:
            found[p.key] = _read_text(f, p.value.start, len(p.value))
        else:
            head = _read_text(f, p.value.start, _HEAD)
            found[p.key] = {"type": "text", "length": len(p.value), "head": head}
    producer = f"{model.producer_name} {model.producer_version}".strip()
    operators = Counter(
        f"{p.node.domain}::{p.node.op_type}"
        if p.node.domain not in ("", "ai.onnx")
        else p.node.op_type
        for p in everything.nodes
    )
    found["onnx.ir_version"] = model.ir_version
    opsets = model.opset_import[:MAX_LISTED]
    found["onnx.opset_import"] = {o.domain or "ai.onnx": o.version for o in opsets}
    if producer:
        found["onnx.producer"] = producer
    found["onnx.graph"] = model.graph.name
    found["onnx.nodes"] = len(everything.nodes)
    frequent = sorted(operators.items(), key=lambda row: -row[1])[:MAX_LISTED]
    found["onnx.operators"] = dict(sorted(frequent))
    if model.functions:
        found["onnx.functions"] = [f"{x.domain}::{x.name}" for x in model.functions[:MAX_LISTED]]


def _read_text(f: Readable, start: int, count: int) -> str:
    return f.read(start, count).decode(errors="replace")
