"""`check` records as JUnit XML, which CI systems read: a suite a component, a case a check."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from ..errors import printable
from ..records import Record, dumps

PACKAGE = "package"
"""Name of the suite of checks that are about no single component."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no spelling for."""


@dataclass
class _Case:
    """One check of one component, with all its findings."""

    seconds: float = 0.0
    records: list[Record] = field(default_factory=list)


class JUnit:
    """Collects the records of a stream and writes one XML document when it is closed.

    Args:
        clock: seconds; the time between two records is what the check of the second one took.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._last = clock()
        self._suites: dict[str, dict[str, _Case]] = {}
        self._name = "ntool"
        self._error: Record | None = None
        self._beside: list[str] = []

    def record(self, record: Record) -> None:
        """Take one record; `check` and `error` become cases, the rest properties or nothing."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        kind = record["kind"]
        if kind == "begin":
            self._name = f"ntool {record.get('source') or ''}".strip()
        elif kind == "check":
            suite = self._suites.setdefault(record["component"] or PACKAGE, {})
            case = suite.setdefault(record["id"], _Case())
            case.seconds += seconds
            case.records.append(record)
        elif kind == "error":
            self._error = record
        elif kind == "summary" and not record["ok"] and not record["failed"]:
            # skipped cases alone would look like a run without a fault
            message = "nothing was checked"
            self._error = {"message": message, "class": "CheckFailed", "code": 1}
        elif kind == "file":
            self._beside.append(f"{record.get('role')}: {record['path']}")

    def close(self) -> None:
        """Write the document."""
        root = ET.Element("testsuites", {"name": _text(self._name)})
        for name, cases in self._suites.items():
            root.append(_suite(name, cases))
        if self._error is not None:
            root.append(_stopped(self._error))
        for count in ("tests", "failures", "errors", "skipped"):
            root.set(count, str(sum(int(s.get(count, "0")) for s in root)))
        root.set("time", f"{sum(float(s.get('time', '0')) for s in root):.3f}")
        if self._beside and len(root):
            ET.SubElement(root[0], "system-out").text = _text("\n".join(self._beside))
        ET.indent(root)
        text = ET.tostring(root, encoding="unicode")
        # as ASCII it is right whatever encoding standard output has
        text = text.encode("ascii", "xmlcharrefreplace").decode("ascii")
        self._out.write(f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _suite(name: str, cases: dict[str, _Case]) -> ET.Element:
    suite = ET.Element("testsuite", {"name": _text(name)})
    counts = dict.fromkeys(("failures", "skipped"), 0)
    for check, case in cases.items():
        element = ET.SubElement(
            suite,
            "testcase",
            {"name": check, "classname": _text(name), "time": f"{case.seconds:.3f}"},
        )
        failed = [r for r in case.records if r["ok"] is False]
        warnings = [r for r in case.records if r.get("severity") == "warning"]
        if failed:
            counts["failures"] += 1
            message = _text(failed[0]["message"])
            kind = _text(failed[0].get("reason") or check)
            failure = ET.SubElement(element, "failure", {"message": message, "type": kind})
            failure.text = "\n\n".join(_finding(r) for r in failed)
        elif all(r["ok"] is None for r in case.records):
            counts["skipped"] += 1
            ET.SubElement(element, "skipped", {"message": _text(case.records[0]["message"])})
        if warnings:
            said = "\n\n".join(f"warning: {_finding(r)}" for r in warnings)
            ET.SubElement(element, "system-out").text = said
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(counts["failures"]))
    suite.set("errors", "0")
    suite.set("skipped", str(counts["skipped"]))
    suite.set("time", f"{sum(c.seconds for c in cases.values()):.3f}")
    return suite


def _stopped(error: Record) -> ET.Element:
    """The suite of a run that ended before its checks did."""
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0.000"}
    suite = ET.Element("testsuite", {"name": "ntool", **counts})
    case = ET.SubElement(suite, "testcase", {"name": "run", "classname": "ntool", "time": "0.000"})
    about = {"message": _text(error["message"]), "type": _text(error["class"])}
    ET.SubElement(case, "error", about).text = _text(f"exit code {error['code']}")
    return suite


def _finding(record: Record) -> str:
    """Message, expected and found of one finding, a line each."""
    lines = [_text(record["message"])]
    for key, word in (("expected", "expected"), ("actual", "found")):
        if record.get(key) is not None:
            lines.append(f"{word}: {_value(record[key])}")
    return "\n".join(lines)


def _value(value: Any) -> str:
    return _text(value if isinstance(value, str) else dumps({"v": value})[5:-1])


def _text(value: object) -> str:
    """Text for the document; what XML cannot hold, or a terminal should not see, is spelled out."""
    lines = (printable(line) for line in str(value).split("\n"))
    return _NOT_XML.sub(lambda m: f"\\u{ord(m[0]):04x}", "\n".join(lines))
