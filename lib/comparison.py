"""Judging a census: against another checkpoint, against a saved summary, and with allowances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from .census import Counted
from .checkpoint import strict_json
from .checkpoint.regular_file import read_given
from .checkpoint.tensor import Problem, Tensor
from .errors import InputError
from .records import dumps, read

MAX_EXPECTED = 256_000_000
"""Largest saved census that is read, bytes."""


def differences(ours: Iterable[Tensor], theirs: Iterable[Tensor], other: str) -> Iterator[Problem]:
    """Tensors that were added, removed, reshaped or retyped, compared by name.

    Args:
        ours: the tensors that are judged; `added` ones are only here.
        theirs: those of the checkpoint that is the measure.
        other: its name, for messages.
    """
    new = {t.name: t for t in ours}
    old = {t.name: t for t in theirs}
    for name, t in new.items():
        was = old.get(name)
        if was is None:
            yield Problem("tensor-added", f"not in {other}", file=t.file, name=name)
            continue
        if t.shape != was.shape:
            message = f"shape: found {list(t.shape)}, expected {list(was.shape)} ({other})"
            yield Problem("tensor-reshaped", message, file=t.file, name=name)
        if t.dtype != was.dtype:
            message = f"dtype: found {t.dtype}, expected {was.dtype} ({other})"
            yield Problem("tensor-retyped", message, file=t.file, name=name)
    for name in old:
        if name not in new:
            yield Problem("tensor-removed", f"in {other}, but not here", name=name)
    for is_now, was_then in renames(
        [t for n, t in new.items() if n not in old], [t for n, t in old.items() if n not in new]
    ):
        message = f"a guess: '{was_then}' of {other}, by dtype, shape and order"
        yield Problem("rename-guess", message, severity="info", name=is_now)


def renames(added: Iterable[Tensor], removed: Iterable[Tensor]) -> Iterator[tuple[str, str]]:
    """Pairs (new name, old name) that may be one tensor: guesses.

    Where as many tensors of a dtype and shape came as went, they are paired in their order, which
    a renamed prefix keeps. Where the numbers differ, nothing is guessed.
    """
    kinds: dict[tuple[str, tuple[int, ...]], tuple[list[str], list[str]]] = {}
    for side, tensors in enumerate((added, removed)):
        for t in tensors:
            kinds.setdefault((t.dtype, t.shape), ([], []))[side].append(t.name)
    for came, went in kinds.values():
        if len(came) == len(went):
            yield from zip(came, went, strict=True)


def read_expected(path: str) -> dict[str, Any]:
    """A saved `summary`, or any object with some of its fields; or a saved census stream.

    Raises:
        InputError: neither.
        SourceNotFound: no such file.
    """
    text, fault = strict_json.decode(read_given(path, MAX_EXPECTED))
    if text is None:
        raise InputError(f"{path}: {fault.message if fault else 'not text'}")
    value, faults = strict_json.parse(text)
    if any(f.fatal for f in faults):  # more than one line: a stream
        summaries = [r for r in read(text.splitlines(), path) if r["kind"] == "summary"]
        if not summaries:
            raise InputError(path, found="a stream without a summary", expected="a census")
        value = summaries[-1]
    elif faults:
        raise InputError(f"{path}: {faults[0].message}")
    if not isinstance(value, dict) or value.get("kind", "summary") != "summary":
        found = type(value).__name__ if not isinstance(value, dict) else f"a {value['kind']} record"
        raise InputError(path, found=found, expected="a summary record or an object of its fields")
    fields = {k: v for k, v in value.items() if k != "kind"}
    if not fields:
        raise InputError(path, found="no field", expected="fields of a summary to compare")
    return fields


def unexpected(
    summary: dict[str, Any], expected: dict[str, Any], path: str = ""
) -> Iterator[Problem]:
    """Fields in which a summary differs from what was expected; other fields are free."""
    for key, want in expected.items():
        name = f"{path}{key}"
        if key not in summary:
            message = f"{name}: found no such field, expected {_show(want)}"
            yield Problem("unexpected", message, name=name)
            continue
        got = summary[key]
        if isinstance(want, dict) and isinstance(got, dict):
            yield from unexpected(got, want, f"{name}.")
        elif got != want or isinstance(got, bool) != isinstance(want, bool):
            message = f"{name}: found {_show(got)}, expected {_show(want)}"
            yield Problem("unexpected", message, name=name)


def _show(value: Any) -> str:
    text = dumps({"v": value})[5:-1]
    return text if len(text) <= 200 else text[:197] + "..."


def allow_missing(counted: Counted, globs: Sequence[str]) -> None:
    """Turn the absence of tensors that match into information, and of files that hold only such."""

    def allowed(name: str) -> bool:
        return any(fnmatchcase(name, g) for g in globs)

    for i, p in enumerate(counted.problems):
        names: list[str] = []
        if p.code == "missing-tensor" and p.name:
            names = [p.name]
        elif p.code == "missing-shard" and p.file:
            names = counted.absent.get(p.file, [])
        if names and all(map(allowed, names)):
            counted.problems[i] = replace(p, severity="info", malformed=False)
