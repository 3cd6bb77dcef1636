"""The JSON Schema of package.json, which ships with ntool."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

from ..errors import MAX_ECHO, InputError, shorten
from .quick_schema import Unknown, accepts


def text() -> str:
    """The schema as it is printed by `verify-package --print-schema`."""
    return (files(__package__) / "package.schema.json").read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    """The schema, parsed."""
    value: dict[str, Any] = json.loads(text())
    return value


def check_record() -> dict[str, Any]:
    """The JSON Schema of a `check` record of verify-package, as readers may rely on it."""
    file = files(__package__) / "check-record.schema.json"
    value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return value


def faults(value: Any, part: str | None = None) -> list[tuple[str, str, str]]:
    """(place, message, keyword) of all that is wrong with a value by the schema.

    Stricter than JSON Schema in one point: 1.0 is not an integer, because nobody who reads it as
    one expects a float.

    Args:
        part: name of a definition of the schema to use instead of the whole.
    """
    return [] if _quickly(value, part) else in_words(value, part)


def in_words(value: Any, part: str | None = None) -> list[tuple[str, str, str]]:
    """`faults` of a value, as the library finds them."""
    errors = _errors(value, part)
    return [(e.json_path, shorten(e.message, MAX_ECHO), str(e.validator)) for e in errors]


def _quickly(value: Any, part: str | None) -> bool:
    """Whether the quick reading of the schema accepts the value; the library takes 40 ms to
    load."""
    whole = schema()
    used = {"$ref": f"#/$defs/{part}"} if part else whole
    with suppress(Unknown):
        return accepts(value, used, whole["$defs"])
    return False


def sampler_faults(
    defaults: Mapping[str, Mapping[str, Any]], token_pixels: int
) -> Iterator[tuple[str, Any, str]]:
    """(`task.field`, found, expected) of sampler defaults that are valid one by one and not
    together.

    Args:
        defaults: values by task, each as the schema wants it.
        token_pixels: sides of a picture are whole numbers of these.
    """
    for task, values in defaults.items():
        interval = values.get("cfg_interval", (0, 1))
        if interval[0] > interval[1]:
            yield f"{task}.cfg_interval", interval, "LO <= HI"
        for side in ("width", "height"):
            if values.get(side, token_pixels) % token_pixels:
                yield f"{task}.{side}", values[side], f"a multiple of {token_pixels}"


def require(value: Any, where: str, part: str | None = None) -> None:
    """Refuse a value that the schema does not allow, by the first thing wrong with it.

    Raises:
        InputError: names the JSON path, what was found and what is expected.
    """
    for e in [] if _quickly(value, part) else _errors(value, part):
        e = _deepest(e)
        path = shorten(e.json_path, MAX_ECHO)
        if e.validator not in _EXPECTED:
            raise InputError(f"{where}: {path}: {shorten(e.message, MAX_ECHO)}")
        wanted = _EXPECTED[e.validator](e.validator_value)
        raise InputError(f"{where}: {path}", found=_json(e.instance), expected=wanted)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _either(values: Any) -> str:
    return " or ".join(values if isinstance(values, list) else [values])


_EXPECTED: dict[str, Callable[[Any], str]] = {
    "type": _either,
    "const": _json,
    "enum": lambda values: " or ".join(map(_json, values)),
    "minimum": lambda least: f">= {least}",
    "exclusiveMinimum": lambda least: f"> {least}",
    "maximum": lambda most: f"<= {most}",
    "pattern": lambda pattern: f"a string that matches {pattern}",
    "minLength": lambda least: f"a string of at least {least} character",
    "minItems": lambda least: f"a list of at least {least}",
    "maxItems": lambda most: f"a list of at most {most}",
    "anyOf": lambda branches: " or ".join(_either(b.get("type", "another")) for b in branches),
}
"""What a keyword of the schema asks for, in words; the library's own message serves for others."""


def _deepest(error: Any) -> Any:
    """The error itself, or that of the only branch of an `anyOf` that gets further into the
    value."""
    deeper = [e for e in error.context or () if len(e.path) > 0]
    return deeper[0] if len(deeper) == 1 else error


def _errors(value: Any, part: str | None) -> list[Any]:
    from jsonschema import Draft202012Validator, validators  # 30 ms, for packages only

    strict = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    kind = validators.extend(Draft202012Validator, type_checker=strict)
    whole = schema()
    used = {"$ref": f"#/$defs/{part}", "$defs": whole["$defs"]} if part else whole
    return sorted(kind(used).iter_errors(value), key=lambda e: (e.json_path, e.message))
