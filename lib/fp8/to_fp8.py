"""Dense checkpoint -> FP8 checkpoint: E4M3 codes with a BF16 scale for each block of a matrix.

Which matrices are linear layers is not written in a checkpoint. Embeddings, output heads, routers,
norms and convolutions stay as they are by their names; `modules_to_not_convert` of the result says
which did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..checkpoint.config import MAX_CONFIG
from ..checkpoint.folder import read_small
from ..checkpoint.tensor import Checkpoint, Tensor
from ..checkpoint.writer import Entry
from ..conversion.entries import copied, naming, report_row
from ..conversion.open_files import OpenFiles
from ..conversion.plan import CONFIG, SHARD_NBYTES, Plan, files_beside, new_json, shards_of
from ..conversion.run import require_whole
from ..errors import InputError, Unsupported
from .pairs import FP8, expected_grid
from .settings import read_settings, without_quantization

VALUES = frozenset(("BF16", "F16", "F32"))
KEPT = (
    *("lm_head", "*.lm_head", "*embed*", "wte", "*.wte", "wpe", "*.wpe", "*norm*", "*.ln_*"),
    *("*.gate", "*.router", "*router*", "*.shared_expert_gate", "*conv*", "*.mixer.A*"),
)
"""Modules that stay dense unless `--include` names them: embeddings, heads, routers, norms, and
convolutions, whose matrices no FP8 kernel multiplies."""
BAND = 1 << 20
_BANK = re.compile(r"(?:.*\.)?experts\.(?:gate_up_proj|gate_proj|up_proj|down_proj)")
_FUSED = re.compile(r"(?:.*\.)?experts\.gate_up_proj")


@dataclass
class Choice:
    """What the user wants.

    Attributes:
        include: patterns of tensors that are converted, KEPT or not; none: all that are not KEPT.
        exclude: patterns of tensors or modules that stay as they are.
        block: rows and columns of a block; None: one scale for each tensor.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    block: tuple[int, int] | None = (128, 128)
    shard_nbytes: int = SHARD_NBYTES


def plan(checkpoint: Checkpoint, choice: Choice, statistics: dict[str, Any]) -> Plan:
    """What a conversion to FP8 will write.

    Args:
        statistics: is filled with the errors of each converted tensor, while it is written.
    Raises:
        InputError, SourceNotFound: the files are not sound, or nothing is left to convert.
        Unsupported: not a dense safetensors checkpoint, or a bank whose blocks would span gate and
            up.
    """
    require_whole(checkpoint)
    files = OpenFiles(checkpoint.folder, checkpoint.stamps)
    listed = read_settings(checkpoint.config)
    if listed.method is not None:
        raise Unsupported(
            f"{checkpoint.source}: config.json: quant_method", found=listed.method,
            expected="a dense checkpoint", hint="convert it to bf16 first",
        )  # fmt: skip
    rows, entries, kept, tensors = [], [], [], checkpoint.tensors
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in FP8:
            what = f"{checkpoint.source}: {tensor.file}: tensor '{name}': dtype"
            raise Unsupported(what, found=tensor.dtype, expected="a dense checkpoint")
        module = name.removesuffix(".weight")
        matrix = tensor.dtype in VALUES and _is_matrix(tensor) and tensor.params > 0
        if matrix and _chosen(name, module, choice):
            quantizing = Quantizing(checkpoint, tensor, choice.block, files, statistics)
            entries += quantizing.entries()
            targets = [e.name for e in entries[-2:]]
            for other in {name + "_scale", name + "_scale_inv", targets[1]} & tensors.keys():
                what = f"{checkpoint.source}: {tensors[other].file}: tensor '{other}'"
                raise Unsupported(f"{what}: has the name of a scale of '{name}'")
            rows.append(report_row(tensor, "converted", targets, None))
            continue
        if matrix or (len(tensor.shape) > 1 and name.endswith(".weight")):
            kept.append(module)
        entries.append(copied(tensor, files))
        rows.append(report_row(tensor, "copied", [name], None))
    if not any(r["action"] == "converted" for r in rows):
        raise InputError(f"{checkpoint.source}: matrices to convert", found="none",
                         expected="at least one", hint="--include names tensors")  # fmt: skip
    return Plan(
        source=checkpoint,
        options={"convert": "fp8", "block": choice.block, "include": choice.include,
                 "exclude": choice.exclude},
        shards=shards_of(entries, choice.shard_nbytes),
        config=_config(checkpoint, choice.block, kept),
        beside=files_beside(checkpoint.folder),
        files=files,
        rows=rows,
        report={"output_weight_format": "fp8", "storage_preserving": False, "native_fp8": False,
                "dtype": "F8_E4M3", "weight_block_size": choice.block},
    )  # fmt: skip


def _is_matrix(tensor: Tensor) -> bool:
    if len(tensor.shape) == 2:
        return tensor.name.endswith(".weight")
    return len(tensor.shape) == 3 and _BANK.fullmatch(tensor.name) is not None


def _chosen(name: str, module: str, choice: Choice) -> bool:
    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(name, g) or fnmatchcase(module, g) for g in patterns)

    if matches(choice.exclude):
        return False
    return matches(choice.include) if choice.include else not matches(KEPT)


def _config(checkpoint: Checkpoint, block: tuple[int, int] | None, kept: list[str]) -> bytes | None:
    if checkpoint.config_hash is None:
        return None
    values = without_quantization(json.loads(read_small(checkpoint.folder, CONFIG, MAX_CONFIG)))
    values["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": list(block) if block else None,
        "modules_to_not_convert": kept,
    }
    return new_json(values)


class Quantizing:
    """One matrix, or one bank of them, on its way to FP8."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tensor: Tensor,
        block: tuple[int, int] | None,
        files: OpenFiles,
        statistics: dict[str, Any],
    ) -> None:
        self.tensor, self._block = tensor, block
        self._files, self._statistics = files, statistics
        self._where = f"{checkpoint.source}: {tensor.file}"
        self._what = f"{self._where}: tensor '{tensor.name}'"
        self._stored: bytes | None = None
        if block and _FUSED.fullmatch(tensor.name) and (tensor.shape[1] // 2) % block[0]:
            raise Unsupported(
                f"{self._what}: rows of gate and of up", found=tensor.shape[1] // 2,
                expected=f"a multiple of {block[0]}: no block may span both",
                hint="ntool convert-experts --to split, or another --block",
            )  # fmt: skip

    def entries(self) -> list[Entry]:
        """Codes, and their scales."""
        t = self.tensor
        grid = expected_grid(t.shape, self._block) or ()
        count = 1
        for d in grid:
            count *= d
        end = "_scale_inv" if self._block else "_scale"
        return [
            Entry(t.name, "F8_E4M3", t.shape, t.params, bands=self.codes),
            Entry(f"{t.name}{end}", "BF16", grid, 2 * count, bands=self.scales),
        ]

    def _quantizer(self, met: Any = None) -> Any:
        from ..numeric.blocks import blocks_of
        from ..numeric.quantize import Quantizer

        grid = expected_grid(self.tensor.shape, self._block) or ()
        blocks = blocks_of(self.tensor.shape, grid, self._block, self._what)
        return Quantizer(blocks, self.tensor.dtype, name=self.tensor.name, met=met)

    def codes(self) -> Iterator[memoryview]:
        """The codes; what they lost is noted when they are done.

        Raises:
            InputError: a value is not finite, or the source ends early.
        """
        from ..numeric.quantize import Quantized

        met = Quantized()
        quantizer = self._quantizer(met)
        found = []
        with naming(self._where):
            given = self._one_scale(quantizer) if self._block is None else None
            for row, band in self._bands(quantizer.blocks):
                codes, scales = quantizer.rows(band, row, scales=given)
                found.append(scales)
                yield memoryview(codes.data).cast("B")
        parts = [given] if given is not None else found
        self._stored = b"".join(s.astype("<u2").tobytes() for s in parts)
        self._statistics[self.tensor.name] = met.fields()

    def scales(self) -> Iterator[bytes]:
        """The scales that the codes were made with; worked out again where the codes are in
        another process's share."""
        if self._stored is None:
            for _ in self.codes():
                pass
        assert self._stored is not None
        yield self._stored
        self._stored = None

    def _one_scale(self, quantizer: Any) -> Any:
        """The scale of the whole tensor, which takes a pass of its own."""
        import numpy as np

        from ..numeric.quantize import stored_scales

        largest = [quantizer.largest(band, row).max(initial=0) for row, band in
                   self._bands(quantizer.blocks)]  # fmt: skip
        return stored_scales(np.asarray([max(largest, default=0)], "<f4"))

    def _bands(self, blocks: Any) -> Iterator[tuple[int, bytes]]:
        """(first row, bytes) of bands of whole rows of blocks."""
        t, f = self.tensor, self._files(self.tensor.file)
        width = t.nbytes // max(blocks.total_rows, 1)
        step = max(BAND // max(width, 1), 1)
        if blocks.scalar:
            spans: Any = ((r, min(r + step, blocks.total_rows))
                          for r in range(0, blocks.total_rows, step))  # fmt: skip
        else:
            spans = blocks.spans(0, blocks.total_rows, max(step, blocks.block[0]), step)
        for row, stop in spans:
            piece = f.read(t.offset + row * width, (stop - row) * width)
            if len(piece) != (stop - row) * width:
                raise InputError(f"{self._what}: ends early, bytes", found=len(piece),
                                 expected=(stop - row) * width)  # fmt: skip
            yield row, piece
