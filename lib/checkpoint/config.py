"""`config.json`: strict JSON, except for the bare NaN and Infinity that Python writes."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from . import strict_json
from .folder import Folder, read_small
from .tensor import Problem

MAX_CONFIG = 16_000_000
"""Largest config that is read, bytes."""
MAX_LISTED = 1024
"""Longest list of a config that a record repeats (a value a layer); of longer ones it tells length
and head."""

_LAYOUT = re.compile(
    r"""architectures | model_type | (?:torch_)?dtype | template | tie_word_embeddings
    | .*(?:_|^)(?:size|dim|dims|heads|layers|channels|rank|width|ratio|step|interval)(?:_.*)?
    | (?:.*_)?(?:num|n)_.+ | .*experts.* | .*_bias | use_.+ | add_.+ | hidden_act | .*rope.*
    | layer_types | .*_pattern | .*_ids | .*_parts | .*_count | .*_lowrank | depth | d_model""",
    re.VERBOSE,
)
_WHOLE = ("quantization_config", "compression_config")
SKIP_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore")
"""Keys of the names of modules that stay as they are."""


def read_config(folder: Folder, file: str) -> tuple[dict[str, Any], str, int, list[Problem]]:
    """The config of that name: values, SHA-256 (hex) of its bytes, size, problems.

    A config that is not sound is {}; values of one that only has NaN or Infinity are kept, with a
    warning.

    Raises:
        NotReadable: it cannot be opened.
        InputError: larger than MAX_CONFIG, or changed while it was read.
    """
    raw = read_small(folder, file, MAX_CONFIG)
    problems: list[Problem] = []
    value = _parse(raw, file, problems)
    return value, hashlib.sha256(raw).hexdigest(), len(raw), problems


def _parse(raw: bytes, file: str, problems: list[Problem]) -> dict[str, Any]:
    text, fault = strict_json.decode(raw)
    value: Any = None
    faults = [fault] if fault else []
    if text is not None:
        value, faults = strict_json.parse(text, numbers="warn")
    for fault in faults:
        if fault.code == "non-json-number":
            problems.append(Problem(fault.code, fault.message, severity="warning", file=file))
        else:
            code = fault.code if fault.code == "duplicate-key" else "bad-config"
            problems.append(Problem(code, fault.message, file=file, malformed=True))
    if any(p.malformed for p in problems):
        return {}
    if not isinstance(value, dict):
        message = f"found {type(value).__name__}, expected a JSON object"
        problems.append(Problem("bad-config", message, file=file, malformed=True))
        return {}
    return value


def layout_values(config: dict[str, Any], full: bool = False) -> dict[str, Any]:
    """The values of a config that decide names, shapes and dtypes of tensors.

    Args:
        full: repeat long lists in full; a skip list always is.
    """
    out: dict[str, Any] = {}
    for key, value in config.items():
        if key in _WHOLE:
            out[key] = value if full else _shorten(value)
        elif isinstance(value, dict):
            inner = layout_values(value, full) if key.endswith("_config") else {}
            if inner:
                out[key] = inner
        elif _LAYOUT.fullmatch(key):
            out[key] = value if full else _shorten(value)
    return out


def whatever_is_there(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that holds for a part of its tensors as well: what the model is, and how
    tensors are quantised; no numbers of layers and experts, no list of modules."""
    out = {k: v for k, v in config.items() if k in ("architectures", "model_type")}
    for key, value in config.items():
        if key in _WHOLE and isinstance(value, dict):
            out[key] = {k: v for k, v in value.items() if k not in SKIP_LISTS}
        elif key.endswith("_config") and isinstance(value, dict):
            inner = whatever_is_there(value)
            out.update({key: inner} if inner.keys() & set(_WHOLE) else {})
    return out


def _shorten(value: Any) -> Any:
    if isinstance(value, dict):  # skip lists are whole: tensors are judged by them
        return {k: v if k in SKIP_LISTS else _shorten(v) for k, v in value.items()}
    if isinstance(value, list) and len(value) > MAX_LISTED:
        return {"type": "list", "length": len(value), "head": value[:4]}
    return value


def tied(config: dict[str, Any]) -> bool | None:
    """Whether the output head shares the matrix of the embedding.

    The language model's own flag overrides that of the whole.
    None when the config does not say.
    """
    inner = [v for k, v in config.items() if k in ("llm_config", "text_config", "language_config")]
    for values in [*(v for v in inner if isinstance(v, dict)), config]:
        flag = values.get("tie_word_embeddings")
        if isinstance(flag, bool):
            return flag
    return None
