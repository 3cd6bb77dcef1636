"""FP8 checkpoint -> dense checkpoint: which tensor becomes what, decided from headers and scales.

Codes times scales in float32, rounded once to nearest even. All other tensors keep their bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..checkpoint.config import MAX_CONFIG
from ..checkpoint.folder import read_small
from ..checkpoint.tensor import BITS, Checkpoint, Problem, Tensor
from ..checkpoint.writer import Entry
from ..conversion.entries import copied, naming, report_row
from ..conversion.open_files import OpenFiles
from ..conversion.plan import CONFIG, SHARD_NBYTES, Plan, files_beside, new_json, shards_of
from ..conversion.run import require_whole
from ..errors import InputError, Unsupported
from . import scale_values, skip_list
from .forms import Form, form_of
from .pairs import FP8, Pairs, is_scale, pair
from .settings import read_settings, without_quantization

DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
BAND = 1 << 18
"""Bytes of codes that are read at a time, at least one row. Larger reads and writes take fresh
memory each time, which costs more than the calls they save."""
_PACKED = frozenset(("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", *FP8))
_ACTIVATIONS = (
    *(".input_scale", ".input_scale_inv", ".activation_scale", ".act_scale", ".output_scale"),
    *(".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale", ".prob_output_scale"),
)
"""Scales of what flows through a quantised layer, and of quantised caches."""
METHODS = (None, "fp8", "compressed-tensors", "modelopt", "fbgemm_fp8", "quark")
"""Values of `quant_method` that FP8 weights come with; others are refused by name."""
_INTEGERS = frozenset(("U8", "I8", "I32", "U32", "I16", "U16", "I64"))
_OTHER = re.compile(
    r"\.(?:qweight|qzeros|g_idx|weight_packed|weight_zero_point|absmax|quant_map|SCB)$"
    r"|_blocks$|\.quant_state\."
)


@dataclass
class Choice:
    """What the user wants of a conversion.

    Attributes:
        to: a key of DTYPES.
        include, exclude: patterns of tensor names; what does not match is left out.
        unscaled: patterns of FP8 tensors that may lack a scale; their codes are the values.
        shard_nbytes: size of a shard.
    """

    to: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()
    shard_nbytes: int = SHARD_NBYTES


class Refused(InputError):
    """The checkpoint cannot be converted.

    Attributes:
        problems: everything wrong with it.
    """

    def __init__(self, message: str, problems: list[Problem]) -> None:
        super().__init__(message)
        self.problems = problems


@dataclass
class Judged:
    """Pairs of a checkpoint that can be converted, and what is odd about them."""

    pairs: Pairs
    warnings: list[Problem] = field(default_factory=list)


def judge(checkpoint: Checkpoint, unscaled: tuple[str, ...] = ()) -> Judged:
    """Pair codes and scales, and look at the values of the scales.

    Raises:
        Refused: anything is wrong: a scale is missing, left over, of another shape, not finite; a
            block size or skip list that contradicts the tensors.
        InputError, SourceNotFound: the files are not sound.
        Unsupported: not a safetensors checkpoint, or of another quantisation.
    """
    require_whole(checkpoint)
    settings = read_settings(checkpoint.config)
    if settings.method not in METHODS:
        known = " or ".join(m for m in METHODS if m)
        what = f"{checkpoint.source}: config.json: quant_method"
        raise Unsupported(what, found=settings.method, expected=known)
    tensors = list(checkpoint.tensors.values())
    pairs = pair(tensors, settings)
    problems = [p for p in pairs.problems if not _allowed(p, unscaled)]
    if pairs.settings.listed:
        problems += skip_list.judge(pairs, tensors, checkpoint.tensors.keys()).problems
    if checkpoint.folder.local:  # of a remote one each scale is looked at when it is used
        problems += scale_values.check(checkpoint.folder, pairs.scales.values())[1]
    errors = [p for p in problems if p.severity == "error"]
    if errors:
        first = errors[0]
        where = ": ".join(x for x in (first.file, first.name, first.message) if x)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise Refused(f"{checkpoint.source}: {where}{more}", problems)
    return Judged(pairs, problems)


def _allowed(problem: Problem, unscaled: tuple[str, ...]) -> bool:
    return problem.code == "missing-scale" and any(
        fnmatchcase(problem.name or "", g) for g in unscaled
    )


def plan(checkpoint: Checkpoint, choice: Choice, statistics: dict[str, Any]) -> Plan:
    """What a conversion to a dense checkpoint will write.

    Args:
        statistics: is filled with what each converted tensor met, while it is written.
    Raises:
        Refused, Unsupported: as `judge`; or a tensor of a quantisation that is not FP8.
    """
    return plan_of(checkpoint, choice, judge(checkpoint, choice.unscaled), statistics)


def plan_of(
    checkpoint: Checkpoint, choice: Choice, judged: Judged, statistics: dict[str, Any]
) -> Plan:
    """`plan` of a checkpoint that was judged."""
    files = OpenFiles(checkpoint.folder, checkpoint.stamps)
    pairs, to = judged.pairs, DTYPES[choice.to]
    wanted = _wanted(choice)
    rows, entries = [], []
    proofs: dict[str, Callable[[], Iterator[bytes]]] = {}
    users = {pairs.scale_of[w] for w in pairs.scale_of if wanted(w)}
    for name, tensor in checkpoint.tensors.items():
        scale = pairs.scale_of.get(name)
        if name in pairs.scales:
            used = name in users
            reason = "multiplied into its weights" if used else "its weights are left out"
            rows.append(report_row(tensor, "scale-consumed" if used else "excluded", [], reason))
        elif not wanted(name):
            rows.append(report_row(tensor, "excluded", [], "--include or --exclude"))
        elif tensor.dtype in FP8 and (scale is not None or name in pairs.unpaired):
            converter = Dense(checkpoint, tensor, scale, pairs, to, files, statistics)
            nbytes = tensor.params * BITS[to] // 8
            entries.append(Entry(name, to, tensor.shape, nbytes, bands=converter.bands))
            proofs[name] = converter.proof
            rows.append(report_row(tensor, "converted", [name], None, scale))
        elif name.endswith(_ACTIVATIONS):
            rows.append(
                report_row(tensor, "excluded", [], "scale of activations of a quantised layer")
            )
        else:
            _require_plain(checkpoint, tensor)
            entries.append(copied(tensor, files))
            rows.append(report_row(tensor, "copied", [name], None))
    return Plan(
        source=checkpoint,
        options={"convert": "dense", "to": to, "include": choice.include,
                 "exclude": choice.exclude, "unscaled": choice.unscaled},
        shards=shards_of(entries, choice.shard_nbytes),
        config=_config(checkpoint),
        beside=files_beside(checkpoint.folder),
        files=files,
        rows=rows,
        report={"output_weight_format": "dense", "storage_preserving": False,
                "native_fp8": False, "dtype": to},
        proofs=proofs,
    )  # fmt: skip


def _wanted(choice: Choice) -> Callable[[str], bool]:
    def wanted(name: str) -> bool:
        if choice.include and not any(fnmatchcase(name, g) for g in choice.include):
            return False
        return not any(fnmatchcase(name, g) for g in choice.exclude)

    return wanted


def _require_plain(checkpoint: Checkpoint, tensor: Tensor) -> None:
    """Refuse what would stay quantised, or stay behind, in a checkpoint that says it is dense.

    Raises:
        Unsupported: names the tensor.
    """
    if tensor.dtype in _PACKED:
        what = f"{checkpoint.source}: {tensor.file}: tensor '{tensor.name}': dtype"
        raise Unsupported(what, found=tensor.dtype, expected="FP8 weights with their scales")
    other = _OTHER.search(tensor.name)
    if other and tensor.dtype in _INTEGERS:
        what = f"{checkpoint.source}: {tensor.file}: tensor '{tensor.name}'"
        raise Unsupported(f"{what}: '{other[0]}' of another quantisation than FP8")
    if is_scale(tensor.name) and tensor.name.removesuffix("_scale") in checkpoint.tensors:
        what = f"{checkpoint.source}: {tensor.file}: tensor '{tensor.name}'"
        raise Unsupported(f"{what}: a scale of another quantisation than FP8")


def _config(checkpoint: Checkpoint) -> bytes | None:
    """config.json without its quantisation, whatever level it stands at."""
    if checkpoint.config_hash is None:
        return None
    values = json.loads(read_small(checkpoint.folder, CONFIG, MAX_CONFIG))
    return new_json(without_quantization(values))


class Dense:
    """One FP8 tensor on its way to dense values.

    Args:
        scale: name of its scale, None for a tensor without one.
        to: dtype of the result.
        statistics: gets an entry for the tensor when it is done.
    """

    __slots__ = ("_block", "_files", "_root", "_scale", "_statistics", "tensor", "to")

    def __init__(
        self,
        checkpoint: Checkpoint,
        tensor: Tensor,
        scale: str | None,
        pairs: Pairs,
        to: str,
        files: OpenFiles,
        statistics: dict[str, Any],
    ) -> None:
        self.tensor, self.to = tensor, to
        self._scale = pairs.scales[scale] if scale is not None else None
        self._block = pairs.settings.block
        self._files, self._statistics = files, statistics
        self._root = checkpoint.source

    @property
    def _where(self) -> str:
        return f"{self._root}: {self.tensor.file}"

    @property
    def _what(self) -> str:
        return f"{self._where}: tensor '{self.tensor.name}'"

    def bands(self) -> Iterator[bytes | memoryview]:
        """The payload of the result, in bands of whole rows.

        Raises:
            InputError: the codes end early, or a product is beyond the range of the result's type.
        """
        from ..numeric.dequantize import Dequantized, Dequantizer, dequantize

        t, met = self.tensor, Dequantized()
        if not t.params:
            return
        scales, blocks, fmt = self.scales()
        dequantizer = Dequantizer(scales, blocks, self.to, fmt, met)
        with naming(self._where):
            yield from dequantize(self.codes(blocks), dequantizer, t.name)
        found = {k: v for k, v in vars(met).items() if v}
        if found:
            self._statistics[t.name] = found

    def proof(self) -> Iterator[bytes]:
        """The payload again, by the formula as it is written: code times scale in float32, rounded
        once. Slow, and shares no table with `bands`."""
        import numpy as np

        from ..numeric.dequantize import narrow

        if not self.tensor.params:
            return
        scales, blocks, fmt = self.scales()
        grid = np.asarray(scales, "<f4").reshape(-1, max(blocks.grid[1], 1))
        columns = np.arange(blocks.columns) // blocks.block[1]
        row = 0
        for piece in self.codes(blocks):
            codes = np.frombuffer(piece, np.uint8).reshape(-1, max(blocks.columns, 1))
            owners = grid[blocks.scale_rows(row, row + len(codes))][:, columns]
            with np.errstate(all="ignore"):
                yield narrow(fmt.values[codes] * owners, self.to).tobytes()
            row += len(codes)

    def codes(self, blocks: Any) -> Iterator[bytes]:
        """The codes, in bands that end with a row of blocks where one fits."""
        t, f = self.tensor, self._files(self.tensor.file)
        row = max(blocks.columns, 1)
        step = max(BAND // row, 1)
        if blocks.block[0] <= step:
            step -= step % blocks.block[0]
        for at in range(0, t.nbytes, step * row):
            want = min(step * row, t.nbytes - at)
            piece = f.read(t.offset + at, want)
            if len(piece) != want:
                raise InputError(f"{self._what}: ends early, bytes", found=at + len(piece),
                                 expected=t.nbytes)  # fmt: skip
            yield piece

    def scales(self) -> tuple[Any, Any, Any]:
        """Scales as float32, how they lie over the codes, and the codes' format.

        Raises:
            InputError: they end early, or their grid does not fit.
            Unsupported: not a format of codes that is read.
        """
        import numpy as np

        from ..numeric.blocks import blocks_of, scale_facts
        from ..numeric.float8 import E4M3, E5M2, scales_to_f32

        t, s = self.tensor, self._scale
        formats = {"F8_E4M3": E4M3, "F8_E5M2": E5M2}
        if t.dtype not in formats:
            raise Unsupported(f"{self._what}: dtype", found=t.dtype, expected="F8_E4M3 or F8_E5M2")
        if s is None:
            return np.ones(1, "<f4"), self._whole(), formats[t.dtype]
        raw = self._files(s.file).read(s.offset, s.nbytes)
        if len(raw) != s.nbytes:
            raise InputError(f"{s.file}: tensor '{s.name}': ends early, bytes", found=len(raw),
                             expected=s.nbytes)  # fmt: skip
        values = scales_to_f32(raw, s.dtype, f"{s.file}: tensor '{s.name}'")
        if facts := scale_facts(values).not_finite:
            raise InputError(f"{s.file}: tensor '{s.name}': values that are not finite",
                             found=facts, expected="none")  # fmt: skip
        form = form_of(t.shape, s.shape, self._block)
        if form.kind == "tensor":
            return values, self._whole(), formats[t.dtype]
        grid, block = self._layout(t.shape, form, s.shape)
        return values, blocks_of(t.shape, grid, block, self._what), formats[t.dtype]

    def _layout(
        self, shape: tuple[int, ...], form: Form, grid: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, int] | None]:
        """The grid with all its axes, and the block that it is of."""
        if form.kind == "block":
            return grid, form.block
        if form.kind == "matrix":
            return (shape[0], 1, 1), (shape[1], shape[2])
        if form.kind == "half":  # gate and up of a fused bank have one scale each
            return grid, (shape[1] // 2, shape[2])
        if form.kind == "row":
            return (*shape[:-1], 1), (1, shape[-1])
        return (), None

    def _whole(self) -> Any:
        """One scale for all: how the elements are cut into rows is free, so no row is long."""
        from ..numeric.blocks import Blocks

        n = self.tensor.params
        columns = self.tensor.shape[-1] if self.tensor.shape else 1
        if not 0 < columns <= BAND:
            columns = math.gcd(n, BAND)
        return Blocks(1, n // columns, columns, (n // columns, columns), scalar=True)
