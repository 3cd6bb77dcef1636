"""An index made anew from the headers of a folder: what the old one forgot is in it again."""

from __future__ import annotations

import json

from ..errors import CheckFailed, InputError
from .strict_json import has_lone_surrogate
from .tensor import Checkpoint


def new_index(checkpoint: Checkpoint) -> bytes:
    """The text of an index of all tensors of a checkpoint.

    Args:
        checkpoint: opened without its index, so that all files of its folder are in it.
    Raises:
        InputError: a file of the folder is malformed: its tensors are not known.
            Or a file's name is no text that JSON can hold.
        CheckFailed: a tensor is in two files: which one an index should name is not ours to say.
    """
    for problem in checkpoint.problems:
        if problem.severity != "error":
            continue
        where = ": ".join(x for x in (problem.file, problem.name, problem.message) if x)
        kind = InputError if problem.malformed else CheckFailed
        raise kind(f"{checkpoint.source}: no index is written: {where}")
    for file in filter(has_lone_surrogate, checkpoint.files):
        raise InputError(
            f"{checkpoint.source}: no index is written: the name '{file}' is not UTF-8"
        )
    tensors = checkpoint.tensors
    weight_map = {name: tensors[name].file for name in sorted(tensors)}
    total = sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"
