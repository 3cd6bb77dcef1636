"""`verify-package --report`: the page of a check, judged before the check and written after it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..checkpoint.output_file import check_new_files, write_whole
from ..errors import UsageProblem, without_secrets
from ..records import Record
from .checks.subject import Subject
from .report_facts import Shown, gather, picture
from .report_page import page


@dataclass(frozen=True)
class Report:
    """A page to be written.

    Attributes:
        path: of the HTML file.
        title: the package as the user named it.
        pictures: sample pictures, read already.
    """

    path: str
    title: str
    pictures: tuple[Shown, ...] = ()

    def write(
        self,
        subject: Subject,
        checks: Sequence[Record],
        summary: dict[str, Any],
        asked: dict[str, str],
    ) -> dict[str, Any]:
        """Write the page, whole or not at all; returns the fields of its `file` record.

        Args:
            checks: fields of all `check` records. summary: of the `summary` record.
            asked: options of the run, in words.
        Raises:
            EnvironmentProblem: it cannot be written.
        """
        words = {k: without_secrets(v) for k, v in asked.items() if v}
        facts = gather(subject, without_secrets(self.title), words, self.pictures)
        # what no UTF-8 has is spelled out on the page; nothing is left that cannot be encoded
        data = page(facts, checks, summary).encode("utf-8")
        write_whole(self.path, lambda f: f.write(data))
        regular = os.path.isfile(self.path)
        return {"path": self.path, "nbytes": len(data) if regular else None, "role": "report"}


def open_report(
    path: str | None, package: str, pictures: Iterable[str], inputs: Iterable[str]
) -> Report | None:
    """The page that is asked for, or None; its output and pictures judged first.

    Args:
        package: the package, which the page may not lie in.
        inputs: other files and folders that the run reads; those that are not there are none.
    Raises:
        UsageProblem: pictures without a page; an output that is an input or lies in one.
        SourceNotFound, InputError, Unsupported: a picture that cannot be read.
        SourceNotFound, EnvironmentProblem: an output that cannot be written.
    """
    shown = list(pictures)
    if path is None:
        if shown:
            raise UsageProblem("--picture without --report", expected="--report FILE")
        return None
    if path == "-":
        raise UsageProblem("--report -", expected="a file name: standard output has the records")
    there = [p for p in (package, *inputs) if os.path.exists(p)]
    folders = [p for p in there if os.path.isdir(p)]
    check_new_files([path], [*shown, *(p for p in there if p not in folders)], folders)
    return Report(path, package, tuple(picture(p) for p in shown))
