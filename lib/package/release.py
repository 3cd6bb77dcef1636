"""The release check as a whole: what is asked for, checks in their process, what is written."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SourceNotFound, UsageProblem
from ..progress import step
from ..suggestions import near_path
from . import layout, sums, verify
from .checks.subject import Check, Finding, Options, Part, Subject
from .limits import limits_for
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .report import Report

_ANEW = "ntool export-component SOURCE -o PKG --force writes it anew"
_HINTS = {
    "graph.standard": "ntool export-component SOURCE -o PKG --ep onnx-standard uses no others",
    "data.orphans": "ntool verify-package PKG --compact OUT writes it without them",
    "weights.complete": _ANEW,
    "weights.values": _ANEW,
    "run.support": "ntool doctor shows what this machine has",
}
"""By id: what to do where one thing is likely to help."""


@dataclass(frozen=True)
class Order:
    """What the user asked of a check.

    Attributes:
        only, without: ids or globs of checks.
        run: whether graphs may be loaded and run.
        against: SOURCE whose weights those of the package have to be.
        golden: `[COMPONENT=]FILE` each.
        manifest: list of SHA-256 sums to compare with, instead of the package's own.
        report, pictures: page to write, and pictures to show on it.
        compact: folder to write the package to without orphan bytes; `force` may replace it.
        timeout: seconds of one check. memory: bytes. None: by the size of the package.
    """

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    run: bool = True
    standard_only: bool = False
    against: str | None = None
    golden: tuple[str, ...] = ()
    manifest: str | None = None
    write_manifest: bool = False
    report: str | None = None
    pictures: tuple[str, ...] = ()
    compact: str | None = None
    force: bool = False
    device: str = "auto"
    timeout: float | None = None
    memory: int | None = None


def selected(order: Order) -> tuple[list[str], set[str]]:
    """Ids of the checks to run, and those of them that the user spelled out.

    Raises:
        UsageProblem: options that contradict or need each other.
    """
    if order.write_manifest and order.manifest:
        raise UsageProblem("--write-manifest with --manifest", expected="one of them")
    if order.force and order.compact is None:
        raise UsageProblem("--force", expected="--compact OUT with it")
    for option, given, expected in (
        ("--against", order.against, "SOURCE"),
        ("--manifest", order.manifest, "a file name"),
        ("--compact", order.compact, "a folder name"),
        *(("--picture", p, "a file name") for p in order.pictures),
    ):
        if given == "":
            raise UsageProblem(option, found="nothing", expected=expected)
    # --compact is to remove what this check would tell
    left_out = [*order.without, *(["data.orphans"] if order.compact else [])]
    ids = verify.select(order.only, left_out, run=order.run)
    named = set(ids) & set(order.only)
    if "weights.values" in named and order.against is None:
        raise UsageProblem("--check weights.values", expected="--against SOURCE with it")
    if "golden.values" in named and not order.golden:
        raise UsageProblem("--check golden.values", expected="--golden FILE with it")
    if order.golden and "golden.values" not in ids:
        raise UsageProblem("--golden", found="a selection without golden.values", expected="it too")
    if order.manifest and "data.hash" not in ids:
        raise UsageProblem("--manifest", found="a selection without data.hash", expected="it too")
    if order.write_manifest:
        named.discard("data.hash")  # there is no list before it is written
    return ids, named


class Release:
    """One check of one package.

    Attributes:
        tally: what was found so far.
    """

    def __init__(self, package: str, order: Order, note: Callable[[str], None]) -> None:
        """
        Raises:
            UsageProblem: options that contradict or need each other.
        """
        self.tally = verify.Tally()
        self._package, self._order, self._note = package, order, note
        self._ids, self._named = selected(order)

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, fields) of the records of findings and of files that were written, as they come.

        Raises:
            SourceNotFound, InputError, Unsupported: of package, checkpoint, golden file or sums.
            EnvironmentProblem: no such device, an output that cannot be written.
        """
        order, tally = self._order, self.tally
        subject = Subject(self._package, self._options())
        options = subject.options
        if order.manifest and not os.path.exists(order.manifest):
            hint = near_path(order.manifest)
            raise SourceNotFound(f"--manifest {order.manifest}: no such file", hint=hint)
        if order.golden:
            from .checks import golden_values  # noqa: F401 (before the process of the checks begins)
            from .golden_file import open_goldens

            options.goldens = open_goldens(order.golden, [p.name for p in subject.parts])
        read = [g.path for g in options.goldens]
        read += [p for p in (order.against, order.manifest) if p]
        page = self._outputs(subject, read)
        if any(i.startswith(verify.RUNNING) for i in self._ids):
            from ..runtime.session import resolve_device
            from .checks import kernels  # noqa: F401 (before the process of the checks begins)

            options.device = resolve_device(order.device, self._note)
        rows = []
        limits = limits_for(self._package, len(subject.parts), order.timeout, order.memory)
        with Sandbox(subject, limits) as sandbox:
            if sandbox.how == "none":
                self._note("checks run without limits: not possible on this system")
            sandbox.open_source()
            for check_id, finding in self._findings(subject, sandbox):
                tally.add(check_id, finding)
                rows.append(verify.record(check_id, finding))
                if finding.warning:
                    self._note(f"warning: {check_id}: {finding.message}")
                yield "check", rows[-1]
            if page is not None:
                sandbox.read_dtypes()
        if order.write_manifest and tally.ok:
            count = sums.write(subject.root)
            yield "file", {"path": sums.NAME, "role": "manifest", "entries": count}
        if page is not None:
            yield "file", page.write(subject, rows, tally.summary(), self._asked(options))
        if order.compact and tally.ok:
            from . import compact

            before, after = compact.write(subject, Path(order.compact), force=order.force)
            yield "file", compact.record(before, after, order.compact)

    def _findings(self, subject: Subject, sandbox: Sandbox) -> Iterator[tuple[str, Finding]]:
        """What the checks find; which one is at work is told."""
        with step(verify.count(subject, self._ids), "checking", "check") as bar:

            def run(check: Check, part: Part | None) -> list[Finding]:
                bar.label(f"{check.id} of {part.name}" if part else check.id)
                found = sandbox.run(check, part)
                bar.update(1)
                return found

            yield from verify.verify(subject, self._ids, self._named, run)

    def _outputs(self, subject: Subject, read: list[str]) -> Report | None:
        """The page, if one is asked for; every output is judged here, before the first check.

        Args:
            read: files and folders that the run reads, beside the package.
        Raises: as `records`.
        """
        order = self._order
        if order.compact:
            from ..checkpoint.output_file import refuse_piped
            from ..checkpoint.writer import check_output

            refuse_piped(order.compact, "--compact")
            inputs = [p for p in (subject.root, *read, *order.pictures) if os.path.exists(p)]
            inputs += [order.report] if order.report else []  # it would go with what is replaced
            check_output(Path(order.compact), inputs, force=order.force, marker=layout.MANIFEST)
        if order.write_manifest:
            sums.check_place(subject.root)
        if order.report is None and not order.pictures:
            return None
        from .report import open_report  # most checks start quicker without pages

        return open_report(order.report, self._package, order.pictures, read)

    def fault(self) -> str | None:
        """One line about a check that did not hold, None of one that did."""
        fault, order = self.tally.fault(), self._order
        if fault is None:
            return None
        unwritten = [sums.NAME] if order.write_manifest else []
        unwritten += [order.compact] if order.compact else []
        kept = "".join(f"; {name} not written" for name in unwritten)
        return f"{fault[0]}{kept}; {fault[1][:1000]}"

    def hint(self) -> str | None:
        """The command that may help with the first check that did not hold."""
        if self.tally.first is None:
            return None
        check, finding = self.tally.first
        package = shlex.quote(self._package)
        return _HINTS.get(check if finding.reason != "given-up" else "", "").replace("PKG", package)

    def _options(self) -> Options:
        order = self._order
        standard_only = order.standard_only or "graph.standard" in self._named
        return Options(standard_only, order.against, order.manifest, order.write_manifest)

    def _asked(self, options: Options) -> dict[str, str]:
        """What the page says of how it was made."""
        order = self._order
        words = {
            "against": (order.against or "",),
            "only": order.only,
            "without": order.without,
            "golden": order.golden,
        }
        return {k: ", ".join(v) for k, v in words.items()} | {"device": options.device[0]}
