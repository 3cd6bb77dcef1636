"""A checkpoint of FP8 weights, seen as one of BF16 weights: codes times scales, when they are
read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from ..checkpoint.tensor import BITS, Checkpoint, Tensor
from ..conversion.open_files import OpenFiles
from ..errors import InputError
from . import scale_values
from .pairs import Pairs
from .to_dense import Dense

SEEN_AS = "BF16"
"""Type of a product: float32, rounded once. What comes after is the conversion of a BF16 tensor."""


@dataclass
class DenseView(Checkpoint):
    """The checkpoint with dense weights in place of codes, and without their scales.

    `file`, `offset` and the position in the order of tensors are those of the codes.

    Attributes:
        stored: what is really there.
        pairs: of codes and scales.
        statistics: what was met in each tensor that was read.
    """

    stored: Checkpoint | None = None
    pairs: Pairs | None = None
    statistics: dict[str, Any] = field(default_factory=dict)

    def is_plain(self, tensor: Tensor) -> bool:
        """Whether it is no codes."""
        assert self.pairs is not None
        return tensor.name not in self.pairs.scale_of and super().is_plain(tensor)

    def bands(self, tensor: Tensor, nbytes: int = 1 << 20) -> Iterator[bytes]:
        """As of any checkpoint; of a tensor that is codes the products, in bands of whole rows."""
        assert self.stored is not None and self.pairs is not None
        scale = self.pairs.scale_of.get(tensor.name)
        if scale is None:
            yield from super().bands(tensor, nbytes)
            return
        codes = self.stored.tensors[tensor.name]
        with OpenFiles(self.folder, self.stamps, ahead=0) as files:  # `kept_open` reads ahead
            dense = Dense(self.stored, codes, scale, self.pairs, SEEN_AS, files, self.statistics)
            for band in dense.bands():
                yield bytes(band)


@dataclass
class WatchedScales(Checkpoint):
    """The checkpoint, whose scales are looked at when they are read: those of a remote one are not
    read twice."""

    pairs: Pairs | None = None

    def is_plain(self, tensor: Tensor) -> bool:
        """Whether it is no scale."""
        assert self.pairs is not None
        return tensor.name not in self.pairs.scales and super().is_plain(tensor)

    def bands(self, tensor: Tensor, nbytes: int = 1 << 20) -> Iterator[bytes]:
        """As of any checkpoint.

        Raises:
            InputError: a scale has a value that no scale has.
        """
        assert self.pairs is not None
        watched = tensor.name in self.pairs.scales
        for piece in super().bands(tensor, nbytes):
            fault = scale_values.fault(tensor.dtype, piece) if watched else None
            if fault is not None:
                where = f"{self.source}: {tensor.file}: tensor '{tensor.name}'"
                raise InputError(f"{where}: {fault}")
            yield piece


def watched_scales(checkpoint: Checkpoint, pairs: Pairs) -> WatchedScales:
    """The checkpoint with its scales watched."""
    values = {f.name: getattr(checkpoint, f.name) for f in fields(Checkpoint)}
    return WatchedScales(**values, pairs=pairs)


def dense_view(checkpoint: Checkpoint, pairs: Pairs) -> DenseView:
    """The checkpoint with dense weights.

    Args:
        pairs: judged; tensors that are not among them stay as they are.
    """
    values = {f.name: getattr(checkpoint, f.name) for f in fields(Checkpoint)}
    tensors = {}
    for name, t in checkpoint.tensors.items():
        if name in pairs.scale_of:
            nbytes = t.params * BITS[SEEN_AS] // 8
            tensors[name] = t._replace(dtype=SEEN_AS, nbytes=nbytes)
        elif name not in pairs.scales:
            tensors[name] = t
    return DenseView(**{**values, "tensors": tensors}, stored=checkpoint, pairs=pairs)
