"""Where paths from inside files may lead.

An index, a graph or a manifest of a downloaded checkpoint is as untrusted as the rest of it: its
file names may say /etc/passwd. Names are judged by their grammar first and by where they really
lead second.
"""

from __future__ import annotations

import os
import re

from ..errors import InputError
from .regular_file import read_all
from .strict_json import has_lone_surrogate
from .tensor import Problem

_SNAPSHOT = re.compile(r"((.*)/models--[^/]+)/snapshots/[0-9a-f]{40}(?:/|$)", re.DOTALL)
_SHARED = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")
_SHARED_MARK = ".huggingface-shared-blobs"
"""File in the `blobs` folder of a cache that several repositories share (huggingface_hub 2)."""


def path_fault(value: str) -> str | None:
    """Why a path from inside a file is refused by its grammar, or None.

    Relative, `/` between segments, no empty segment, `.` or `..`, no NUL or control character,
    no backslash, no drive letter.
    """
    if not value:
        return "is empty"
    if value.startswith("/"):
        return "is absolute"
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        return "holds a control character"
    if has_lone_surrogate(value):
        return "holds a lone surrogate"
    if "\\" in value:
        return "holds a backslash"
    if re.match(r"[A-Za-z]:", value):
        return "begins with a drive letter"
    for segment in value.split("/"):
        if segment in ("", ".", ".."):
            return f"has the segment '{segment}'"
    return None


def contained(root: str, relative: str) -> tuple[str, Problem | None]:
    """Where `root/relative` really is, and a problem if that is outside of what may be read.

    Allowed are the folder `root` itself and, for a snapshot in a Hub cache
    (`models--*/snapshots/COMMIT`), the `blobs` folder of the same repository, to which its links
    lead, and the store of blobs of the whole cache, to which those lead in turn.

    Args:
        root: absolute path of the model folder.
        relative: a path whose grammar was checked, or a name from a listing of `root`.
    Returns:
        The path without symbolic links, and None or the problem (`path-escape`, `missing-shard`).
    """
    base = os.path.realpath(root)
    path = os.path.join(root, relative)
    try:
        real = os.path.realpath(path)
        exists = os.path.lexists(real)
    except (OSError, ValueError) as e:
        return path, Problem(
            "missing-shard", f"cannot be resolved: {e}", file=relative, malformed=True
        )
    allowed = [base]
    snapshot = _SNAPSHOT.match(base)
    if snapshot:
        allowed.append(os.path.join(snapshot[1], "blobs"))
    inside = any(real.startswith(os.path.join(folder, "")) for folder in allowed)
    if not inside and not (snapshot and _is_shared(snapshot[2], real)):
        where = " and its Hub cache blobs" if snapshot else ""
        message = f"leads outside the model folder{where}: found {real}"
        return real, Problem("path-escape", message, file=relative, malformed=True)
    if os.path.islink(real):  # what realpath leaves of a loop
        message = f"a link that leads nowhere: to {os.readlink(real)}"
        return real, Problem("missing-shard", message, file=relative, malformed=True)
    if not exists:
        if os.path.islink(path):
            message = f"a dangling link (an unfinished or pruned download): to {os.readlink(path)}"
        else:
            message = "no such file"
        return real, Problem("missing-shard", message, file=relative, malformed=True)
    return real, None


def _is_shared(cache: str, real: str) -> bool:
    """Whether a path is a blob in the common store of a Hub cache."""
    store = os.path.join(cache, "blobs")
    name = real.removeprefix(os.path.join(store, ""))
    return bool(_SHARED.fullmatch(name)) and os.path.isfile(os.path.join(store, _SHARED_MARK))


def read_inside(root: str, relative: str, limit: int, name: str | None = None) -> bytes | None:
    """All bytes of a small file of a model folder; None where there is nothing of that name.

    Args:
        root, relative: as for `contained`.
        limit: the most that is read, bytes.
        name: how messages call it; its path, by default.
    Raises:
        InputError: a link that leads outside or nowhere, not a regular file, or too large.
    """
    path = os.path.join(root, relative)
    if not os.path.lexists(path):
        return None
    real, problem = contained(root, relative)
    if problem is not None:
        raise InputError(f"{name or path}: {problem.message}")
    return read_all(real, name or path, limit)
