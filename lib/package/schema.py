"""The JSON Schema of package.json, which ships with ntool."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def text() -> str:
    """The schema as it is printed by `verify-package --print-schema`."""
    return (files(__package__) / "package.schema.json").read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    """The schema, parsed."""
    value: dict[str, Any] = json.loads(text())
    return value
