"""What a command opens and does, seen by an audit hook.

`python audited.py FOLDER ARGUMENTS...` is ntool, watched from its first import on; the server of
`fork_server.py` puts the same hook into the children that it forks. After its own output the
command says on the last line of standard error, as JSON: `opened`, the files outside of FOLDER and
of Python itself that were opened; `events`, what else it did that a reader of files has no reason
for (sockets, processes, memory maps, and deleting, renaming or making things outside of the folders
in the environment variable NTOOL_WRITABLE); and `rss`, its peak memory in bytes.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

SUSPICIOUS = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "ctypes."),
    *("shutil.unpack", "pty.", "mmap.", "ftplib.", "urllib.", "pickle.", "webbrowser."),
)
CHANGES = (
    *("os.remove", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate"),
    *("os.chmod", "os.chown", "shutil.rmtree", "shutil.move", "shutil.copy"),
)
"""Events of which every path must be below one of the writable folders. A fork is none of these:
what it does is noted like the rest."""

HARMLESS = (os.devnull, "/proc/meminfo", "/sys/fs/cgroup/memory.max")
"""What anybody may read: how much memory there is."""
OF_CHILDREN = re.compile(r"/proc/\d+/(oom_score_adj|statm)")
"""How much memory the process of the checks has, and that it is the first to go."""
DRIVER = "libcuda.so.1"
"""The library that is asked whether there is a GPU."""


def peak_memory() -> int:
    """Bytes. What the kernel counts as usage of a process includes that of the one it was forked
    from, which may be a test runner; the status file counts from the start of the program."""
    try:
        with open("/proc/self/status") as f:
            line = next(row for row in f if row.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def watch(inside: str, writable: list[str]) -> Callable[[], dict[str, Any]]:
    """Watch this process from now on; the result tells what was seen so far.

    Args:
        inside: the folder that may be read.
        writable: folders that may be read and changed.
    """
    import ntool
    import ntool.commands
    import ntool.lib

    own = [os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)]
    for package in (ntool, ntool.commands, ntool.lib):
        own += map(os.path.realpath, package.__path__)
    own += [os.path.realpath(p) for p in sys.path if p]
    changeable = tuple(os.path.join(os.path.realpath(p), "") for p in writable)
    roots = (*(os.path.join(p, "") for p in (*own, os.path.realpath(inside))), *changeable)
    notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (shared with processes forked later)
    with suppress(OSError), open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the peak of a forked process begins with what it has now
    start = peak_memory()

    def below(path: str, folders: tuple[str, ...]) -> bool:
        return os.path.join(path, "").startswith(folders)

    def note(kind: str, what: str) -> None:
        os.write(notes.fileno(), json.dumps([kind, what]).encode() + b"\n")

    def opens(path: str) -> None:
        if not os.path.isabs(path) and not os.path.lexists(path):
            return  # beside a folder that is open: the event does not say which, its own open did
        real = os.path.realpath(path)
        harmless = real in HARMLESS or OF_CHILDREN.fullmatch(real)
        if not below(real, roots) and not harmless:
            note("opened", real)

    def changes(event: str, details: tuple[Any, ...]) -> None:
        # the last value is the descriptor of the folder that the path begins in, or -1
        at = details[-1] if event.startswith("os.") and type(details[-1]) is int else -1
        beside = os.getcwd() if at < 0 else os.readlink(f"/proc/self/fd/{at}")
        for given in details:
            if isinstance(given, str | bytes):
                path = os.path.join(beside, os.fsdecode(given))
                real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
                if not below(real, changeable):
                    note("events", f"{event} {real}")

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(details[0], str | bytes):
                opens(os.fsdecode(details[0]))
        elif event.startswith(CHANGES):
            changes(event, details)
        elif event.startswith("ctypes.dlsym") and details[1:] == ("mallopt",):
            pass  # the process of the checks keeps its arenas few
        elif event.startswith(SUSPICIOUS) and details[:1] not in ((DRIVER,), (None,)):
            note("events", f"{event} {details[:1]}")

    sys.addaudithook(hook)

    def report() -> dict[str, Any]:
        seen: dict[str, Any] = {"opened": [], "events": []}
        notes.seek(0)
        for kind, what in map(json.loads, notes.read().splitlines()):
            seen[kind].append(what)
        forked = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        peak = max(peak_memory(), forked)
        return {**seen, "rss": peak, "grown": peak - start}

    return report


def main(folder: str, arguments: list[str]) -> int:
    from ntool.guard import run

    writable = os.environ.get("NTOOL_WRITABLE", "")
    report = watch(folder, writable.split(os.pathsep) if writable else [])
    code = run(arguments)
    sys.stdout.flush()
    print("\n" + json.dumps(report()), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
