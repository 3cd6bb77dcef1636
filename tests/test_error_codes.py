"""docs/errors.md has every code that is written into a record, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ntool.completion import CHECK_IDS
from ntool.lib import errors
from ntool.lib.package.checks.catalogue import BY_ID
from ntool.lib.patchgen.findings import CODES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
LIB = ROOT / "lib"


def rows(title: str) -> list[tuple[list[str], list[str]]]:
    """(what is quoted in the first cell, the other cells) of the tables under a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    out = []
    for line in re.findall(r"^\|(.*)\|$", found[1], re.M):
        first, *rest = (cell.strip() for cell in line.split("|"))
        if "`" in first:
            out.append((re.findall(r"`([^`]+)`", first), rest))
    return out


def listed(title: str) -> set[str]:
    return {code for codes, _ in rows(title) for code in codes}


def modules(*tops: Path) -> list[Path]:
    return [m for top in tops for m in sorted(top.rglob("*.py") if top.is_dir() else [top])]


def test_every_row_says_what_it_means_and_what_to_do() -> None:
    for title, cells in (
        *(("Errors that end a run", 3), ("Codes of problems", 2), ("Findings of patchgen", 1)),
        *(("Checks", 1), ("Reasons", 2)),
    ):
        found = rows(title)
        assert found
        for codes, rest in found:
            assert len(rest) == cells and all(rest), codes


CODED = ("checkpoint", "conversion", "experts", "families", "fp8")
"""Folders of lib/ whose modules make problems, with the modules at its top."""
ON_THE_NETWORK = ("connections", "http_", "hub", "parallel", "range", "remote_")
"""Starts of modules whose words with dashes are fields of HTTP; their calls count all the same."""
OTHER_WORDS = {
    *("utf-8", "expert-group", "per-tensor", "scale-consumed"),
    *("index-names-absent-tensor", "not-in-index"),  # of the detection of layouts, told otherwise
    "bad-json",  # of the JSON reader: files have their own code for it
    *("fc1-fc2", "fc1-fc3-fc2", "gate-up-down", "up-down", "w1-w3-w2", "wi-wo"),
    *("fused-transposed", "compressed-tensors"),
    "onnxruntime-gpu",
    "ntool-processor-v1",  # the schema of processor.json
    "image-text",  # the form of a package
}
"""Words with dashes in these modules that are no codes."""
NOTING = {
    *("Problem", "NotReadable", "Stopped", "_Stop", "Fault"),
    *("broken", "_broken", "_problem", "_note", "report", "report_tensors", "one", "bad"),
}
"""What is called with a code as its first or second argument."""


def literals(top: ast.AST) -> Iterator[str]:
    """Texts in a module that may be codes; docstrings are none."""
    for node in ast.walk(top):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\A[a-z][a-z0-9]*(?:-[a-z0-9]+)*\Z", node.value)


def noted(top: ast.AST) -> Iterator[str]:
    """Codes that stand in the calls that note problems."""
    for node in ast.walk(top):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            for argument in node.args[:2] if name in NOTING else ():
                branches = (argument, getattr(argument, "body", None))
                for branch in (*branches, getattr(argument, "orelse", None)):
                    if isinstance(branch, ast.Constant):
                        yield from literals(branch)


def test_codes_of_problems() -> None:
    """Words with dashes and what stands in calls."""
    known, dashed, called = set(), set(), set()
    for module in modules(*LIB.glob("*.py"), *(LIB / folder for folder in CODED)):
        if "neo_chat" in module.parts:  # its words with dashes are tasks
            continue
        top = ast.parse(module.read_text(encoding="utf-8"))
        words = set(literals(top))
        known |= words
        if not module.name.startswith(ON_THE_NETWORK):
            dashed |= {w for w in words if "-" in w}
        called |= set(noted(top))
    codes = listed("Codes of problems")
    assert len(called) > 60 and "truncated" in called and "rename-guess" in called
    assert (dashed | called) - OTHER_WORDS - codes == set(), "codes without a word"
    assert codes - known == set(), "codes that nothing has"


def test_findings_of_patchgen() -> None:
    """Those with a level, and those of configs and sources that cannot be read."""
    words, called = set(), set()
    for module in modules(LIB / "patchgen", *(ROOT / "commands").glob("patchgen_*.py")):
        top = ast.parse(module.read_text(encoding="utf-8"))
        words |= set(literals(top))
        for node in ast.walk(top):
            if isinstance(node, ast.keyword) and node.arg == "code":
                called |= set(literals(node.value))
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                for key, value in pairs:
                    if isinstance(key, ast.Constant) and key.value == "code":
                        called |= set(literals(value))
    codes = listed("Findings of patchgen")
    assert CODES.keys() | called <= codes, "codes without a word"
    assert codes <= words, "codes that nothing has"
    on_its_page = (ROOT / "docs" / "patchgen.md").read_text(encoding="utf-8")
    assert {c for c in codes if f"`{c}`" not in on_its_page} == set()


def test_ids_of_checks() -> None:
    assert listed("Checks") == set(BY_ID) == set(CHECK_IDS)
    for _, (checks, _) in rows("Reasons"):
        assert checks == "any" or set(checks.split(", ")) <= set(BY_ID), checks


def given(top: ast.AST) -> Iterator[str]:
    """Reasons in a module: arguments and variables called so, and fates of processes."""
    for node in ast.walk(top):
        if isinstance(node, ast.keyword) and node.arg == "reason":
            yield from literals(node.value)
        elif isinstance(node, ast.Assign):
            names = {getattr(t, "id", "") for t in node.targets}
            if names & {"reason", "fate"}:
                yield from first_words(node.value)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield from first_words(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_reason":
            yield from literals(node.args[1])


def first_words(value: ast.expr) -> Iterator[str]:
    """The text itself, or the first of a tuple, in both branches of a condition."""
    for each in (getattr(value, "body", value), getattr(value, "orelse", value)):
        yield from literals(each.elts[0] if isinstance(each, ast.Tuple) else each)


NO_REASONS = {"file"}
"""First words of other tuples that functions return."""


def test_reasons_of_checks() -> None:
    found, words = set(), set()
    for module in modules(LIB / "package"):
        if module.name in ("report_facts.py", "export.py", "junit.py"):
            continue  # they read reasons, or have those of other things
        top = ast.parse(module.read_text(encoding="utf-8"))
        found |= set(given(top))
        words |= set(literals(top))
    reasons = listed("Reasons")
    assert len(found) > 60 and {"given-up", "crashed", "not-finite", "no-kernel"} <= found
    assert found - reasons - listed("Codes of problems") - NO_REASONS == set(), "without a word"
    assert reasons - words == set(), "reasons that nothing has"


def test_classes_of_errors() -> None:
    classes = {
        name: c.exit_code
        for name, c in vars(errors).items()
        if isinstance(c, type) and issubclass(c, errors.NtoolError) and c is not errors.NtoolError
    }
    table = {name: int(cells[0]) for (name,), cells in rows("Errors that end a run")}
    assert table == classes
