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

    Where one side has several components, a tensor is known by its component and name. A side
    without any, or two sides of one component each, are compared by names alone: one graph may be
    called otherwise than the other.

    Args:
        ours: the tensors that are judged; `added` ones are only here.
        theirs: those of the checkpoint that is the measure.
        other: its name, for messages.
    """
    ours, theirs = list(ours), list(theirs)
    apart = _told_apart(ours, theirs)
    new, old = _by_place(ours, apart), _by_place(theirs, apart)
    for place, here in new.items():
        there = old.get(place)
        if there is None:
            for t in here:
                yield Problem("tensor-added", f"not in {other}", file=t.file, name=t.name)
            continue
        for t in here:
            yield from _changed(t, there, other)
    gone = [t for place, there in old.items() if place not in new for t in there]
    for t in gone:
        where = f"component '{t.component}' of {other}" if apart and t.component else other
        yield Problem("tensor-removed", f"in {where}, but not here", name=t.name)
    came = [t for place, here in new.items() if place not in old for t in here]
    for is_now, was_then in renames(came, gone):
        message = f"a guess: '{was_then}' of {other}, by dtype, shape and order"
        yield Problem("rename-guess", message, severity="info", name=is_now)


def _told_apart(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Whether components tell tensors of one name apart, on both sides."""
    sides = [{t.component for t in side} for side in (ours, theirs)]
    named = [side - {None} for side in sides]
    return all(named) and max(map(len, named)) > 1


def _by_place(tensors: list[Tensor], apart: bool) -> dict[Any, list[Tensor]]:
    """Tensors by name, or by component and name; several where components are not told apart."""
    found: dict[Any, list[Tensor]] = {}
    for t in tensors:
        found.setdefault((t.component, t.name) if apart else t.name, []).append(t)
    return found


def _changed(t: Tensor, there: list[Tensor], other: str) -> Iterator[Problem]:
    """In what a tensor differs from each of those that it is compared with."""
    for shape in dict.fromkeys(was.shape for was in there):
        if t.shape != shape:
            message = f"shape: found {list(t.shape)}, expected {list(shape)} ({other})"
            yield Problem("tensor-reshaped", message, file=t.file, name=t.name)
    for dtype in dict.fromkeys(was.dtype for was in there):
        if t.dtype != dtype:
            message = f"dtype: found {t.dtype}, expected {dtype} ({other})"
            yield Problem("tensor-retyped", message, file=t.file, name=t.name)


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
