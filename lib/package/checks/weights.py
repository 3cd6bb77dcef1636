"""weights.*: where every number comes from, and whether it can be right. Payloads are streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ...checkpoint.onnx_external import External
from ...checkpoint.onnx_types import type_name
from ...checkpoint.regular_file import OpenFile, open_regular
from ...checkpoint.tensor import BITS, Checkpoint
from ...errors import InputError, NtoolError, SourceNotFound, Unsupported
from ...families import MODULES
from ...progress import BYTES, tracked
from ..abi import family_module
from .data import safetensors_name
from .external import locate
from .subject import MAX_LISTED, Check, Finding, Part, Subject, bad, not_applicable, warn

if TYPE_CHECKING:
    from ...numeric.convert import Band
    from ..bindings import Binding

_FLOATS: dict[str, Any] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
_NONFINITE = {"F64": "<u8", "F32": "<u4", "F16": "<u2", "BF16": "<u2"}
_EXPONENT = {
    "F64": 0x7FF0000000000000, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80,
}  # fmt: skip


def sane(subject: Subject, part: Part) -> list[Finding]:
    """No weight holds NaN or infinity, no matrix is all zero (unless so in --against)."""
    findings = []
    source = open_source(subject)
    # other tools store masks of infinities and buffers of zeros
    report = bad if subject.is_package else warn
    for e in tracked(part.externals, _bytes(part.externals), "reading", BYTES, _nbytes):
        dtype = safetensors_name(e.tensor.data_type)
        if dtype not in _FLOATS:
            continue
        real, _ = locate(part, e.location, bare=subject.is_package)
        assert real is not None, "data.path holds"
        fault = _insane(_bands(real, e), dtype, e)
        if fault is None:
            continue
        if source is not None and source.is_insane(e):
            continue
        text = f"{part.file}: {e.where}: {fault[1]}"
        findings.append(report(text, *fault[2:], reason=fault[0]))
    return findings[:MAX_LISTED]


def _nbytes(e: External) -> int:
    return e.nbytes


def _bytes(externals: Iterable[External]) -> int:
    return sum(map(_nbytes, externals))


def _bands(real: str, e: External) -> Iterator[Band]:
    with open_regular(real, e.location) as f:
        yield from f.bands(e.start, e.nbytes)


def _insane(bands: Iterable[Band], dtype: str, e: External) -> tuple[str, str, Any, Any] | None:
    """(reason, text, expected, actual), or None for sound numbers. Bands hold whole elements."""
    wrong, first, zero, at = 0, None, True, 0
    for band in bands:
        if dtype in _NONFINITE:
            # on the codes: all exponent bits set means infinity or NaN, whatever the sign
            codes = np.frombuffer(band, _NONFINITE[dtype])
            mask = codes.dtype.type(_EXPONENT[dtype])
            exponents = codes & mask
            sound = exponents.max(initial=0) != mask
            odd = exponents == mask if not sound else None
        else:
            codes = np.frombuffer(band, np.uint8)
            odd = ~np.isfinite(codes.view(_FLOATS[dtype]).astype(np.float32))
        count = 0 if odd is None else int(np.count_nonzero(odd))
        if odd is not None and count and first is None:
            first = at + int(odd.argmax())
        wrong += count
        if zero:
            sign = codes.dtype.type(1 << (codes.itemsize * 8 - 1))
            zero = not np.any(codes & ~sign)
        at += codes.size
    if wrong:
        text = f"{wrong} of {at} values are NaN or infinite, the first at flat index {first}"
        return "not-finite", text, 0, wrong
    if zero and at > 1 and len(e.tensor.dims) >= 2:
        return "all-zero", f"all {at} values of the matrix are zero", None, 0
    return None


def _opened(source: str) -> Checkpoint:
    from ...checkpoint.source import open_checkpoint
    from ...families import gguf

    checkpoint = open_checkpoint(source)
    if checkpoint.format == "package":
        raise Unsupported(
            f"--against {source}: is a package",
            expected="a checkpoint",
            hint="give the checkpoint that it was made of",
        )
    gguf.refuse_payload(checkpoint)
    checkpoint.refuse_if_broken()
    return checkpoint


class _Source:
    """The checkpoint of --against, with its family's renames."""

    def __init__(self, source: str, manifest: dict[str, Any]) -> None:
        from ...families import find
        from ..bindings import Bindings

        self.checkpoint = _opened(source)
        self.family: str | None = find(self.checkpoint.config, f"{source}: config.json").NAME
        abi = family_module(self.family, "abi")
        if abi is None:
            raise Unsupported(f"{source}: packages of family {self.family}")
        self._bindings = Bindings(self.checkpoint)
        if self.family == manifest.get("family"):  # else `open_source` refuses it
            self.checkpoint, rename = abi.source(self.checkpoint, manifest)
            self._bindings = Bindings(self.checkpoint, rename)

    def bind(self, e: External) -> Binding:
        """What the exporter would take a parameter's bytes from; raises as `Bindings.claim`
        does."""
        self._bindings.claim(e.tensor.name, tuple(e.tensor.dims), e.tensor.data_type)
        return self._bindings.bound[e.tensor.name]

    def wanted(self, binding: Binding) -> Iterator[Band]:
        """The bytes that the parameter must have."""
        from ...numeric import convert

        for tensor in binding.sources:
            yield from convert.convert(self.checkpoint.bands(tensor), tensor.dtype, binding.dtype)

    def is_insane(self, e: External) -> bool:
        """Whether the checkpoint itself holds such numbers for a parameter."""
        try:
            binding = self.bind(e)
        except NtoolError:
            return False
        return _insane(self.wanted(binding), binding.dtype, e) is not None


class _Kept(_Source):
    """The checkpoint of --against, for a package that keeps tensors as they are, by their names."""

    def __init__(self, source: str, manifest: dict[str, Any]) -> None:
        from ...families.recognise import recognise

        self.checkpoint = _opened(source)
        self.family = recognise(self.checkpoint.config, self.checkpoint.tensors.keys())

    def bind(self, e: External) -> Binding:
        from ..bindings import Binding

        name, shape = e.tensor.name, tuple(e.tensor.dims)
        t = self.checkpoint.tensors.get(name)
        if t is None:
            raise SourceNotFound(f"{self.checkpoint.source}: tensor '{name}' is missing")
        stored = safetensors_name(e.tensor.data_type)
        # exponents of scales are bytes in a graph, see docs of convert-fp8
        if (t.shape, "U8" if t.dtype == "F8_E8M0" else t.dtype) != (shape, stored):
            raise InputError(f"{t.file}: tensor '{name}': dtype and shape",
                             found=[stored, list(shape)],
                             expected=[t.dtype, list(t.shape)])  # fmt: skip
        return Binding(name, shape, (t,), stored)

    def wanted(self, binding: Binding) -> Iterator[Band]:
        yield from self.checkpoint.bands(binding.sources[0])


class _Named(_Source):
    """The checkpoint of --against, for graphs of another tool: names say what belongs together."""

    def __init__(self, source: str, manifest: dict[str, Any]) -> None:
        from ..bindings import DTYPES, Bindings

        self.checkpoint = _opened(source)
        self.family = None
        self._bindings, self._known = Bindings(self.checkpoint), DTYPES

    def has(self, e: External) -> bool:
        """Whether there is a tensor of a parameter's name."""
        return e.tensor.name in self.checkpoint.tensors

    def bind(self, e: External) -> Binding:
        if e.tensor.data_type not in self._known:
            raise Unsupported(f"'{e.tensor.name}': {type_name(e.tensor.data_type)} of a checkpoint")
        return super().bind(e)


def open_source(subject: Subject) -> _Source | None:
    """The checkpoint of --against, opened once; None without the option.

    Raises:
        NtoolError: it cannot be opened, or is not of the package's family (if that is a known one:
            what else package.json says is for layout.schema to judge).
    """
    against = subject.options.against
    if against is None:
        return None
    kept: dict[str, _Source] = subject.__dict__.setdefault("_sources", {})
    if against not in kept:
        kind = _Kept if subject.weights_only else _Source if subject.is_package else _Named
        source = kind(against, subject.manifest or {})
        if subject.family != source.family and subject.family in MODULES.values():
            expected = f"{subject.family}, as the package"
            raise InputError(f"{against}: family", found=source.family, expected=expected)
        kept[against] = source
    return kept[against]


def values(subject: Subject, part: Part) -> list[Finding]:
    """Each weight is byte for byte what conversion of the checkpoint's tensor gives."""
    source = open_source(subject)
    if source is None:
        return [not_applicable("no --against SOURCE")]
    findings = []
    compared = 0
    named = part.externals
    if isinstance(source, _Named):
        named = [e for e in named if source.has(e)]
        if not named:
            return [
                not_applicable(f"no weight has the name of a tensor of {source.checkpoint.source}")
            ]
    for e in tracked(named, _bytes(named), "comparing", BYTES, _nbytes):
        where = f"{part.file}: {e.where}"
        dtype = safetensors_name(e.tensor.data_type)
        try:
            binding = source.bind(e)
        except NtoolError as error:
            findings.append(bad(f"{where}: {error.message}", reason="no-source"))
            continue
        real, _ = locate(part, e.location, bare=subject.is_package)
        assert real is not None, "data.path holds"
        with open_regular(real, e.location) as f:
            at = _first_difference(source.wanted(binding), f, e)
        compared += e.nbytes
        if at is not None:
            index = at * 8 // BITS[dtype]
            first = binding.sources[0]
            text = f"{where}: differs from {first.name} ({first.dtype}) at flat index {index}"
            findings.append(bad(text, "equal bytes", f"byte {at}", reason="value"))
    if findings:
        return findings[:MAX_LISTED]
    text = f"{compared} bytes equal to {subject.options.against}"
    if len(named) < len(part.externals):
        text += f"; {len(part.externals) - len(named)} weights of other names were not compared"
    return [Finding(True, text, compared, compared)]


def _first_difference(wanted: Iterable[Band], f: OpenFile, e: External) -> int | None:
    """First byte of a tensor that is not as wanted; None if all are.

    Bands are read into one buffer for each of their few sizes, and compared as a whole: memcmp.
    """
    buffers: dict[int, bytearray] = {}
    at = 0
    for band in wanted:
        n = memoryview(band).nbytes
        if not n:
            continue
        found = buffers.get(n)
        if found is None:
            if len(buffers) > 2:
                buffers.clear()
            found = buffers[n] = bytearray(n)
        count = f.read_into(e.start + at, found) if at + n <= e.nbytes else 0
        if count != n or found != band:
            x, y = np.frombuffer(band, np.uint8)[:count], np.frombuffer(found, np.uint8)[:count]
            return at + (int((x != y).argmax()) if (x != y).any() else count)
        at += n
    return None if at == e.nbytes else at


_DATA = ("graph.parse", "data.path", "data.bounds", "layout.schema")
CHECKS = (
    Check("weights.values", "weights equal the source", values, _DATA, plain=True),
    Check("weights.sane", "finite, no matrix of zeros", sane, _DATA, plain=True),
)
