"""A finished output against its source: every block of every tensor, made again and compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..checkpoint.tensor import Problem
from ..checkpoint.writer import READ, DataFile, Entry
from ..progress import Bar, step
from .plan import Plan

BLOCK = 1 << 20
"""Bytes that are compared at a time."""


def differences(plan: Plan, folder: Path, shards: Iterable[DataFile]) -> Iterator[Problem]:
    """The first difference of each tensor of these shards, and of the files made with them; nothing
    where all is as it should be.

    Args:
        folder: where they stand: the output, or the data of its work folder.
    """
    shards = list(shards)
    with step(sum(s.nbytes for s in shards), "verifying") as bar:
        yield from _differences(plan, folder, shards, bar)


def _differences(
    plan: Plan, folder: Path, shards: Iterable[DataFile], bar: Bar
) -> Iterator[Problem]:
    for shard in shards:
        bar.update(len(shard.header))
        with open(folder / shard.name, "rb") as f:
            if f.read(len(shard.header)) != shard.header:
                yield Problem("differs", "its header is not the planned one", file=shard.name)
                continue
            for entry in shard.entries:
                at, found = 0, None
                for expected in payload(plan, entry):
                    actual = f.read(len(expected))
                    if found is None and actual != expected:
                        found = at + first_difference(actual, expected)
                    at += len(expected)
                    bar.update(len(expected))
                if found is not None:
                    message = f"differs from its source from byte {found} on"
                    yield Problem("differs", message, file=shard.name, name=entry.name)
            if f.read(1):
                yield Problem("differs", "bytes after its last tensor", file=shard.name)
        for name, make in plan.companions.get(shard.name, {}).items():
            if (folder / name).read_bytes() != make():
                yield Problem("differs", "is not what is made of the plan", file=name)


def payload(plan: Plan, entry: Entry) -> Iterator[bytes]:
    """What an entry's payload has to be: of its proof where there is one, else made again."""
    proof = plan.proofs.get(entry.name)
    if proof is not None:
        yield from proof()
        return
    for readable, offset, nbytes in entry.copies():
        for start in range(offset, offset + nbytes, READ):
            yield readable.read(start, min(READ, offset + nbytes - start))
    for band in entry.bands():
        yield bytes(band)


def first_difference(a: bytes, b: bytes) -> int:
    """Position of the first byte in which two differ; the shorter's length where one ends."""
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return min(len(a), len(b))
