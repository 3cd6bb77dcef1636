"""`ntool` and `python -m ntool`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with the code of `spec` section "Exit codes"."""
    from .guard import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
