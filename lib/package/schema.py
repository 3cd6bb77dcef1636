"""The JSON Schema of package.json, which ships with ntool."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.resources import files
from typing import Any

from .quick_schema import Unknown, accepts


def text() -> str:
    """The schema as it is printed by `verify-package --print-schema`."""
    return (files(__package__) / "package.schema.json").read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    """The schema, parsed."""
    value: dict[str, Any] = json.loads(text())
    return value


def faults(value: Any, part: str | None = None) -> list[tuple[str, str, str]]:
    """(place, message, keyword) of all that is wrong with a value by the schema.

    Stricter than JSON Schema in one point: 1.0 is not an integer, because nobody who reads it as
    one expects a float.

    Args:
        part: name of a definition of the schema to use instead of the whole.
    """
    whole = schema()
    used = {"$ref": f"#/$defs/{part}", "$defs": whole["$defs"]} if part else whole
    with suppress(Unknown):
        if accepts(value, used, whole["$defs"]):
            return []
    return in_words(value, used)


def in_words(value: Any, used: dict[str, Any]) -> list[tuple[str, str, str]]:
    """`faults` of a value by a schema, as the library finds them."""
    from jsonschema import Draft202012Validator, validators  # 40 ms, for faults only

    strict = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    kind = validators.extend(Draft202012Validator, type_checker=strict)
    errors = sorted(kind(used).iter_errors(value), key=lambda e: (e.json_path, e.message))
    short = [e.message if len(e.message) <= 200 else e.message[:197] + "..." for e in errors]
    return [(e.json_path, m, str(e.validator)) for e, m in zip(errors, short, strict=True)]
