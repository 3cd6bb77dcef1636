"""Plans as JSON values, and back: what comes back is checked, field by field."""

from __future__ import annotations

import dataclasses
from typing import Any

from .model import Code, External, PatchType, Plan, PlannedImport, PlannedPatch


def to_data(plan: Plan) -> dict[str, Any]:
    """A plan as a JSON object. Texts of a config's own class of texts become plain ones."""
    return {field.name: _data(getattr(plan, field.name)) for field in _fields(plan)}


_fields = dataclasses.fields
_plain = str.__str__


def _data(value: Any) -> Any:
    if isinstance(value, str):
        return _plain(value)
    if isinstance(value, tuple):
        return [_data(v) for v in value]
    if isinstance(value, PatchType):
        return value.value
    if isinstance(value, Code | External | PlannedPatch | PlannedImport):
        return {field.name: _data(getattr(value, field.name)) for field in _fields(value)}
    return value


def from_data(data: Any) -> Plan:
    """The plan that `to_data` made these of.

    Raises:
        ValueError, TypeError, KeyError: it made them of none.
    """
    return Plan(
        **{name: _text(data[name]) for name in ("file", "module", "variable", "source_module")},
        target_file=_text(data["target_file"]),
        description=_text(data["description"]),
        version=_optional(data["version"]),
        patches=tuple(_patch(p) for p in _list(data["patches"])),
        imports=tuple(_import(i) for i in _list(data["imports"])),
        blocks=texts(data["blocks"]),
        helpers=tuple(_code(c) for c in _list(data["helpers"])),
        after=tuple((_text(anchor), _code(c)) for anchor, c in _list(data["after"])),
        dropped=texts(data["dropped"]),
        excluded=texts(data["excluded"]),
    )


def texts(value: Any) -> tuple[str, ...]:
    """A list of texts as a tuple.

    Raises:
        TypeError: it is none.
    """
    return tuple(_text(v) for v in _list(value))


def _patch(data: Any) -> PlannedPatch:
    place = data["replacement"]
    return PlannedPatch(
        PatchType(data["kind"]),
        _text(data["target"]),
        _code(place) if "line" in place else External(_text(place["module"]), _text(place["name"])),
        _text(data["description"]),
        tuple((_text(old), _text(new)) for old, new in _list(data["name_map"])),
    )


def _import(data: Any) -> PlannedImport:
    names, from_import = data["names"], data["is_from_import"]
    if not isinstance(from_import, bool):
        raise TypeError(from_import)
    names = None if names is None else texts(names)
    return PlannedImport(_text(data["module"]), names, _optional(data["alias"]), from_import)


def _code(data: Any) -> Code:
    if type(data["line"]) is not int:
        raise TypeError(data["line"])
    file, name, module = (_text(data[key]) for key in ("file", "name", "module"))
    return Code(file, data["line"], name, module)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value
