"""The list of the odd files that are made in code, and how one is added.

Fields of a case are those of tests/data/hostile/manifest.json. Two verdicts are more: `refuse`
(malformed or not supported: 3 or 5), and `difference` (census finds what does not fit: 1; 3 from
others).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Build = Callable[[Path], None]
CASES: list[dict[str, Any]] = []
_BUILD: dict[str, Build] = {}
READERS = ["inspect-headers", "census"]
GRAPHS = ["inspect-headers", "verify-package", "run-prefill"]
FP8 = ["convert-fp8", "census"]
PROMPTED = ["run-prefill", "sample-image"]
COMMIT = "41cc25fe32cc20053a59c89716196897580cddf6"


def case(
    name: str,
    verdict: str,
    build: Build,
    *,
    kind: str,
    main: str,
    commands: list[str],
    words: str | None = None,
    **expect: Any,
) -> None:
    """Add a case."""
    assert name not in _BUILD, name
    _BUILD[name] = build
    fields = {"id": name, "verdict": verdict, "format": kind, "main": main, "also": []}
    mention = [] if words is None else [words]
    CASES.append({**fields, "subcommands": commands, "must_mention": mention, "expect": expect})


def make(name: str, folder: Path) -> None:
    """Write the files of a case into a new folder."""
    folder.mkdir(parents=True)
    _BUILD[name](folder)
