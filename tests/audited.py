"""`python audited.py FOLDER ARGUMENTS...`: ntool, watched.

After its own output it says on the last line of standard error, as JSON: `opened`, the files
outside of FOLDER and of Python itself that were opened; `events`, what else it did that a reader
of headers has no reason for (sockets, processes, deleting, renaming, memory maps); and `rss`, its
peak memory in bytes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

SUSPICIOUS = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "ctypes."),
    *("os.remove", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate"),
    *("os.chmod", "os.chown", "shutil.", "pty.", "mmap.", "ftplib.", "urllib.", "pickle."),
)


def peak_memory() -> int:
    """Bytes. What the kernel counts as usage of a process includes that of the one it was forked
    from, which may be a test runner; the status file counts from the start of the program."""
    try:
        with open("/proc/self/status") as f:
            line = next(row for row in f if row.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folder: str, arguments: list[str]) -> int:
    import ntool
    import ntool.commands
    import ntool.lib
    from ntool.guard import run

    own = [os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)]
    for package in (ntool, ntool.commands, ntool.lib):
        own += map(os.path.realpath, package.__path__)
    own += [os.path.realpath(p) for p in sys.path if p]
    roots = tuple(os.path.join(p, "") for p in (*own, os.path.realpath(folder)))
    opened: list[str] = []
    events: list[str] = []

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(details[0], str | bytes):
            path = os.path.realpath(os.fsdecode(details[0]))
            if not os.path.join(path, "").startswith(roots) and path != os.devnull:
                opened.append(path)
        elif event.startswith(SUSPICIOUS):
            events.append(event)

    sys.addaudithook(hook)
    code = run(arguments)
    sys.stdout.flush()
    report = {"opened": opened.copy(), "events": events, "rss": peak_memory()}
    print("\n" + json.dumps(report), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
