"""`python -m tests.fuzzing [--seconds N] [TARGET...]`: each reader for N seconds (60).

Guided by coverage where atheris is installed (`make fuzz` installs it), else by mutations alone.
Ends with 1 at the first input that a reader does not survive; the input stays in a file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from .mutation import run
from .targets import TARGETS, seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=" ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    try:
        import atheris  # noqa: F401

        with_atheris = True
    except ImportError:
        with_atheris = False
    for name in options.targets or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            corpus = seeds(name, folder)
            if not with_atheris:
                count, longest = run(TARGETS[name], corpus, options.seconds, seed=1)
                print(f"{name}: {count} inputs, the slowest {longest:.2f} s, by mutation alone")
                continue
            start = Path(folder) / "corpus"
            start.mkdir()
            for i, raw in enumerate(corpus):
                (start / str(i)).write_bytes(raw)
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzzing.guided", name, str(start),
                 f"-max_total_time={options.seconds}", "-timeout=20", "-rss_limit_mb=2048",
                 "-artifact_prefix=fuzz-", "-verbosity=1", "-print_final_stats=1"],
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            told = [line for line in done.stderr.splitlines() if "number_of_executed" in line]
            print(f"{name}: {' '.join(told) or 'no statistics'}, guided by coverage", flush=True)
            if done.returncode:
                print(done.stderr[-4000:], file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
