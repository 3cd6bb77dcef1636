"""Files that a census writes beside its records: a picture, a repaired index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from . import chart
from .checkpoint import index_repair
from .checkpoint.output_file import check_new_files, write_whole
from .checkpoint.source import open_checkpoint
from .errors import UsageProblem

Record = dict[str, Any]


class NewFiles:
    """The files that a command line asks for, judged before the work.

    Args:
        source, revision: the SOURCE that is counted.
        plot, repair_index: paths, or None for none.
        force: replace what is there.
    Raises:
        UsageProblem: a path that exists (without `force`) or cannot be an output; an index of `-`.
        EnvironmentProblem: matplotlib is not installed.
    """

    def __init__(
        self,
        source: str,
        plot: str | None,
        repair_index: str | None,
        force: bool,
        revision: str | None = None,
    ) -> None:
        self._revision = revision
        self._source, self._plot, self._index = source, plot, repair_index
        paths = [p for p in (plot, repair_index) if p is not None]
        if repair_index is not None and source == "-":
            raise UsageProblem("--repair-index: standard input holds records", expected="a folder")
        if "-" in paths:
            raise UsageProblem("output '-': standard output holds records", expected="a file name")
        check_new_files(paths)
        for path in paths:
            if os.path.lexists(path) and not force:
                raise UsageProblem(f"'{path}' exists", hint="--force replaces it")
        if plot is not None:
            chart.require()

    def write(self, groups: list[Record], max_header: int) -> Iterator[Record]:
        """Write them; fields of a `file` record of each.

        Args:
            groups: of the first grouping.
        Raises:
            CheckFailed, InputError: as `index_repair.new_index`.
        """
        if self._index is not None:
            files = open_checkpoint(
                self._source, revision=self._revision, max_header=max_header, use_index=False
            )
            text = index_repair.new_index(files)
            write_whole(self._index, lambda f: f.write(text))
            yield {"path": self._index, "nbytes": len(text), "role": "index"}
        if self._plot is not None:
            by = groups[0]["by"] if groups else "nothing"
            name = self._source.rstrip("/").rpartition("/")[2] or self._source
            write_whole(self._plot, lambda f: chart.draw(groups, by, name, f))
            yield {"path": self._plot, "nbytes": os.path.getsize(self._plot), "role": "plot"}
