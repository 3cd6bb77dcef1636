"""Runs the checks of a package: selection, dependencies, and one finding at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from ..errors import UsageProblem
from ..suggestions import did_you_mean
from .checks.catalogue import BY_ID, CHECKS
from .checks.subject import Check, Finding, Part, Subject, not_applicable

RUNNING = ("run.", "golden.")
"""Beginnings of ids whose checks run graphs."""


def _no_such_check(option: str, pattern: str, ids: Sequence[str]) -> UsageProblem:
    """The list of all ids is long and gets cut: it is given where there is no better advice."""
    group = pattern.rstrip(".")
    if group and any(i.startswith(f"{group}.") for i in ids):
        hint = f"{option} '{group}.*' takes all of that group"
    else:
        meant = did_you_mean(pattern, ids)
        if meant is None:
            expected = f"ids or globs of: {', '.join(ids)}"
            return UsageProblem(f"{option} '{pattern}'", expected=expected)
        hint = meant
    return UsageProblem(f"{option} '{pattern}': no such check", hint=hint)


def select(
    wanted: Sequence[str] = (), skipped: Sequence[str] = (), *, run: bool = True
) -> list[str]:
    """Ids that match one of `wanted` (all, if none) and none of `skipped`; those that run
    something only with `run`.

    Raises:
        UsageProblem: a pattern that matches no id, or nothing left.
    """
    ids = [c.id for c in CHECKS]
    for option, patterns in (("--check", wanted), ("--skip", skipped)):
        for pattern in patterns:
            if not any(fnmatchcase(i, pattern) for i in ids):
                raise _no_such_check(option, pattern, ids)
    chosen = [
        i
        for i in ids
        if (not wanted or any(fnmatchcase(i, p) for p in wanted))
        and not any(fnmatchcase(i, p) for p in skipped)
        and (run or not i.startswith(RUNNING))
    ]
    if not chosen:
        raise UsageProblem("no check is left by --check, --skip and --no-run")
    return chosen


Run = Callable[[Check, Part | None], list[Finding]]
"""What makes the findings of a check about a part, or about the package."""


def verify(
    subject: Subject, ids: Sequence[str], named: Collection[str] = (), run: Run | None = None
) -> Iterator[tuple[str, Finding]]:
    """Findings of the checks, each with its id: at least one for every component it is about.

    A check that needs another one which does not hold is not run and says so (`ok` None), so that
    one fault is reported by the check that it belongs to. If that one is not among `ids`, its fault
    is reported all the same, in front: a selection does not make a broken package good.

    Args:
        named: ids that the user spelled out. Where such a check does not apply, it fails: the
            answer to a question is not that there was nothing to ask.
        run: what runs a check; by default it runs in this process (see sandbox.py).
    """
    runner = _Runner(subject, run)
    told: set[tuple[str, Part | None]] = {(i, p) for i in ids for p in _places(BY_ID[i], subject)}
    for i in ids:
        check = BY_ID[i]
        for part in _places(check, subject):
            for culprit, place, findings in runner.culprits(check, part):
                if (culprit, place) not in told:
                    told.add((culprit, place))
                    yield from ((culprit, _placed(f, place)) for f in findings)
            for finding in runner.findings(check, part):
                if i in named and finding.ok is None and finding.see is None:
                    finding = replace(finding, ok=False, reason=finding.reason or "not-applicable")
                yield i, _placed(finding, part)


def count(subject: Subject, ids: Sequence[str]) -> int:
    """How many times a check is run, where nothing keeps one from it."""
    return sum(len(_places(BY_ID[i], subject)) for i in ids)


def _places(check: Check, subject: Subject) -> tuple[Part | None, ...]:
    """What a check is run on: the package (None), or each of its components."""
    return (None,) if check.package else tuple(subject.parts)


def _placed(finding: Finding, part: Part | None) -> Finding:
    return replace(finding, component=finding.component or (part.name if part else None))


class _Runner:
    def __init__(self, subject: Subject, run: Run | None) -> None:
        self._subject = subject
        self._call = run
        self._done: dict[tuple[str, str | None], list[Finding]] = {}

    def findings(self, check: Check, part: Part | None) -> list[Finding]:
        """Findings of a check about a part (None: the package); made once."""
        key = (check.id, part.name if part else None)
        if key not in self._done:
            self._done[key] = self._run(check, part)
        return self._done[key]

    def _run(self, check: Check, part: Part | None) -> list[Finding]:
        if not check.plain and not self._subject.is_package:
            return [not_applicable("there is no package.json")]
        for need in check.needs:
            needed = BY_ID[need]
            if not needed.plain and not self._subject.is_package:
                continue  # it has nothing to say of graphs alone
            parts = [None] if needed.package else [part] if part else self._subject.parts
            for p in parts:
                if not all(f.ok for f in self.findings(needed, p)):
                    of = f" of {p.name}" if p and not part else ""
                    return [not_applicable(f"needs {need}{of}", see=need)]
        found = (self._call or self._here)(check, part)
        return found if any(not f.warning for f in found) else [*found, Finding(True, check.holds)]

    def _here(self, check: Check, part: Part | None) -> list[Finding]:
        return check.run(self._subject, part) if part else check.run(self._subject)

    def culprits(
        self, check: Check, part: Part | None
    ) -> Iterator[tuple[str, Part | None, list[Finding]]]:
        """Checks whose faults keep this one from an answer, the first cause first."""
        for see in dict.fromkeys(f.see for f in self.findings(check, part) if f.ok is None):
            if see is None:
                continue
            needed = BY_ID[see]
            same = part is not None and not needed.package
            for p in (part,) if same else _places(needed, self._subject):
                yield from self.culprits(needed, p)
                faults = [f for f in self.findings(needed, p) if f.ok is False]
                if faults:
                    yield see, p, faults


@dataclass
class Tally:
    """Counts for the `summary` record.

    Attributes:
        states: records by `ok`.
        failed: ids with at least one false, in order.
        first: the first finding that is false.
        idle: the first finding that does not apply.
    """

    states: Counter[bool | None] = field(default_factory=Counter)
    warnings: int = 0
    failed: list[str] = field(default_factory=list)
    first: tuple[str, Finding] | None = None
    idle: tuple[str, Finding] | None = None

    @property
    def ok(self) -> bool:
        """Nothing failed, and something held: a run that checked nothing says nothing good."""
        return not self.failed and self.states[True] > 0

    def add(self, check: str, finding: Finding) -> None:
        """Count one finding."""
        self.states[finding.ok] += 1
        self.warnings += finding.warning
        if finding.ok is False:
            self.first = self.first or (check, finding)
            if check not in self.failed:
                self.failed.append(check)
        if finding.ok is None:
            self.idle = self.idle or (check, finding)

    def fault(self) -> tuple[str, str] | None:
        """(how it ended, the first thing to look at) of a run that is not ok."""
        if self.first is not None:
            check, finding = self.first
            inside = finding.message.startswith(finding.component or "")
            where = "" if inside else f"{finding.component}: "
            found = f": found {finding.actual}" if finding.actual is not None else ""
            expected = f", expected {finding.expected}" if finding.expected is not None else ""
            text = f"the first: {check}: {where}{finding.message}{found}{expected}"
            return f"findings: {self.states[False]}", text
        if self.ok:
            return None
        check, finding = self.idle or ("package.json", Finding(None, "no components"))
        return "nothing was checked", f"{check}: {finding.message}"

    def summary(self) -> dict[str, Any]:
        """Fields of the `summary` record."""
        return {
            "ok": self.ok,
            "passed": self.states[True],
            "failed": self.states[False],
            "not_applicable": self.states[None],
            "warnings": self.warnings,
            "failed_checks": self.failed,
        }


def record(check: str, finding: Finding) -> dict[str, Any]:
    """Fields of a `check` record."""
    fields: dict[str, Any] = {
        "id": check,
        "ok": finding.ok,
        "component": finding.component,
        "expected": finding.expected,
        "actual": finding.actual,
        "message": finding.message,
    }
    if finding.reason:
        fields["reason"] = finding.reason
    if finding.warning:
        fields["severity"] = "warning"
    return fields
