"""`*.safetensors.index.json`: which file holds which tensor."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from . import index_text, strict_json
from .folder import Folder, read_small
from .paths import path_fault
from .tensor import Problem

MAX_INDEX = 256_000_000
"""Largest index that is read, bytes."""
NUMBERED = re.compile(r"(?P<head>.*?)-?(?P<k>\d{5})-of-(?P<n>\d{5})(?P<tail>\..*)", re.DOTALL)


@dataclass
class Index:
    """What an index file says.

    Attributes:
        names: of tensors, all different; those of sound entries only, in the order of the index.
        homes: the file that each of them should be in.
        total_size: `metadata.total_size` in bytes, or None.
        sha256: of the file's bytes, hex.
        nbytes: size of the file.
        problems: everything wrong with it.
    """

    names: list[str] = field(default_factory=list)
    homes: list[str] = field(default_factory=list)
    total_size: int | None = None
    sha256: str = ""
    nbytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The files that the index names, in order of first mention. No other file is a shard."""
        return list(dict.fromkeys(self.homes))

    @property
    def weight_map(self) -> dict[str, str]:
        """Tensor name -> file name, made anew each time: 150,000 entries take a while."""
        return dict(zip(self.names, self.homes, strict=True))

    @cached_property
    def by_file(self) -> dict[str, list[str]]:
        """File name -> the tensors that it should hold, both in the order of the index."""
        out: dict[str, list[str]] = {}
        at = 0
        for file, run in groupby(self.homes):
            end = at + len(list(run))
            out.setdefault(file, []).extend(self.names[at:end])
            at = end
        return out


def read_index(folder: Folder, file: str) -> Index:
    """The index of that name; all that is wrong with its content is in `problems`.

    Raises:
        NotReadable: it cannot be opened.
        InputError: larger than MAX_INDEX, or changed while it was read.
    """
    raw = read_small(folder, file, MAX_INDEX)
    digest, nbytes = hashlib.sha256(raw).hexdigest(), len(raw)
    text, fault = strict_json.decode(raw)
    del raw  # not held while the text of an index of 150,000 tensors becomes 100 MB of strings
    problems: list[Problem] = []
    names, homes, total = _parse(text, fault, file, problems)
    return Index(names, homes, total, digest, nbytes, problems)


def _parse(
    text: str | None, fault: strict_json.Fault | None, file: str, problems: list[Problem]
) -> tuple[list[str], list[str], int | None]:
    """Names, their files and `total_size`; what is wrong goes to `problems`."""

    def bad(message: str, name: str | None = None, code: str = "bad-index") -> None:
        problems.append(Problem(code, message, file=file, name=name, malformed=True))

    if text is None:
        assert fault is not None
        bad(fault.message)
        return [], [], None
    usual = index_text.entries(text)
    if usual is not None and not any(map(path_fault, dict.fromkeys(usual.files))):
        return usual.names, usual.files, _total_size(usual.rest.get("metadata"), file, problems)
    value, faults = strict_json.parse(text)
    for fault in faults:
        bad(fault.message, code=fault.code if fault.code == "duplicate-key" else "bad-index")
    if not isinstance(value, dict):
        if not faults:
            bad(f"found {type(value).__name__}, expected a JSON object")
        return [], [], None
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict):
        found = "none" if "weight_map" not in value else type(weight_map).__name__
        bad(f"weight_map: found {found}, expected an object of strings")
        return [], [], None
    total = _total_size(value.get("metadata"), file, problems)
    sound = (
        set(map(type, weight_map.values())) <= {str}
        and not any(map(path_fault, dict.fromkeys(weight_map.values())))
        and not any(map(strict_json.has_lone_surrogate, weight_map))
    )
    kept = weight_map if sound else _sound_entries(weight_map, bad)
    return list(kept), list(kept.values()), total


def _sound_entries(weight_map: dict[str, Any], bad: Any) -> dict[str, str]:
    """The entries of a `weight_map` that can be used; `bad` is told of each of the others."""
    verdicts: dict[str, str | None] = {}
    sound: dict[str, str] = {}
    for name, target in weight_map.items():
        if type(target) is not str:
            bad(f"weight_map: found {_show(target)}, expected a file name", name)
            continue
        if target not in verdicts:
            verdicts[target] = path_fault(target)
            if verdicts[target]:
                bad(f"weight_map: file name '{target}' {verdicts[target]}", name, "path-escape")
        if verdicts[target] is None:
            sound[name] = target
    broken = strict_json.first_lone_surrogate(weight_map)
    if broken is not None:
        bad("weight_map: a name holds a lone surrogate", broken)
    return sound


def _total_size(metadata: Any, file: str, problems: list[Problem]) -> int | None:
    """`metadata.total_size`, when it is there and a number of bytes."""
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():  # older writers divide bits by 8
        total = int(total)
    if total is None or (type(total) is int and 0 <= total <= strict_json.MAX_INTEGER):
        return total
    message = f"metadata.total_size: found {_show(total)}, expected a number of bytes"
    problems.append(Problem("bad-total-size", message, severity="warning", file=file))
    return None


def _show(value: Any) -> str:
    text = repr(value) if value is not None else "null"
    return text if len(text) <= 60 else text[:57] + "..."


def absent_numbers(files: Iterable[str]) -> list[str]:
    """File names that a numbering like `model-00003-of-00016.safetensors` has and the list lacks.

    Information only: published checkpoints exist whose numbering has gaps and that are complete.
    """
    sets: dict[tuple[str, str, int], set[int]] = {}
    for file in files:
        match = NUMBERED.fullmatch(file)
        if match and 0 < int(match["k"]) <= int(match["n"]):
            head = file[: match.start("k")]
            sets.setdefault((head, match["tail"], int(match["n"])), set()).add(int(match["k"]))
    return [
        f"{head}{k:05d}-of-{n:05d}{tail}"
        for (head, tail, n), present in sets.items()
        for k in range(1, n + 1)
        if k not in present
    ]
