"""What all conversions do with a tensor: copy it, and say what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..checkpoint.folder import Readable
from ..checkpoint.tensor import Tensor
from ..checkpoint.writer import Entry
from ..errors import InputError
from .open_files import OpenFiles


def copied(tensor: Tensor, files: OpenFiles) -> Entry:
    """An entry whose bytes are those of a source tensor."""

    def copies() -> Iterator[tuple[Readable, int, int]]:
        yield files(tensor.file), tensor.offset, tensor.nbytes

    return Entry(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, copies=copies)


def report_row(
    tensor: Tensor, action: str, targets: list[str], reason: str | None, scale: str | None = None
) -> dict[str, Any]:
    """A row of the report.

    Args:
        action: `converted`, `copied`, `scale-consumed` or `excluded`.
        targets: tensors of the result that hold it.
        reason: of what is not obvious.
        scale: name of the scale that was used.
    """
    out: dict[str, Any] = {
        "name": tensor.name,
        "action": action,
        "targets": targets,
        "source": {"file": tensor.file, "offset": tensor.offset, "nbytes": tensor.nbytes,
                   "dtype": tensor.dtype},
    }  # fmt: skip
    if scale is not None:
        out["scale"] = scale
    if reason is not None:
        out["reason"] = reason
    return out


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Errors of kernels, which know a tensor but not its file, with source and file in front."""
    try:
        yield
    except InputError as e:
        if e.message.startswith(where):
            raise
        raise InputError(f"{where}: {e.message}") from e
