"""The indexer's projection of a GGUF model: two matrices there, one in every other format. Standard
library only.

`index_qk_proj` [(nx + 1) Dx, H] has the rows of the nx query heads in their order, then those of
the one key head. A row is whole in every type, those in blocks included: the bytes of the one
matrix are those of the two, one after the other.

Source: format notes, "GGUF". No command converts the payload (gguf_contract.py says why): the
contract takes names and dimensions from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...checkpoint.tensor import Checkpoint, Problem, Tensor
from ...errors import InputError, SourceNotFound, Unsupported
from .gguf_geometry import Geometry

FUSED = "model.layers.{}.self_attn.indexer.index_qk_proj.weight"
"""Name of the one matrix in a checkpoint of the text model alone."""


class Fused(NamedTuple):
    """The one matrix.

    Attributes:
        name: FUSED of its layer.
        dtype: that of both matrices, as in records.
        shape: [(nx + 1) Dx, H], outermost first.
        sources: the matrix of the queries and that of the key, in the order of their bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, int]
    sources: tuple[Tensor, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return sum(t.nbytes for t in self.sources)


def halves(g: Geometry) -> tuple[tuple[str, tuple[int, int]], tuple[str, tuple[int, int]]]:
    """(name in a block, shape, outermost first) of both matrices, in the order of their rows."""
    return (
        ("indexer.q_proj.weight", (g.nx * g.Dx, g.H)),
        ("indexer.k_proj.weight", (g.Dx, g.H)),
    )


def fuse(g: Geometry, block: int, tensors: Mapping[str, Tensor]) -> Fused:
    """What the two matrices of a block make; only their headers are looked at.

    Args:
        block: number of one with sparse attention.
        tensors: by their names in the model.
    Raises:
        SourceNotFound: a matrix is missing, or the block has no indexer.
        InputError: a matrix of another shape than the metadata give.
        Unsupported: the two have different types.
    """
    if not 0 <= block < g.L or not g.sparse[block]:
        having = [i for i, sparse in enumerate(g.sparse) if sparse]
        raise SourceNotFound(f"indexer of block {block}", found="none", expected=f"one of {having}")
    wanted = {f"blk.{block}.{name}": shape for name, shape in halves(g)}
    gone = [name for name in wanted if name not in tensors]
    if gone:
        names = " and ".join(f"'{name}'" for name in gone)
        shapes = " and ".join(str(list(wanted[name])) for name in gone)
        raise SourceNotFound(
            f"indexer of block {block}: missing {names}",
            expected=f"shape {shapes}, outermost first",
        )
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise InputError(
                f"{tensors[name].file}: tensor '{name}': shape, outermost first",
                found=list(tensors[name].shape),
                expected=list(shape),
            )
    q, k = (tensors[name] for name in wanted)
    if q.dtype != k.dtype:
        raise Unsupported(
            f"{k.file}: tensor '{k.name}': type",
            found=k.dtype,
            expected=f"{q.dtype} as '{q.name}': both are rows of one matrix",
        )
    return Fused(FUSED.format(block), q.dtype, ((g.nx + 1) * g.Dx, g.H), (q, k))


def bands(fused: Fused, checkpoint: Checkpoint, nbytes: int = 1 << 20) -> Iterator[bytes]:
    """The payload of the one matrix in pieces of at most `nbytes` bytes, in order.

    Raises:
        InputError: a file ends before the payload does.
        Unsupported: numbers are stored with their high bytes first.
    """
    if checkpoint.gguf is not None and checkpoint.gguf.big_endian:
        raise Unsupported(f"{checkpoint.source}: byte order", found="big", expected="little")
    for tensor in fused.sources:
        yield from checkpoint.bands(tensor, nbytes)


def type_problems(g: Geometry, tensors: Mapping[str, Tensor]) -> Iterator[Problem]:
    """Matrices that cannot be made one as they are stored, as warnings: of different types."""
    first, second = (name for name, _ in halves(g))
    for block in range(g.L):
        q, k = tensors.get(f"blk.{block}.{first}"), tensors.get(f"blk.{block}.{second}")
        if q is not None and k is not None and q.dtype != k.dtype:
            message = f"type: found {k.dtype}, expected {q.dtype} as '{q.name}': both are rows of "
            message += "one matrix in other formats"
            yield Problem("other-types", message, "warning", file=k.file, name=k.name)
