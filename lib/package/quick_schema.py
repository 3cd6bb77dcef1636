"""Whether a value fits a JSON Schema, for schemas of plain keywords; no messages.

A check of a good package needs only the yes, and the library that words the no costs more start-up
than all other structure checks together. Nothing is guessed: a keyword or a kind of value that is
not known here raises, and the caller asks the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_IGNORED = ("$schema", "$defs", "title", "description", "then")
"""Keywords that judge nothing by themselves; `then` is read with its `if`."""


class Unknown(Exception):
    """The schema uses something that is not known here."""


def accepts(value: Any, rule: Any, definitions: dict[str, Any]) -> bool:
    """Whether `value`, as a JSON parser made it, fits `rule`. An integer is never spelt 1.0.

    Args:
        rule: an object schema, or true or false.
        definitions: `$defs` of the whole schema, the only place that `$ref` may name.
    Raises:
        Unknown: another keyword, or a value that only the library compares.
    """
    if isinstance(rule, bool):
        return rule
    for key, wanted in rule.items():
        if key == "$ref":
            name = wanted.removeprefix("#/$defs/")
            if name not in definitions:
                raise Unknown(wanted)
            if not accepts(value, definitions[name], definitions):
                return False
        elif key in _JOINED:
            if not _JOINED[key](value, wanted, rule, definitions):
                return False
        elif key in _PLAIN:
            kinds, holds = _PLAIN[key]
            if _is(value, *kinds) and not holds(value, wanted):
                return False
        elif key not in _IGNORED:
            raise Unknown(key)
    return True


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,),
    "number": (int, float), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
_NUMBER = _TYPES["number"]


def _is(value: Any, *kinds: type) -> bool:
    return type(value) in kinds  # not isinstance: true is no number


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    if isinstance(b, str):
        return False
    raise Unknown(b)  # 1 and 1.0 are equal, 1 and true are not: the library's business


def _type(value: Any, wanted: Any) -> bool:
    names = wanted if isinstance(wanted, list) else [wanted]
    return any(_is(value, *_TYPES[n]) for n in names)


def _unique(value: list[Any], wanted: bool) -> bool:
    if not all(isinstance(v, str) for v in value):
        raise Unknown("uniqueItems")
    return not wanted or len(set(value)) == len(value)


_PLAIN: dict[str, tuple[tuple[type, ...], Callable[[Any, Any], bool]]] = {
    "minLength": ((str,), lambda v, n: len(v) >= n),
    "pattern": ((str,), lambda v, p: re.search(p, v) is not None),
    "minimum": (_NUMBER, lambda v, n: v >= n),
    "maximum": (_NUMBER, lambda v, n: v <= n),
    "exclusiveMinimum": (_NUMBER, lambda v, n: v > n),
    "minItems": ((list,), lambda v, n: len(v) >= n),
    "maxItems": ((list,), lambda v, n: len(v) <= n),
    "uniqueItems": ((list,), _unique),
    "minProperties": ((dict,), lambda v, n: len(v) >= n),
    "required": ((dict,), lambda v, names: all(n in v for n in names)),
}
"""Keyword -> the types that it judges, and its rule; other values pass it."""


def _properties(value: Any, wanted: Any, rule: Any, d: dict[str, Any]) -> bool:
    return type(value) is not dict or all(
        accepts(value[k], wanted[k], d) for k in wanted if k in value
    )


def _others(value: Any, wanted: Any, rule: Any, d: dict[str, Any]) -> bool:
    named = rule.get("properties", {})
    return type(value) is not dict or all(
        accepts(v, wanted, d) for k, v in value.items() if k not in named
    )


def _if(value: Any, wanted: Any, rule: Any, d: dict[str, Any]) -> bool:
    return not accepts(value, wanted, d) or accepts(value, rule.get("then", True), d)


_JOINED: dict[str, Callable[[Any, Any, Any, dict[str, Any]], bool]] = {
    "type": lambda v, w, rule, d: _type(v, w),
    "const": lambda v, w, rule, d: _equal(v, w),
    "enum": lambda v, w, rule, d: any(_equal(v, x) for x in w),
    "properties": _properties,
    "additionalProperties": _others,
    "propertyNames": lambda v, w, rule, d: (
        type(v) is not dict or all(accepts(k, w, d) for k in v)
    ),
    "prefixItems": lambda v, w, rule, d: (
        type(v) is not list or all(accepts(x, r, d) for x, r in zip(v, w, strict=False))
    ),
    "items": lambda v, w, rule, d: (
        type(v) is not list
        or all(accepts(x, w, d) for x in v[len(rule.get("prefixItems", ())) :])
    ),
    "allOf": lambda v, w, rule, d: all(accepts(v, x, d) for x in w),
    "anyOf": lambda v, w, rule, d: any(accepts(v, x, d) for x in w),
    "if": _if,
}  # fmt: skip
"""Keyword -> rule, for keywords that judge any value or need the schemas around them."""
