"""Strict, bounded reading of small JSON files that come with a tokenizer."""

from __future__ import annotations

import json
from typing import Any

from ..errors import InputError
from ..regular_file import read_bytes


def read_json(path: str, limit: int) -> dict[str, Any]:
    """A JSON object from a file: UTF-8 without BOM, no key twice at any depth, no NaN or Infinity.

    Raises:
        SourceNotFound, InputError: as `read_bytes`; the JSON breaks one of these rules.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise InputError(f"{path}: key {key!r} appears twice")
                seen.add(key)
        return found

    def constant(word: str) -> None:
        raise InputError(f"{path}: {word} is not JSON")

    data = read_bytes(path, limit)
    if data.startswith(b"\xef\xbb\xbf"):
        raise InputError(f"{path}: begins with a byte order mark; JSON is UTF-8 without one")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not UTF-8 at byte {e.start}") from e
    except RecursionError as e:
        raise InputError(f"{path}: JSON nested too deeply") from e
    except ValueError as e:  # also integers of more digits than Python converts
        raise InputError(f"{path}: not JSON: {e}") from e
    if not isinstance(value, dict):
        raise InputError(f"{path}: top level", found=type(value).__name__, expected="an object")
    return value
