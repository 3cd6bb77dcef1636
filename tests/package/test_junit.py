"""JUnit XML: what CI systems read of it, on made records and on real runs."""

from __future__ import annotations

import io
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ntool.console import FORMATS, MORE_FORMATS
from ntool.lib.package.junit import JUnit

from ..conftest import Ended

HOSTILE = "<script>alert(1)</script> \x1b[31m \x00 \ufffe \ud800 \u202e ]]> & \"'"
COUNTS = ("tests", "failures", "errors", "skipped")


def check(id: str, ok: bool | None, component: str | None = None, **more: Any) -> dict[str, Any]:
    fields = {"expected": None, "actual": None, "message": f"about {id}", **more}
    return {"kind": "check", "id": id, "ok": ok, "component": component, **fields}


def document(*records: dict[str, Any], step: float = 0.25) -> ET.Element:
    """The parsed document of a stream whose records come a quarter of a second apart."""

    def times() -> Iterator[float]:
        at = 100.0
        while True:
            yield at
            at += step

    clock, out = times(), io.StringIO()
    sink = JUnit(out, lambda: next(clock))
    for record in records:
        sink.record(record)
    sink.close()
    text = out.getvalue()
    assert text.isascii() and text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n')
    root = ET.fromstring(text)
    sound(root)
    return root


def sound(root: ET.Element) -> None:
    """What readers need: names, class names, times, and counts that add up."""
    assert root.tag == "testsuites" and root.get("name")
    for suite in root:
        assert suite.tag == "testsuite" and suite.get("name")
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases) > 0
        for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.get(count, "")) == sum(c.find(tag) is not None for c in cases)
        for case in cases:
            assert case.get("name") and case.get("classname") and float(case.get("time", "")) >= 0
            assert len([e for e in case if e.tag != "system-out"]) <= 1
        names = [case.get("name") for case in cases]
        assert len(set(names)) == len(names), "one case a check"
        total = sum(float(c.get("time", "")) for c in cases)
        assert float(suite.get("time", "")) == pytest.approx(total, abs=1e-3 * len(cases))
        assert {e.tag for e in suite} <= {"testcase", "system-out"}
    for count in COUNTS:
        assert int(root.get(count, "")) == sum(int(s.get(count, "")) for s in root)


BEGIN = {"kind": "begin", "source": "shapes.pkg"}


def test_cases() -> None:
    root = document(
        BEGIN,
        check("layout.files", True),
        check("graph.parse", True, "decoder"),
        check("graph.dead", False, "decoder", expected=[1], actual="two", reason="unused"),
        check("graph.dead", False, "decoder", message="another"),
        check("data.hash", None, message="no SHA256SUMS"),
        check("data.path", True, "decoder", severity="warning", message="hard link"),
        check("data.path", True, "decoder", message="fine"),
        {"kind": "file", "path": "r.html", "role": "report"},
        {"kind": "summary", "ok": False, "failed": 2},
        {"kind": "end", "count": 9, "seconds": 3},
    )
    assert root.get("name") == "ntool shapes.pkg"
    package, decoder = root
    assert (package.get("name"), decoder.get("name")) == ("package", "decoder")
    assert [root.get(c) for c in COUNTS] == ["5", "1", "0", "1"]
    cases = {c.get("name"): c for s in root for c in s if c.tag == "testcase"}
    failure = cases["graph.dead"].find("failure")
    assert failure is not None and failure.text == (
        "about graph.dead\nexpected: [1]\nfound: two\n\nanother"
    )
    assert (failure.get("message"), failure.get("type")) == ("about graph.dead", "unused")
    assert cases["graph.dead"].get("time") == "0.500"  # of two findings
    skipped = cases["data.hash"].find("skipped")
    assert skipped is not None and skipped.get("message") == "no SHA256SUMS"
    assert cases["data.path"].findtext("system-out") == "warning: hard link"
    assert package.findtext("system-out") == "report: r.html"


def test_a_run_that_stopped() -> None:
    error = {"kind": "error", "code": 3, "class": "InputError", "message": HOSTILE}
    root = document(BEGIN, check("layout.files", True), error)
    assert root.get("errors") == "1"
    found = root.find(".//error")
    assert found is not None and found.get("type") == "InputError"


def test_nothing_checked_is_no_success() -> None:
    summary = {"kind": "summary", "ok": False, "failed": 0}
    root = document(BEGIN, check("data.hash", None), summary)
    assert root.get("errors") == "1" and root.get("skipped") == "1"


def test_hostile_texts() -> None:
    root = document(
        {"kind": "begin", "source": HOSTILE},
        check("graph.parse", False, HOSTILE, message=HOSTILE, expected=HOSTILE, actual=[HOSTILE],
              reason=HOSTILE),
        check("graph.dead", None, HOSTILE, message=HOSTILE),
        check("data.path", True, HOSTILE, severity="warning", message=HOSTILE),
        {"kind": "file", "path": HOSTILE, "role": "report"},
    )  # fmt: skip
    said = ET.tostring(root, encoding="unicode")
    assert "<script>" not in said and "\x1b" not in said
    failure = root.find(".//failure")
    assert failure is not None
    message = failure.get("message", "")
    assert message.startswith("<script>alert(1)</script> \\x1b[31m \\x00 \\ufffe \\ud800 \\u202e")


# -- as a format of the command -------------------------------------------------------------------


def test_real_runs(ntool: Callable[..., Ended], demo_package: Path, tmp_path: Path) -> None:
    options = ("--format", "junit", "--device", "cpu")
    root = ET.fromstring(ntool("verify-package", demo_package, *options).out)
    sound(root)
    records = ntool("verify-package", demo_package, "--device", "cpu").of("check")
    pairs = {(r["component"] or "package", r["id"]) for r in records}
    assert int(root.get("tests", "")) == len(pairs) and root.get("failures") == "0"
    broken = tmp_path / "pkg"
    shutil.copytree(demo_package, broken)
    (broken / "left.txt").write_text("x")
    root = ET.fromstring(ntool("verify-package", broken, "--no-run", *options, code=1).out)
    sound(root)
    (failed,) = [c for c in root.iter("testcase") if c.find("failure") is not None]
    assert (failed.get("classname"), failed.get("name")) == ("package", "layout.files")
    root = ET.fromstring(ntool("verify-package", tmp_path / "nope", *options, code=4).out)
    sound(root)
    assert root.get("errors") == "1"


def test_other_commands_refuse_it_by_name(ntool: Callable[..., Ended]) -> None:
    assert set(MORE_FORMATS) == {"verify-package"}
    done = ntool("census", "demo:shapes", "--format", "junit", code=2)
    assert "'junit'" in done.err and "only of verify-package" in done.err and not done.out
    done = ntool("verify-package", "x", "--format", "xml", code=2)
    assert all(f in done.err for f in (*FORMATS, "junit"))
