"""How much time and memory the checks of a package may take in their own process."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass

SECONDS = 30.0
NBYTES_PER_SECOND = 10e6
"""A check has 30 seconds, and more for large packages: a slow disk reads ten times as fast, and a
check reads no byte more than a few times."""
NBYTES = 4 << 30
COPIES = 3
"""Memory beyond what is loaded already: 4 GiB, and three times the package's files. ONNX Runtime
maps a weight, copies it, and repacks the copy."""
STACK = 8 << 20
ARENAS = 8
"""Each thread of a session has a stack, and glibc gives threads heaps of 64 MiB of addresses."""
MAX_FILES = 100_000
_M_ARENA_MAX = -8


@dataclass(frozen=True)
class Limits:
    """What a process may take.

    Attributes:
        seconds: of one check of one component; None for no end.
        nbytes: of memory, beyond what it has at its start; None for all.
    """

    seconds: float | None = None
    nbytes: int | None = None


def limits_for(
    path: str, components: int, seconds: float | None = None, nbytes: int | None = None
) -> Limits:
    """Limits that a package of this size stays within.

    Args:
        path: its folder; of a lone graph, its file.
        components: how many sessions there may be at once.
        seconds, nbytes: what the user said instead.
    """
    size = _size(path)
    if seconds is None:
        seconds = SECONDS + size / NBYTES_PER_SECOND
    if nbytes is None:
        threads = (os.cpu_count() or 1) * max(components, 1)
        nbytes = NBYTES + COPIES * size + threads * STACK
    return Limits(seconds, nbytes)


def _size(path: str) -> int:
    """Bytes of the regular files of a folder, or of those beside a graph; links followed."""
    total = count = 0
    lone = not os.path.isdir(path)
    for folder, below, names in os.walk(os.path.dirname(os.path.abspath(path)) if lone else path):
        if lone:
            below.clear()
        for name in names:
            with suppress(OSError):
                status = os.stat(os.path.join(folder, name))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
        count += len(names)
        if count > MAX_FILES:
            break
    return total


def confine(limits: Limits) -> None:
    """Apply a limit of memory to this process for good, and see that it is the first to be ended
    where memory runs out. What the system has no limits for is left to the clock."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")
    try:
        import resource
    except ImportError:
        return
    _lower(resource.RLIMIT_CORE, 0)
    if limits.nbytes is None:
        return
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
    _lower(resource.RLIMIT_AS, _addresses() + limits.nbytes)


def allow(seconds: float | None) -> None:
    """Limit the processor time from now on. The clock of the parent comes first: this ends a
    process whose parent is gone."""
    try:
        import resource
    except ImportError:
        return
    if seconds is None:
        soft = resource.RLIM_INFINITY
    else:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cores = (os.cpu_count() or 1) + 1
        soft = int(used.ru_utime + used.ru_stime + cores * (seconds + 1)) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _lower(what: int, most: int) -> None:
    import resource

    most = min(most, sys.maxsize)  # a greater one is no number of the system
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(what)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(what, (most, hard))


def _addresses() -> int:
    """Bytes of addresses that this process has taken; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
