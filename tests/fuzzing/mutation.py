"""Mutations of bytes, for machines without a coverage-guided fuzzer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

EDGES = (0, 1, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63,
         2**64 - 1)  # fmt: skip
WORDS = (b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\u0000", b"\\ud800", b"null", b"1e999",
         b"NaN", b"-1", b"true", b"../", b"\xff\xfe", b"\xef\xbb\xbf", b"F32", b"GGUF")  # fmt: skip


def mutated(raw: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A copy with one to four changes: bytes, numbers, words, pieces moved, cut or doubled."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] = rng.randrange(256)
        elif kind == 1 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(EDGES) & ((1 << 8 * size) - 1)
            data[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
        elif kind == 3:
            data[at:at] = rng.choice(WORDS)
        elif kind == 4:
            del data[at : at + rng.choice((1, 2, 8, 64))]
        elif kind == 5:
            data[at:at] = data[at : at + rng.choice((1, 8, 64, 512))]
        elif kind == 6:
            del data[at:]
        else:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[at:at] = other[start : start + rng.choice((8, 64, 512))]
    return bytes(data)


def run(
    target: Callable[[bytes], None], seeds: list[bytes], seconds: float, seed: int
) -> tuple[int, float]:
    """Feed a target for some seconds; number of inputs, and the longest time of one.

    Raises:
        whatever the target raises, with the input in a note.
    """
    rng = random.Random(seed)
    end, count, longest = time.monotonic() + seconds, 0, 0.0
    while (now := time.monotonic()) < end:
        raw = mutated(rng.choice(seeds), rng, seeds)
        try:
            target(raw)
        except BaseException as e:
            e.add_note(f"input: {raw!r}" if len(raw) < 2000 else f"input {count} of seed {seed}")
            raise
        longest = max(longest, time.monotonic() - now)
        count += 1
    return count, longest
