"""A GGUF model: one file, or the parts of a split set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..errors import UsageProblem
from .gguf_cursor import BLOCK
from .gguf_files import ENDING, is_gguf
from .gguf_header import gguf_header_of
from .gguf_values import GgufHeader
from .safetensors_header import MAX_HEADER
from .tensor import Checkpoint, Problem

ARCHITECTURE = "general.architecture"
MAX_PARTS = 10_000
"""Most files of a set that are looked for."""
_SHOWN = 8
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass
class GgufFacts:
    """What a GGUF model says of itself, for the checks of its family.

    Attributes:
        architecture: `general.architecture`, or None.
        values: metadata of the first part (`GgufHeader.values`).
        file: the first part, for messages.
        parts: {path: number of tensors that its header gives}.
        count: parts that the set should have.
        version, big_endian: of the first part.
        complete: every part is there and its header could be read; only then can a tensor be
            called missing.
        unsound: names that headers give without a tensor that can be used.
    """

    architecture: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    parts: dict[str, int] = field(default_factory=dict)
    count: int = 1
    version: int | None = None
    big_endian: bool = False
    complete: bool = True
    unsound: set[str] = field(default_factory=set)


class GgufSet:
    """Fills one `Checkpoint`. The methods `file` and `folder_of_files` are the ways in.

    Args:
        checkpoint: what is filled; its folder is read.
        max_header: largest header that is read, bytes.
        full: long values of the metadata whole.
    """

    def __init__(
        self, checkpoint: Checkpoint, max_header: int = MAX_HEADER, full: bool = False
    ) -> None:
        self.checkpoint = checkpoint
        self._max_header, self._full = max_header, full
        self._facts = GgufFacts()

    def file(self, name: str) -> None:
        """The model that a file belongs to: its whole set, found in the same folder by name, or by
        what parts say of themselves; or the file alone."""
        part = _PART.fullmatch(name)
        if part is None:
            [header] = self._read([name])
            self._renamed([header, *self._siblings(header)])
        else:
            self._split(part["stem"], int(part["count"]), name)

    def folder_of_files(self) -> None:
        """The one model in a folder.

        Raises:
            UsageProblem: there are several.
        """
        names = [n for n in self.checkpoint.folder.names() if is_gguf(n)]
        sets: dict[tuple[str, int], str] = {}
        others = []
        for name in names:
            part = _PART.fullmatch(name)
            if part is None:
                others.append(name)
            else:
                sets.setdefault((part["stem"], int(part["count"])), name)
        if not sets and len(others) > 1:
            headers = self._read(others)
            if _one_set(headers):
                self._renamed(headers)
                return
        models = [*sets.values(), *others]
        if len(models) > 1:
            shown = ", ".join(models[:_SHOWN]) + (", ..." if len(models) > _SHOWN else "")
            raise UsageProblem(
                f"{self.checkpoint.source}: GGUF models in this folder",
                found=f"{len(models)} ({shown})",
                expected="one",
                hint="name one of these files; of a split set any part",
            )
        for name in models:
            self.file(name)

    def _split(self, stem: str, count: int, given: str) -> None:
        """The parts of a set by their names; those that are not there are problems."""
        if not 1 <= count <= MAX_PARTS:
            message = f"parts by the file's name: found {count}, expected 1 to {MAX_PARTS}"
            self._problem("bad-split", message, given)
            self._fill(self._read([given]), named=None)
            return
        ending = given[-len(ENDING) :]
        of = given[-len(f"-of-00000{ENDING}") : -len(ENDING)]
        names = [f"{stem}-{i:05d}{of}{ending}" for i in range(1, count + 1)]
        folder = self.checkpoint.folder
        there = set(folder.names())
        if not there:  # a web server lists nothing, but can be asked
            asked = [n for n in names if n != given]
            there = {
                n for n, ok in zip(asked, folder.each(folder.exists, asked), strict=True) if ok
            }
        absent = [n for n in names if n not in there and n != given]
        self._facts.count = count
        gone = set(absent)
        self._fill(self._read([n for n in names if n not in gone]), named=names)
        for name in sorted({*there, given} - set(names)):
            part = _PART.fullmatch(name)
            if part is not None and part["stem"] == stem and int(part["count"]) == count:
                message = f"part by the file's name: found {part['number']}, expected at most "
                self._problem("bad-split", f"{message}{count}; not read", name)
        for name in absent:
            self.checkpoint.absent[name] = []
        for name in absent[:_SHOWN]:
            message = f"part {names.index(name) + 1} of {count} is not there"
            self._problem("missing-shard", message, name)
        if len(absent) > _SHOWN:
            message = f"{len(absent) - _SHOWN} more of the {count} parts are not there"
            self._problem("missing-shard", message, absent[_SHOWN])

    def _read(self, names: Sequence[str]) -> list[GgufHeader]:
        return list(self.checkpoint.folder.each(self._header, names))

    def _header(self, name: str) -> GgufHeader:
        opening = self.checkpoint.folder.open(name, BLOCK)
        return gguf_header_of(opening, name, full=self._full, max_header=self._max_header)

    def _problem(self, code: str, message: str, file: str | None, name: str | None = None) -> None:
        self.checkpoint.problems.append(
            Problem(code, message, file=file, name=name, malformed=True)
        )

    def _fill(self, headers: list[GgufHeader], named: list[str] | None) -> None:
        """Put all parts into the checkpoint.

        Args:
            headers: in the order of the parts.
            named: names of all parts that there should be, where names say so.
        """
        checkpoint, facts = self.checkpoint, self._facts
        checkpoint.format = "gguf"
        homes: dict[str, list[str]] = {}
        for h in headers:
            checkpoint.problems += h.problems
            checkpoint.bytes_read += h.bytes_read
            checkpoint.files[h.file] = h.nbytes
            checkpoint.metadata[h.file] = h.metadata
            facts.parts[h.file] = h.tensor_count if h.data_offset is not None else len(h.unsound)
            facts.unsound.update(h.unsound)
            for t in h.tensors:
                if checkpoint.tensors.setdefault(t.name, t) is not t:
                    homes.setdefault(t.name, [checkpoint.tensors[t.name].file]).append(h.file)
        for name, files in homes.items():
            message = f"in {len(files)} files: found {' and '.join(files)}, expected one"
            self._problem("duplicate-tensor", message, files[-1], name)
        readable = [h for h in headers if h.data_offset is not None]
        facts.complete = len(readable) == facts.count
        first = self._numbers(readable, named)
        if first is not None:
            facts.values, facts.file = first.values, first.file
            facts.version, facts.big_endian = first.version, first.big_endian
            self._architecture(readable, first)
        checkpoint.gguf = facts

    def _siblings(self, header: GgufHeader) -> list[GgufHeader]:
        """The other parts of the set that a file of another name says it is of: those files of a
        folder on this machine that say the same of the set, where no two say the same number."""
        folder = self.checkpoint.folder
        if _set_of(header) is None or not folder.local:
            return []
        names = [n for n in folder.names() if is_gguf(n) and n != header.file][:MAX_PARTS]
        others = [h for h in self._read(names) if _set_of(h) == _set_of(header)]
        numbers = Counter(_number(h, "split.no") for h in others)
        own = _number(header, "split.no")
        return [h for h in others if (n := _number(h, "split.no")) != own and numbers[n] == 1]

    def _renamed(self, headers: list[GgufHeader]) -> None:
        """A file alone, or the parts of a set whose names do not say so; what is missing of it."""
        headers = sorted(headers, key=lambda h: _number(h, "split.no") or 0)
        found = _set_of(headers[0])
        self._facts.count = count = found[0] if found else len(headers)
        self._fill(headers, named=None)
        there = {n for h in headers if (n := _number(h, "split.no")) is not None and n < count}
        absent = count - len(there) if found else 0
        if not absent or len(headers) == count:  # then numbers are wrong, and that is told
            return
        first = headers[0]
        if len(headers) == 1 and not first.tensor_count:  # metadata alone are whole
            message = f"split.no {first.values.get('split.no')} of {count}, without tensors: the "
            message += "other parts are not found by this name"
            self.checkpoint.problems.append(
                Problem("lone-part", message, severity="info", file=first.file)
            )
            return
        numbers = islice((str(i) for i in range(count) if i not in there), _SHOWN)
        shown = ", ".join(numbers) + (", ..." if absent > _SHOWN else "")
        message = f"{absent} of {count} parts are not found in its folder: split.no {shown}"
        self._problem("missing-shard", message, first.file)

    def _numbers(self, headers: list[GgufHeader], named: list[str] | None) -> GgufHeader | None:
        """Check `split.no`, `split.count` and `split.tensors.count`; the first part."""
        facts = self._facts
        split = [h for h in headers if any(key.startswith("split.") for key in h.values)]
        if facts.count == 1 and not split:
            return headers[0] if headers else None
        order: dict[int, list[str]] = {}
        totals: dict[int, list[str]] = {}
        for h in headers:
            count, number = _number(h, "split.count"), _number(h, "split.no")
            total = _number(h, "split.tensors.count")
            for key, value in (("count", count), ("no", number), ("tensors.count", total)):
                if value is None:
                    found = h.values.get(f"split.{key}", "none")
                    message = f"split.{key}: found {found!r}, expected a number"
                    self._problem("bad-split", message, h.file)
            if count is not None and count != facts.count:
                what = "the number in the files' names" if named else "the number of files"
                message = f"split.count: found {count}, expected {facts.count}, {what}"
                self._problem("bad-split", message, h.file)
            if number is not None:
                order.setdefault(number, []).append(h.file)
                self._number_of(h, number, named)
            if total is not None:
                totals.setdefault(total, []).append(h.file)
        for number, files in order.items():
            if len(files) > 1:
                message = f"split.no: found {number} in {' and '.join(files)}, expected it once"
                self._problem("bad-split", message, files[-1])
        self._total(headers, totals)
        firsts = order.get(0, [])
        return next((h for h in headers if h.file in firsts), headers[0] if headers else None)

    def _number_of(self, h: GgufHeader, number: int, named: list[str] | None) -> None:
        """`split.no` of one part: inside the set, and what the file's name says, if it does."""
        expected = ""
        if number >= self._facts.count:
            expected = f"0 to {self._facts.count - 1}"
        elif named is not None and named[number] != h.file:
            expected = f"{named.index(h.file)}, as the file is named"
        if expected:
            self._problem("bad-split", f"split.no: found {number}, expected {expected}", h.file)

    def _total(self, headers: list[GgufHeader], totals: dict[int, list[str]]) -> None:
        if len(totals) > 1:
            found = ", ".join(f"{n} in {files[0]}" for n, files in totals.items())
            message = f"split.tensors.count: found {found}, expected the same in all parts"
            self._problem("bad-split", message, next(iter(totals.values()))[0])
        elif totals and len(headers) == self._facts.count:
            (total,) = totals
            count = sum(h.tensor_count for h in headers)
            if total != count:
                message = f"split.tensors.count: found {total}, expected {count}, the parts' sum"
                self._problem("bad-split", message, totals[total][0])

    def _architecture(self, headers: Iterable[GgufHeader], first: GgufHeader) -> None:
        """The first part names the architecture; others may repeat it."""
        value = first.values.get(ARCHITECTURE)
        if isinstance(value, str):
            self._facts.architecture = value
        else:
            found = "none" if value is None else repr(value)[:40]
            message = f"{ARCHITECTURE}: found {found}, expected a string"
            code = "missing-key" if value is None else "bad-value"
            self.checkpoint.problems.append(
                Problem(code, message, severity="info", file=first.file)
            )
        for h in headers:
            other = h.values.get(ARCHITECTURE, value)
            if other != value:
                message = f"{ARCHITECTURE}: found {other!r}, expected {value!r} as in {first.file}"
                self._problem("bad-split", message, h.file)


def _set_of(header: GgufHeader) -> tuple[int, int | None] | None:
    """(parts, tensors) of the set that a part says it is of; None of a whole model."""
    count = _number(header, "split.count")
    return (count, _number(header, "split.tensors.count")) if count and count > 1 else None


def _one_set(headers: list[GgufHeader]) -> bool:
    """Whether files are parts of one set by their own numbers, if not all of them."""
    sets = set(map(_set_of, headers))
    numbers = {_number(h, "split.no") for h in headers}
    count = next(iter(sets))
    whole = count is not None and count[0] == len(headers)
    return len(sets) == 1 and count is not None and (whole or len(numbers) == len(headers))


def _number(header: GgufHeader, key: str) -> int | None:
    value = header.values.get(key)
    return value if type(value) is int and value >= 0 else None
