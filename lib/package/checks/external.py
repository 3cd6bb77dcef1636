"""External tensors: what a graph says of bytes in other files, judged before a file is opened."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from onnx import TensorProto

from ...checkpoint.paths import contained, path_fault
from ...errors import printable
from .parse import nbytes
from .subject import Finding, Part, bad, warn

_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)
MAX_OFFSET = 2**63 - 1


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


def externals(part: Part) -> list[External]:
    """All external tensors of a component whose graph.parse holds."""
    found = []
    for where, tensor in part.walk.tensors:
        if tensor.data_location != TensorProto.EXTERNAL:
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
        assert size is not None, "graph.parse lets no external string pass"
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


def locate(part: Part, location: str, *, bare: bool) -> tuple[str | None, list[Finding]]:
    """Absolute path of a location's file, or None; and all that data.path says of it.

    Args:
        bare: only a file name in the graph's own folder is right (the rule for packages).
    """
    name = f"{part.file}: location '{printable(location)}'"
    fault = location_fault(location)
    if fault is not None:
        expected = "a plain relative path in the graph's folder"
        return None, [bad(f"{name} {fault[1]}", expected, printable(location), reason=fault[0])]
    if bare and "/" in location:
        text = f"{name} is not a bare file name"
        return None, [bad(text, "a file beside the graph", location, reason="subfolder")]
    real, problem = contained(part.folder, location)
    if problem is not None:
        reason = "symlink-out" if problem.code == "path-escape" else "missing"
        message = "leads outside the graph's folder" if reason == "symlink-out" else problem.message
        return None, [bad(f"{name}: {message}", reason=reason)]
    try:
        status = os.lstat(real)
    except OSError as e:
        return None, [bad(f"{name}: {e.strerror}", reason="missing")]
    if not stat.S_ISREG(status.st_mode):
        return None, [bad(f"{name} is not a regular file", reason="device")]
    findings = []
    if status.st_nlink > 1:
        text = (
            f"{name}: a hard link ({status.st_nlink} names): onnxruntime reads it, onnx.load and "
            f"onnx.checker refuse it; cp {location} x && mv x {location} makes it a file of its own"
        )
        findings.append(warn(text, 1, status.st_nlink, reason="hard-link"))
    if (
        os.path.realpath(part.folder) != os.path.dirname(real) and "/" not in location
    ) or os.path.islink(os.path.join(part.folder, location)):
        text = f"{name}: a symbolic link: onnx.load and onnx.checker refuse it"
        findings.append(warn(text, reason="symlink"))
    return real, findings
