"""Keys under which tensors are counted together: dtype, layer, prefix, family, rules of a file."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter

from ..errors import InputError, UsageProblem
from ..suggestions import did_you_mean
from . import strict_json
from .regular_file import read_given
from .tensor import Tensor

Key = Callable[[Sequence[Tensor]], Iterable[str]]
"""The keys of all tensors, in their order: 150,000 calls for one each would take longer."""
Rules = Sequence[tuple[str, str]]
"""(group, regular expression) pairs; the first whose expression is found in the name counts."""

OTHER = "other"
START = 5.0
"""Seconds that the rules of a file have, and a little more for each name."""
MAX_RULES = 1_000_000
"""Largest file of grouping rules, bytes."""
KEYS = ("family", "component", "dtype", "layer", "prefix", "file", "shape", "role")
_NAME, _DTYPE, _FILE = map(itemgetter, (0, 1, 3))
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_LAYER = re.compile(r"(.*?(?:^|\.)(?:layers?|blocks?|blk|h)\.\d+)(?:\.|$)", re.DOTALL)


class _Memo(dict[str, str]):
    """The values of a function of text, each computed once."""

    def __init__(self, function: Callable[[str], str]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, text: str) -> str:
        value = self[text] = self._function(text)
        return value


def without_digits(tensors: Sequence[Tensor]) -> Iterator[str]:
    """The names of tensors without their ASCII digits, in order.

    A checkpoint of 150,000 tensors has a hundred of these; what does not depend on a number is
    decided for each of them once.
    """
    for start in range(0, len(tensors), 4096):
        names = list(map(_NAME, tensors[start : start + 4096]))
        text = "\n".join(names)
        if text.count("\n") != len(names) - 1:
            yield from [name.translate(_NO_DIGITS) for name in names]
            continue
        raw = text.encode("utf-8", "surrogatepass").translate(None, b"0123456789")
        yield from raw.decode("utf-8", "surrogatepass").split("\n")


def by_family(rules: Rules) -> Key:
    """The group of a family's rules; they look at no digit."""
    find = _first_of(rules)
    return lambda tensors: map(_Memo(find).__getitem__, without_digits(tensors))


def _first_of(rules: Rules) -> Callable[[str], str]:
    """The first rule whose expression is found in a name; `other` for the rest.

    Raises:
        re.error: an expression is not one.
    """
    compiled = [(group, re.compile(pattern).search) for group, pattern in rules]

    def key(name: str) -> str:
        for group, search in compiled:
            if search(name):
                return group
        return OTHER

    return key


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Refuse regular expressions that take longer: some take years for a name of fifty characters.

    Python's matcher looks for signals while it works, so a timer can end it. Without such timers
    (Windows, threads) there is no limit.

    Raises:
        InputError: the time is over.
    """

    def over(signum: int, frame: object) -> None:
        raise InputError(
            f"{what}: the expressions take too long",
            found=f"over {seconds:.0f} seconds",
            expected="no repeats inside repeats, as in (a+)+",
        )

    here = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "setitimer") or not here:
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def by_file(path: str) -> Key:
    """Groups by the rules of a file.

    The time for it is bounded: 20 microseconds a rule and name, ten times what plain expressions
    need, and a start.

    Raises:
        InputError, SourceNotFound: as `read_rules`; when it is used also: matching takes too long.
    """
    rules = read_rules(path)
    find = _first_of(rules)

    def keys(tensors: Sequence[Tensor]) -> list[str]:
        with time_limit(START + 20e-6 * len(rules) * len(tensors), path):
            return [find(t.name) for t in tensors]

    return keys


def _layer(name: str) -> str:
    match = _LAYER.match(name)
    return match[1] if match else OTHER


def _layers(tensors: Sequence[Tensor]) -> Iterable[str]:
    return [_layer(t.name) for t in tensors]


def _prefix(depth: int) -> Key:
    def keys(tensors: Sequence[Tensor]) -> Iterable[str]:
        return [".".join(t.name.split(".", depth)[:depth]) for t in tensors]

    return keys


def _shapes(tensors: Sequence[Tensor]) -> Iterable[str]:
    return ["x".join(map(str, t.shape)) or "scalar" for t in tensors]


def _roles(tensors: Sequence[Tensor]) -> Iterable[str]:
    """The role in a graph; in a checkpoint the last part of the name: weight, bias, ..."""
    return [t.role or t.name.rpartition(".")[2] for t in tensors]


def _components(inner: Key) -> Key:
    def keys(tensors: Sequence[Tensor]) -> Iterable[str]:
        return [t.component or key for t, key in zip(tensors, inner(tensors), strict=True)]

    return keys


def key_for(by: str, family: Rules | None, components: Rules | None) -> Key:
    """The keys of a `--by` value.

    Args:
        by: one of KEYS; `prefix` may be followed by `:DEPTH`, the number of dotted parts.
        family, components: rules of the recognised family, if there is one. Without it, `family`
            and `component` count by the first part of the name.
    Raises:
        UsageProblem: not one of them.
    """
    kind, colon, depth = by.partition(":")
    if kind not in KEYS or (
        colon and (kind != "prefix" or not re.fullmatch(r"[1-9]\d{0,2}", depth))
    ):
        expected = ", ".join(KEYS) + " or prefix:DEPTH"
        hint = did_you_mean(kind, KEYS)
        raise UsageProblem("--by", found=repr(by), expected=expected, hint=hint)
    if kind == "prefix":
        return _prefix(int(depth or 1))
    if kind == "family":
        return by_family(family) if family else _prefix(1)
    if kind == "component":
        return _components(by_family(components) if components else _prefix(1))
    plain: dict[str, Key] = {
        "dtype": lambda tensors: map(_DTYPE, tensors),
        "layer": _layers,
        "file": lambda tensors: map(_FILE, tensors),
        "shape": _shapes,
        "role": _roles,
    }
    return plain[kind]


def read_rules(path: str) -> list[tuple[str, str]]:
    """Grouping rules: a JSON list of {"name": group, "pattern": regular expression}.

    Raises:
        InputError: not such a list, or an expression that does not compile.
        SourceNotFound: no such file.
    """
    text, fault = strict_json.decode(read_given(path, MAX_RULES))
    value, faults = strict_json.parse(text) if text is not None else (None, [fault])
    for fault in faults:
        if fault is not None:
            raise InputError(f"{path}: {fault.message}")
    if not isinstance(value, list):
        raise InputError(path, found=type(value).__name__, expected="a list of {name, pattern}")
    rules = []
    for number, row in enumerate(value, 1):
        if not (
            isinstance(row, dict)
            and isinstance(row.get("name"), str)
            and isinstance(row.get("pattern"), str)
        ):
            found = json.dumps(row, default=repr)[:60]
            raise InputError(
                f"{path}: rule {number}", found=found, expected="{name, pattern}, strings"
            )
        try:
            with time_limit(5, f"{path}: rule {number}"):
                re.compile(row["pattern"])
        except (re.error, OverflowError, RecursionError) as e:
            shown = repr(row["pattern"][:60])
            raise InputError(
                f"{path}: rule {number}: pattern {shown}: no regular expression ({e})",
                hint="a prefix is '^vision_model', a part of a name is '_mot_gen'",
            ) from e
        rules.append((row["name"], row["pattern"]))
    return rules
