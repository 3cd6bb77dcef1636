"""JSON from untrusted files: bounded, UTF-8, no duplicate keys, no deep nesting, no surprises.

The standard parser accepts more than JSON (NaN, duplicate keys, lone surrogates) and fails in its
own ways on what it does not accept (RecursionError, ValueError beyond 4,300 digits). Here all of it
ends as a list of `Fault`, and a value where one could be made.
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from .regular_file import read_all

MAX_DEPTH = 64
"""Nesting of arrays and objects. A safetensors header has 3, an index 2, known configs below 10."""
MAX_INTEGER = 2**63 - 1
"""Largest integer that is taken from a file: what int64 holds."""
MAX_FAULTS = 10_000
"""Faults that are kept of one text; a text made to be wrong could have millions."""

BOM = b"\xef\xbb\xbf"
# Possessive, so that text without a closing quote is scanned once and not once a quote.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a JSON text.

    Attributes:
        code: `bad-json`, `duplicate-key` or `non-json-number`.
        message: one line, without the file's name.
        fatal: no value could be made of the text.
    """

    code: str
    message: str
    fatal: bool = False


class NotANumber:
    """Stands where the text has NaN, Infinity or a number that is too large or too long."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@contextmanager
def no_collector() -> Iterator[None]:
    """Without the cyclic collector: a million small dicts make it walk for seconds, in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def deeper_than(raw: bytes, limit: int) -> bool:
    """Whether arrays and objects nest deeper than `limit`; brackets inside strings do not count."""
    if raw.count(b"[") + raw.count(b"{") <= limit:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(raw):
        c = raw[match.start()]
        if c in b"[{":
            depth += 1
            if depth > limit:
                return True
        elif c in b"]}":
            depth -= 1
    return False


def has_lone_surrogate(text: str) -> bool:
    """Whether a string holds half of a surrogate pair, which no UTF-8 file can."""
    return not text.isascii() and _LONE_SURROGATE.search(text) is not None


def decode(raw: bytes) -> tuple[str | None, Fault | None]:
    """The text of bytes that must be UTF-8 without a byte order mark and not nested too deeply."""
    if raw.startswith(BOM):
        return None, Fault("bad-json", "begins with a UTF-8 byte order mark", fatal=True)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        message = f"not UTF-8: byte 0x{raw[e.start]:02x} at position {e.start}"
        return None, Fault("bad-json", message, fatal=True)
    if deeper_than(raw, MAX_DEPTH):
        return None, Fault("bad-json", f"nested deeper than {MAX_DEPTH} levels", fatal=True)
    return text, None


def parse(text: str, *, numbers: str = "refuse") -> tuple[Any, list[Fault]]:
    """The value of a JSON text, and everything wrong with it.

    Of duplicate keys the first stays. NaN and infinities become `NotANumber`, or floats with
    `numbers="warn"`; integers that are too long to parse always become `NotANumber`.

    Args:
        text: as `decode` returned it: its depth was checked.
        numbers: "refuse" or "warn" (Python writes bare Infinity into configs, so readers meet it).
    """
    faults: list[Fault] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        if len(out) != len(items):
            out = {}
            for key, value in items:
                if key not in out:
                    out[key] = value
                elif len(faults) < MAX_FAULTS:
                    faults.append(Fault("duplicate-key", f"duplicate key '{key}'"))
        return out

    def constant(name: str) -> Any:
        if len(faults) < MAX_FAULTS:
            faults.append(Fault("non-json-number", f"{name} is not a JSON number"))
        if numbers != "warn":
            return NotANumber(name)
        if name == "NaN":
            return math.nan
        return -math.inf if name.startswith("-") else math.inf

    def real(digits: str) -> Any:
        value = float(digits)
        return constant(f"{digits[:40]}, beyond float64,") if math.isinf(value) else value

    def integer(digits: str) -> Any:
        if len(digits) <= 4300:
            return int(digits)
        if len(faults) < MAX_FAULTS:
            faults.append(Fault("bad-json", f"an integer of {len(digits)} digits"))
        return NotANumber(f"an integer of {len(digits)} digits")

    try:
        try:
            value = json.loads(
                text, object_pairs_hook=pairs, parse_constant=constant, parse_float=real
            )
        except json.JSONDecodeError:
            raise
        except ValueError:  # the interpreter's own limit on digits: parse again, number by number
            faults.clear()
            value = json.loads(
                text,
                object_pairs_hook=pairs,
                parse_constant=constant,
                parse_float=real,
                parse_int=integer,
            )
    except json.JSONDecodeError as e:
        faults.append(Fault("bad-json", f"not JSON: {e.msg} at character {e.pos}", fatal=True))
        return None, faults
    except RecursionError:
        faults.append(Fault("bad-json", "nested too deeply", fatal=True))
        return None, faults
    return value, faults


def load_object(raw: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `raw`; the first thing wrong with it is raised.

    Raises:
        InputError: not UTF-8, not JSON, nested too deeply, duplicate keys, NaN, or not an object.
    """
    text, fault = decode(raw)
    value, faults = (None, [fault]) if text is None else parse(text)
    if faults and faults[0] is not None:
        raise InputError(f"{name}: {faults[0].message}")
    if not isinstance(value, dict):
        raise InputError(name, found=type(value).__name__, expected="a JSON object")
    return value


def read_object(path: str, name: str, limit: int) -> dict[str, Any]:
    """The JSON object in a regular file of at most `limit` bytes; raises as `load_object` does."""
    return load_object(read_all(os.path.realpath(path), name, limit), name)


def first_lone_surrogate(texts: Iterable[str]) -> str | None:
    """The first string that holds a lone surrogate, or None."""
    return next((t for t in texts if has_lone_surrogate(t)), None)
