"""External tensors: what a graph says of bytes in other files, judged before a file is opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import printable
from .onnx_rules import Fault
from .onnx_types import nbytes, type_name
from .paths import path_fault

if TYPE_CHECKING:
    from onnx import TensorProto

_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)
MAX_OFFSET = 2**63 - 1
_EXTERNAL = 1


@dataclass(frozen=True)
class External:
    """One tensor whose bytes are in another file.

    Attributes:
        where: path of the tensor in its graph, for messages.
        offset, length: as given; None where absent or not a number (`numbers` says which).
        nbytes: what type and shape need.
    """

    where: str
    tensor: TensorProto
    location: str
    offset: int | None
    length: int | None
    checksum: str | None
    nbytes: int
    numbers: tuple[str, ...] = ()

    @property
    def start(self) -> int:
        """First byte of the payload; an absent offset means 0."""
        return self.offset or 0


def externals(tensors: Iterable[tuple[str, TensorProto]]) -> list[External]:
    """The external ones of tensors without `tensor_faults`; (path, tensor) as `Walk` has them."""
    found = []
    for where, tensor in tensors:
        if tensor.data_location != _EXTERNAL:
            continue
        given = {e.key: e.value for e in tensor.external_data}
        wrong = []
        values: dict[str, int | None] = {}
        for key in ("offset", "length"):
            text = given.get(key)
            values[key] = None
            if text is not None:
                if _DIGITS.fullmatch(text) and int(text) <= MAX_OFFSET:
                    values[key] = int(text)
                else:
                    wrong.append(f"{key} '{printable(text[:40])}'")
        size = nbytes(tensor)
        assert size is not None, "tensor_faults lets no external string pass"
        found.append(
            External(
                where,
                tensor,
                given["location"],
                values["offset"],
                values["length"],
                given.get("checksum"),
                size,
                tuple(wrong),
            )
        )
    return found


def by_location(found: Iterable[External]) -> dict[str, list[External]]:
    """External tensors by location, in order of first mention."""
    files: dict[str, list[External]] = {}
    for e in found:
        files.setdefault(e.location, []).append(e)
    return files


def location_fault(location: str) -> tuple[str, str] | None:
    """(reason, text) why a location is refused by its grammar alone, or None.

    Readers cut at NUL, Windows takes backslashes and drives and drops trailing dots and spaces:
    such a location would name different files in different programs.
    """
    if "\0" in location:
        return "nul", "holds a NUL byte"
    text = path_fault(location)
    if text is not None:
        reasons = {
            "is empty": "empty",
            "is absolute": "absolute",
            "holds a control character": "control-character",
            "holds a lone surrogate": "control-character",
            "holds a backslash": "backslash",
            "begins with a drive letter": "drive",
            "has the segment '..'": "traversal",
        }
        return reasons.get(text, "segment"), text
    if any(s.endswith((".", " ")) or s.startswith(" ") for s in location.split("/")):
        return "trailing-dot", "has a part that ends in a dot or begins or ends in a space"
    if ":" in location:
        return "drive", "holds a colon"
    return None


def number_fault(e: External) -> Fault | None:
    """Offset or length is no decimal number, or the length is not that of type and shape."""
    if e.numbers:
        expected = "decimal digits, at most 2^63 - 1"
        return Fault("bad-number", e.where, ", ".join(e.numbers), expected)
    if e.length is not None and e.length != e.nbytes:
        text = f"length in {e.location}, bytes"
        expected = f"{e.nbytes} for {type_name(e.tensor.data_type)} {list(e.tensor.dims)}"
        return Fault("length", e.where, text, expected, e.length)
    return None


def range_fault(e: External, size: int) -> Fault | None:
    """`number_fault`, or the bytes are not all in the file, which has `size`.

    Without a length the bytes are those that type and shape need; what follows them in the file
    may belong to others.
    """
    fault = number_fault(e)
    if fault is None and e.start + e.nbytes > size:
        text = f"bytes {e.start}..{e.start + e.nbytes} of {e.location}, which has {size}"
        fault = Fault("out-of-range", e.where, text, f"<= {size}", e.start + e.nbytes)
    return fault


def overlaps(tensors: Iterable[External]) -> Iterator[Fault]:
    """Tensors of one file that have bytes in common: `overlap`, or `shared` if they have all."""
    ordered = sorted((e for e in tensors if e.nbytes), key=lambda e: (e.start, e.nbytes))
    last: External | None = None
    for e in ordered:
        if last is not None and e.start < last.start + last.nbytes:
            same = (e.start, e.nbytes) == (last.start, last.nbytes)
            text = f"and {last.where} share bytes of {e.location} from {e.start} on"
            yield Fault("shared" if same else "overlap", e.where, text)
        if last is None or e.start + e.nbytes > last.start + last.nbytes:
            last = e
