"""What is wrong with a patched module: codes, levels and the records made of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

CODES = {
    "target-missing": "error",
    "not-applied": "error",
    "shadowed": "error",
    "duplicate-target": "error",
    "anchor-missing": "error",
    "dangling-name": "error",
    "undefined-name": "error",
    "lost-field": "error",
    "duplicate-decorator": "error",
    "accessor-split": "error",
    "signature-narrowed": "error",
    "undocumented-parameter": "info",
    "decorator-lost": "info",
    "map-over-reach": "info",
    "map-changed-literal": "info",
    "import-not-dropped": "info",
    "dead-definition": "info",
    "orphan": "error",
    "drift": "error",
    "formatter-changed": "error",
    "signature-changed": "error",
    "replacement-lacks-parameter": "error",
    "decorators-changed": "error",
    "bases-changed": "error",
    "fields-changed": "error",
    "kind-changed": "error",
    "body-changed": "error",
    "duplicate-output": "error",
}
"""Code -> severity where nothing softens it."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        code: of CODES.
        name: target of the patch, or the name that it is about.
        message: one line.
        severity: `error` or `info`.
        details: more fields of the record: `where`, `fields`, `decorators`, ...
        file: the file that it is about, where that is not the config.
    """

    code: str
    name: str
    message: str
    severity: str = "error"
    details: dict[str, Any] = field(default_factory=dict, compare=False)
    file: str | None = None

    def record(self, file: str, config: str) -> dict[str, Any]:
        """Fields of a `problem` record."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file or file,
            "name": self.name,
            "message": self.message,
            "config": config,
            **self.details,
        }


def finding(code: str, name: str, message: str, *, note: bool = False, **details: Any) -> Finding:
    """A finding with the severity of its code; `note` softens it."""
    severity = "info" if note else CODES[code]
    return Finding(code, name, message, severity, details)


def as_note(found: Finding, more: str = "") -> Finding:
    """A finding that is no error, with more words to its message."""
    return replace(found, message=found.message + more, severity="info")


def softened(findings: Iterable[Finding], allowed: Iterable[str]) -> list[Finding]:
    """The findings, each once; those that are allowed are no errors.

    Args:
        allowed: `CODE`, or `CODE:NAME` for one target.
    """
    given = set(allowed)
    found = []
    for f in dict.fromkeys(findings):
        if f.severity == "error" and {f.code, f"{f.code}:{f.name}"} & given:
            f = as_note(f, " (allowed)")
        found.append(f)
    return found


def not_allowable(word: str) -> str | None:
    """What is wrong with something that is to be allowed, None where it is `CODE[:NAME]`."""
    code, colon, name = word.partition(":")
    if code not in CODES:
        return f"{word!r} is no code of a finding{did_you_mean(code, CODES)}"
    return f"{word!r} names nothing" if colon and not name else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` where something known is close to a word, else nothing."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether one of them is an error."""
    return any(f.severity == "error" for f in findings)
