"""What lies beside the weights: tokenizer files, the tokens that a model names, processor.json."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.folder import read_small
from ..checkpoint.paths import read_inside
from ..checkpoint.tensor import Checkpoint
from ..errors import InputError, SourceNotFound
from ..text.tokenizer import MAX_BYTES, Tokenizer, load
from ..text.tokenizer_json import FILE, load_any
from . import layout

if TYPE_CHECKING:
    from .export import Plan
    from .model import Model


def assets(plan: Plan) -> dict[str, bytes]:
    """Tokenizer files byte for byte, and processor.json; path in the package -> content.

    Raises:
        SourceNotFound: the checkpoint lacks a tokenizer file that prompts need.
        InputError: a file that leads outside of the checkpoint, is not regular, or is too large.
    """
    files = {}
    _, required = layout.tokenizer_files(plan.family.NAME)
    for name in tokenizer_names(plan.checkpoint, plan.family):
        raw = _small_file(plan.checkpoint, name)
        if raw is not None:
            files[f"{layout.TOKENIZER}/{name}"] = raw
        elif name in required:
            raise _no_tokenizer(plan.checkpoint, name)
    processor = plan.model.processor()
    if processor is not None:
        files[layout.PROCESSOR] = as_json(processor)
    return files


def _no_tokenizer(checkpoint: Checkpoint, name: str) -> SourceNotFound:
    return SourceNotFound(
        f"{checkpoint.source}: tokenizer file '{name}' is missing",
        hint="copy the tokenizer's files of the model into the checkpoint's folder",
    )


def tokenizer_names(checkpoint: Checkpoint, family: Any) -> tuple[str, ...]:
    """Tokenizer files that a package may have; none where a family can do without a tokenizer and
    the checkpoint's files are none that text can be read with."""
    known, required = layout.tokenizer_files(family.NAME)
    if required:
        return known
    there = {name for name in known if checkpoint.folder.exists(name)}
    whole = FILE in there or {"vocab.json", "merges.txt"} <= there
    return known if whole else ()


def _small_file(checkpoint: Checkpoint, name: str) -> bytes | None:
    """A file beside the weights; None where there is none."""
    folder = checkpoint.folder
    if folder.local:
        return read_inside(checkpoint.root, name, MAX_BYTES)
    return read_small(folder, name, MAX_BYTES) if folder.exists(name) else None


def special_tokens(
    checkpoint: Checkpoint, family: Any, model: Model, dry_run: bool, notes: list[str]
) -> dict[str, int]:
    """Ids of the tokens that prompts and loops of a model name.

    Args:
        notes: is told what a dry run could not look up.
    Raises:
        SourceNotFound: a tokenizer file, or a token, is missing.
        InputError: an id outside of the vocabulary.
    """
    names = model.special_tokens
    _, required = layout.tokenizer_files(family.NAME)
    missing = [n for n in required if not checkpoint.folder.exists(n)]
    if missing and dry_run:
        notes.append(
            f"no {', '.join(missing)}: token ids stay open in this dry run; an export needs them"
        )
        return dict.fromkeys(names, 0)
    if missing:
        raise _no_tokenizer(checkpoint, missing[0])
    files = tokenizer_names(checkpoint, family)
    if not names and (dry_run or not files):
        return {}
    # read even where no token is looked up: no package gets one that cannot be read
    tokenizer = _tokenizer(checkpoint, files)
    ids = {name: tokenizer.id(name) for name in names}
    for name, i in ids.items():
        if i >= model.vocab_size:
            raise InputError(
                f"{checkpoint.source}: token '{name}': id",
                found=i,
                expected=f"< vocab_size {model.vocab_size}",
            )
    return ids


def _tokenizer(checkpoint: Checkpoint, files: Sequence[str]) -> Tokenizer:
    """The checkpoint's tokenizer; that of a remote one is fetched into a folder that goes again."""
    read = load_any if FILE in files else load
    if checkpoint.folder.local:
        return read(checkpoint.root)
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            raw = _small_file(checkpoint, name)
            if raw is not None:
                (Path(folder) / name).write_bytes(raw)
        return read(folder)


def as_json(value: Any) -> bytes:
    """A JSON file as packages have it."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
