"""Counts over tensor headers: groups, totals, schema hash, estimates. No payload is read."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Any

from .checkpoint.folder import Folder
from .checkpoint.grouping import Key
from .checkpoint.index import absent_numbers
from .checkpoint.tensor import BITS, Problem, Tensor
from .errors import UsageProblem
from .suggestions import did_you_mean

if TYPE_CHECKING:
    from .checkpoint.gguf_set import GgufFacts

FLOATS = frozenset(d for d in BITS if d[0] == "F" or d == "BF16")
"""Dtypes that `--as-dtype` estimates as converted; integers and complex numbers keep their size."""


@dataclass
class Counted:
    """What is counted: the tensors of one checkpoint, or of several record streams together.

    Attributes:
        files: names of the files that hold them.
        missing, orphans, duplicates: names of tensors.
        absent: {file that the index names and that is not there: tensors it should hold}.
        unlisted: {file that the index does not name: names of tensors that only it has}.
        partial: one of the files of a checkpoint, which says nothing about the whole.
        folder: where payloads can be read, None for record streams.
        parts: of record streams, what each of them gave: tensors, config, architecture.
        gguf: what a GGUF model says of itself; a record stream was judged by its writer.
        architecture: of a GGUF model, from a record stream too.
        revision: commit on the Hub, or None.
        format: of the checkpoint; None for record streams.
        read: paths of all files on this machine that were read, data files of graphs included.
        index: the one of them that is the index, or None.
    """

    tensors: list[Tensor] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    absent: dict[str, list[str]] = field(default_factory=dict)
    unlisted: dict[str, list[str]] = field(default_factory=dict)
    partial: bool = False
    index_hash: str | None = None
    config_hash: str | None = None
    index_total_size: int | None = None
    folder: Folder | None = None
    gguf: GgufFacts | None = None
    parts: list[Counted] = field(default_factory=list)
    architecture: str | None = None
    revision: str | None = None
    format: str | None = None
    read: list[str] = field(default_factory=list)
    index: str | None = None


class Tally:
    """Numbers of tensors, elements and bytes, in total and for each dtype."""

    __slots__ = ("_dtypes",)

    def __init__(self) -> None:
        self._dtypes: dict[str, list[int]] = {}

    def add(self, dtype: str, tensors: int, params: int, nbytes: int) -> None:
        """Count `tensors` tensors of one dtype, with their elements and bytes together."""
        row = self._dtypes.get(dtype)
        if row is None:
            row = self._dtypes[dtype] = [0, 0, 0]
        row[0] += tensors
        row[1] += params
        row[2] += nbytes

    def fields(self) -> dict[str, Any]:
        """`tensors`, `params`, `nbytes`, and `dtypes` with the same three for each dtype."""
        names = ("tensors", "params", "nbytes")
        totals = [sum(row[i] for row in self._dtypes.values()) for i in range(3)]
        dtypes = {d: dict(zip(names, self._dtypes[d], strict=True)) for d in sorted(self._dtypes)}
        return {**dict(zip(names, totals, strict=True)), "dtypes": dtypes}


_NUMBER = re.compile(r"[0-9]+")
_NAME, _DTYPE, _SHAPE, _NBYTES = map(itemgetter, (0, 1, 2, 5))


def groups(tensors: Sequence[Tensor], by: str, key: Key) -> list[dict[str, Any]]:
    """Fields of `group` records, one a key, in order of first appearance; layers by their number.

    Each tensor is in one group, so the sums of all groups are the totals.
    """
    tallies: dict[str, Tally] = {}
    columns = map(_DTYPE, tensors), map(_SHAPE, tensors), map(_NBYTES, tensors)
    # 150,000 tensors have a few dozen of these
    for (k, dtype, shape, nbytes), n in Counter(zip(key(tensors), *columns, strict=True)).items():
        tallies.setdefault(k, Tally()).add(dtype, n, n * prod(shape), n * nbytes)
    keys = in_layer_order(tallies) if by == "layer" else tallies
    return [{"by": by, "key": k, **tallies[k].fields()} for k in keys]


def in_layer_order(keys: Iterable[str]) -> list[str]:
    """Layers of one stack by their number, 2 before 10, which a checkpoint sorted by name has the
    other way round; stacks, and what is in none, in order of first appearance."""
    stacks: dict[str, dict[str, tuple[tuple[int, str], ...]]] = {}
    for key in keys:
        # a number may be too long for int()
        numbers = [n.lstrip("0") for n in _NUMBER.findall(key)]
        stack = stacks.setdefault(_NUMBER.sub("0", key), {})
        stack[key] = tuple((len(n), n) for n in numbers)
    return [k for stack in stacks.values() for k in sorted(stack, key=stack.__getitem__)]


def totals(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """`tensors`, `params`, `nbytes` and `dtypes` of all `groups` of one key together."""
    tally = Tally()
    for row in rows:
        for dtype, counts in row["dtypes"].items():
            tally.add(dtype, *counts.values())
    return tally.fields()


def schema_hash(tensors: Iterable[Tensor]) -> str:
    """SHA-256 (hex) over the lines `name TAB dtype TAB d0,d1,... LF` of all tensors.

    Names sort by code points; the third field of a scalar is empty. Shards, offsets and metadata do
    not enter.
    """
    rows = sorted(tensors, key=_NAME)  # texts are compared sooner than tuples
    if any(map(eq, map(_NAME, rows), map(_NAME, rows[1:]))):  # in two components of a package
        rows.sort(key=itemgetter(0, 1, 2))
    shapes = {shape: ",".join(map(str, shape)) for shape in set(map(_SHAPE, rows))}
    digest = hashlib.sha256()
    for start in range(0, len(rows), 4096):
        lines = [f"{t[0]}\t{t[1]}\t{shapes[t[2]]}\n" for t in rows[start : start + 4096]]
        digest.update("".join(lines).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def estimate(tensors: Iterable[Tensor], dtype: str) -> int:
    """Bytes of the tensors if all that are floating point were stored as `dtype`.

    Raises:
        UsageProblem: not a dtype of the safetensors format.
    """
    if dtype not in BITS:
        hint = did_you_mean(dtype, BITS)
        raise UsageProblem("--as-dtype", found=repr(dtype), expected=" ".join(BITS), hint=hint)
    bits = BITS[dtype]
    return sum((t.params * bits + 7) // 8 if t.dtype in FLOATS else t.nbytes for t in tensors)


def summary(
    counted: Counted,
    totals: dict[str, Any],
    facts: dict[str, Any],
    as_dtypes: Iterable[str] = (),
) -> dict[str, Any]:
    """Fields of the `summary` record.

    Args:
        totals: of `groups`, by any key.
        facts: of `judgement.judge`.
    """
    return {
        **totals,
        "files": len(counted.files),
        "files_absent_from_numbering": absent_numbers(counted.files),
        "missing": sorted(counted.missing),
        "orphans": sorted(counted.orphans),
        "unlisted": counted.unlisted,
        "duplicates": sorted(counted.duplicates),
        "tied": facts["tied"],
        "schema_hash": schema_hash(counted.tensors),
        "index_hash": counted.index_hash,
        "config_hash": counted.config_hash,
        "family": facts["family"],
        "components": facts["components"],
        "expert_layout": facts["expert_layout"],
        "quantization": facts["quantization"],
        "index_total_size": counted.index_total_size,
        "estimate": {d.upper(): estimate(counted.tensors, d.upper()) for d in as_dtypes},
    }
