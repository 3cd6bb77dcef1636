"""Model families: each folder holds all that ntool knows about one `model_type`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from ..errors import InputError, Unsupported

MODULES: dict[str, str] = {
    "neo_chat": "neo_chat",
    "qwen4_exp": "qwen4_exp",
    "qwen4_exp_text": "qwen4_exp",
}
"""`model_type` of config.json -> folder. Only the folder asked for is imported."""
EXPORTED = ("neo_chat", "qwen4_exp")
"""Families whose graphs ntool builds. The others are recognised, counted and checked."""


def find(config: dict[str, Any], where: str = "config.json") -> ModuleType:
    """The family module for a config: MODEL_TYPES, COMPONENTS, and its functions.

    Raises:
        InputError: no `model_type`.
        Unsupported: a `model_type` that ntool does not know; names those it does.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(f"{where}: 'model_type'", found=model_type, expected="a string")
    if model_type not in MODULES:
        raise Unsupported(
            f"{where}: model_type", found=repr(model_type), expected=" or ".join(EXPORTED)
        )
    if MODULES[model_type] not in EXPORTED:
        raise Unsupported(
            f"{where}: model_type '{model_type}' is counted, but its graphs are not built yet",
            expected=" or ".join(EXPORTED),
        )
    return import_module(f".{MODULES[model_type]}", package=__package__)
