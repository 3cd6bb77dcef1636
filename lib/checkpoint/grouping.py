"""Keys under which tensors are counted together: dtype, layer, prefix, family, rules of a file."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from ..errors import InputError, UsageProblem
from . import strict_json
from .regular_file import read_given
from .tensor import Tensor

Key = Callable[[Tensor], str]
Rules = Sequence[tuple[str, str]]
"""(group, regular expression) pairs; the first whose expression is found in the name counts."""

OTHER = "other"
MAX_RULES = 1_000_000
"""Largest file of grouping rules, bytes."""
KEYS = ("family", "component", "dtype", "layer", "prefix", "file", "shape", "role")
_LAYER = re.compile(r"(.*?(?:^|\.)(?:layers?|blocks?|h)\.\d+)(?:\.|$)", re.DOTALL)


def by_rules(rules: Rules) -> Key:
    """The first rule whose expression is found in the tensor's name; `other` for the rest.

    Raises:
        re.error: an expression is not one.
    """
    compiled = [(group, re.compile(pattern).search) for group, pattern in rules]

    def key(tensor: Tensor) -> str:
        name = tensor.name
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


def by_file(path: str, tensors: Collection[Tensor]) -> Key:
    """Groups by the rules of a file, matched at once to these tensors.

    The time for it is bounded: 20 microseconds a rule and name, ten times what plain expressions
    need, and a start.

    Raises:
        InputError, SourceNotFound: as `read_rules`; or matching takes too long.
    """
    rules = read_rules(path)
    key = by_rules(rules)
    with time_limit(5 + 20e-6 * len(rules) * len(tensors), path):
        found = {tensor.name: key(tensor) for tensor in tensors}
    return lambda tensor: found[tensor.name]


def _layer(tensor: Tensor) -> str:
    match = _LAYER.match(tensor.name)
    return match[1] if match else OTHER


def _prefix(depth: int) -> Key:
    def key(tensor: Tensor) -> str:
        return ".".join(tensor.name.split(".", depth)[:depth])

    return key


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _role(tensor: Tensor) -> str:
    """The role in a graph; in a checkpoint the last part of the name: weight, bias, ..."""
    return tensor.role or tensor.name.rpartition(".")[2]


def key_for(by: str, family: Rules | None, components: Rules | None) -> Key:
    """The key function of a `--by` value.

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
        raise UsageProblem("--by", found=repr(by), expected=", ".join(KEYS) + " or prefix:DEPTH")
    if kind == "prefix":
        return _prefix(int(depth or 1))
    if kind == "family":
        return by_rules(family) if family else _prefix(1)
    if kind == "component":
        inner = by_rules(components) if components else _prefix(1)
        return lambda tensor: tensor.component or inner(tensor)
    plain: dict[str, Key] = {
        "dtype": lambda tensor: tensor.dtype,
        "layer": _layer,
        "file": lambda tensor: tensor.file,
        "shape": _shape,
        "role": _role,
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
