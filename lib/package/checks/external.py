"""Where the locations of external data lead, judged before a file is opened."""

from __future__ import annotations

import os
import stat

from ...checkpoint.onnx_external import location_fault
from ...checkpoint.paths import contained
from ...errors import printable
from .subject import Finding, Part, bad, warn


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
    if part.path is not None and os.path.samefile(real, part.path):
        return None, [bad(f"{name} is the graph's own file", reason="own-graph")]
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
