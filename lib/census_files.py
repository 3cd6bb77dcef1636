"""Files that a census writes beside its records: a picture, a repaired index."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from . import chart
from .census import Counted
from .checkpoint import index_repair
from .checkpoint.output_file import OneFile, check_new_files, identity, is_stream, write_whole
from .checkpoint.source import open_checkpoint
from .errors import InputError, Unsupported, UsageProblem, without_secrets

Record = dict[str, Any]


class NewFiles:
    """The files that a command line asks for, judged before the work.

    Args:
        source, revision: the SOURCE that is counted.
        plot, repair_index: paths, or None for none.
        force: replace what is there.
        inputs: other files that the command line names; `-` is standard input.
    Raises:
        UsageProblem: a path that exists (without `force`), cannot be an output, or is an input; an
            index of `-`.
        EnvironmentProblem: matplotlib is not installed.
    """

    def __init__(
        self,
        source: str,
        plot: str | None,
        repair_index: str | None,
        force: bool,
        revision: str | None = None,
        inputs: Iterable[str | None] = (),
    ) -> None:
        self._revision = revision
        self._source, self._plot, self._index = source, plot, repair_index
        paths = [p for p in (plot, repair_index) if p is not None]
        if repair_index is not None and source == "-":
            raise UsageProblem("--repair-index: standard input holds records", expected="a folder")
        if "-" in paths:
            raise UsageProblem("output '-': standard output holds records", expected="a file name")
        named = [p for p in (source, *inputs) if p == "-" or (p and os.path.isfile(p))]
        index = [p for p in named if p.endswith(".index.json")]
        check_new_files(paths, [p for p in named if p not in index])
        for path in paths:
            if _is_standard_output(path):
                raise UsageProblem(f"output '{path}': standard output holds records")
            if os.path.lexists(path) and not force and not is_stream(path):
                where = " (a link that leads nowhere yet)" if not os.path.exists(path) else ""
                raise UsageProblem(f"'{path}' exists{where}", hint="--force replaces it")
        if plot is not None:
            chart.require()

    def check(self, counted: Counted, other: Counted | None) -> None:
        """Judge the files again, by what was read: no output may be one of those files, under
        whatever name. The index that is repaired may be replaced.

        Args:
            other: what is compared with.
        Raises:
            OneFile: an output would replace a file that was read.
            Unsupported: an index of other files than those of a safetensors checkpoint.
        """
        if self._index is not None and counted.format not in (None, "safetensors"):
            raise Unsupported(
                f"{self._source}: --repair-index: found format {counted.format}",
                expected="safetensors files, which an index is for",
            )
        for path in (self._plot, self._index):
            if path is None or is_stream(path) or not os.path.exists(path):
                continue
            this, files = identity(path), [*counted.read, *(other.read if other else ())]
            if path == self._index and counted.index is not None:
                files.remove(counted.index)
            for file in files:
                if identity(file) == this:
                    raise OneFile(f"output '{path}' and input '{file}' are one file")

    def write(
        self, groups: list[Record], max_header: int, absent: Iterable[str] = ()
    ) -> Iterator[Record]:
        """Write them; fields of a `file` record of each.

        Args:
            groups: of the first grouping.
            absent: files that the old index names and that are not there: a new one would hide it.
        Raises:
            CheckFailed, InputError: as `index_repair.new_index`.
        """
        if self._index is not None:
            for name in absent:
                raise InputError(
                    f"{self._source}: no index is written: {name}: named by the index, not there",
                    hint="--no-index of inspect-headers lists what is there",
                )
            files = open_checkpoint(
                self._source, revision=self._revision, max_header=max_header, use_index=False
            )
            text = index_repair.new_index(files)
            write_whole(self._index, lambda f: f.write(text))
            nbytes = None if is_stream(self._index) else len(text)
            yield {"path": self._index, "nbytes": nbytes, "role": "index"}
        if self._plot is not None:
            by = groups[0]["by"] if groups else "nothing"
            source = without_secrets(self._source)
            name = source.rstrip("/").rpartition("/")[2] or source
            write_whole(self._plot, lambda f: chart.draw(groups, by, name, f))
            nbytes = None if is_stream(self._plot) else os.path.getsize(self._plot)
            yield {"path": self._plot, "nbytes": nbytes, "role": "plot"}


def _is_standard_output(path: str) -> bool:
    """Whether a path is the pipe or terminal that standard output goes to."""
    try:
        here, there = os.stat(path), os.fstat(1)
    except (OSError, ValueError):
        return False
    same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    return same and (stat.S_ISFIFO(there.st_mode) or os.isatty(1))
