"""What the commands do with outcomes: write, compare, list; and what they count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..records import Record
from .findings import as_note, has_errors, softened
from .output import write_all
from .project import Outcome, Project, drift


def listed(record: Record) -> Record:
    """What a table has for a record of `list`: a column for each of the values that one asks for,
    instead of one cell of JSON. Patches are counted."""
    if record["kind"] != "config":
        return record
    values = record["values"]
    return {"kind": "patched", **values, "patches": sum(values["patches"].values())}


def would_write(record: Record) -> Record:
    """What a table has for a record of a dry run: the summary claims no writing."""
    if record["kind"] != "summary":
        return record
    names = {"written": "would write"}
    return {**record, "files": {names.get(k, k): n for k, n in record["files"].items()}}


class Counts:
    """Configs, files and findings of one run, and the exit code: the highest of all configs."""

    def __init__(self) -> None:
        self.configs = 0
        self.exit_code = 0
        self.errors: list[str] = []
        self._files = {"written": 0, "unchanged": 0}
        self._findings: dict[str, int] = {}

    def count(self, outcome: Outcome) -> None:
        """Take in what became of a config."""
        self.configs += 1
        self.exit_code = max(self.exit_code, outcome.exit_code)
        for record in outcome.records():
            self.take(record)

    def take(self, record: dict[str, Any]) -> None:
        """Take in a `problem` record."""
        code = str(record["code"])
        self._findings[code] = self._findings.get(code, 0) + 1
        if record["severity"] == "error":
            name = f"{record['name']}: " if record.get("name") else ""
            file = f"config '{record['file']}'" if code == "config-missing" else record["file"]
            self.errors.append(f"{code}: {file}: {name}{record['message']}")

    def summary(self) -> dict[str, Any]:
        """Fields of the `summary` record."""
        return {"configs": self.configs, "files": dict(self._files), "findings": self._findings}

    def _write(
        self, outcome: Outcome, files: dict[Path, str], project: Project, dry_run: bool
    ) -> Iterator[dict[str, Any]]:
        new = {p: t for p, t in files.items() if _bytes(p) != t.encode()}
        if not dry_run:
            write_all(new)
        for path, text in files.items():
            state = "written" if path in new else "unchanged"
            self._files[state] += 1
            yield {
                "path": project.shown(path),
                "nbytes": len(text.encode()),
                "role": "diff" if path.suffix == ".diff" else "module",
                "state": f"not {state}" if dry_run and path in new else state,
                "config": outcome.name,
            }


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


class Run(Counts):
    """Writes modules.

    Args:
        diff: diffs too.
        whatever: in spite of findings of level error.
        dry_run: write nothing.
    """

    def __init__(self, *, diff: bool, whatever: bool, dry_run: bool) -> None:
        super().__init__()
        self._diff, self._whatever, self._dry_run = diff, whatever, dry_run

    def write(self, outcome: Outcome, project: Project) -> Iterator[dict[str, Any]]:
        """Write the files of a config; gives the fields of `file` records."""
        self.count(outcome)
        if outcome.problems or outcome.path is None:
            return
        if has_errors(outcome.findings) and not self._whatever:
            return
        files = {outcome.path: outcome.text}
        if self._diff:
            files[outcome.diff_path] = outcome.diff
        yield from self._write(outcome, files, project, self._dry_run)


class Check(Counts):
    """Compares with what is committed.

    Args:
        fix: write what differs, where no finding of level error is in the way.
        diff, ignore_version: see `project.drift`.
        whatever: fix in spite of findings.
    """

    def __init__(self, *, fix: bool, diff: bool, ignore_version: bool, whatever: bool) -> None:
        super().__init__()
        self._fix, self._whatever = fix, whatever
        self._diff, self._ignore_version = diff, ignore_version

    def compare(self, outcome: Outcome, project: Project) -> Iterator[dict[str, Any]]:
        """Add differences to the findings of a config; gives `file` records of what --fix wrote."""
        records: list[dict[str, Any]] = []
        if not outcome.problems and outcome.path is not None:
            refused = has_errors(outcome.findings) and not self._whatever
            may_fix = self._fix and not refused
            shown = [project.shown(outcome.path), project.shown(outcome.diff_path)]
            differing = drift(outcome, shown, diffs=self._diff, ignore_version=self._ignore_version)
            if refused:  # what generate does not write is no drift where it is not there
                differing = {path: f for path, f in differing.items() if path.is_file()}
            if may_fix and differing:
                texts = {outcome.path: outcome.text, outcome.diff_path: outcome.diff}
                files = {path: texts[path] for path in differing}
                records = list(self._write(outcome, files, project, False))
            told = softened(differing.values(), project.allowed)
            for found in (*outcome.changed, *told):
                outcome.findings.append(as_note(found, " (fixed)") if may_fix else found)
        self.count(outcome)
        yield from records

    def orphans(self, project: Project) -> Iterator[dict[str, Any]]:
        """Fields of `problem` records of generated files without a config."""
        for found in softened(project.orphans(), project.allowed):
            record = {**found.record("", ""), "config": None}
            self.take(record)
            self.exit_code = max(self.exit_code, int(has_errors([found])))
            yield record


class Listing(Counts):
    """Describes configs."""

    def describe(self, outcome: Outcome, project: Project) -> Iterator[dict[str, Any]]:
        """Fields of the `config` record of a config that was loaded."""
        self.count(outcome)
        plan = outcome.plan
        if plan is None or outcome.path is None:
            return
        kinds: dict[str, int] = {}
        for patch in plan.patches:
            kinds[patch.kind.value] = kinds.get(patch.kind.value, 0) + 1
        yield {
            "path": outcome.file,
            "values": {
                "config": outcome.name,
                "source": plan.source_module,
                "output": project.shown(outcome.path),
                "patches": kinds,
                "description": plan.description,
            },
        }
