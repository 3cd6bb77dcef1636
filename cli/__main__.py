"""`ntool` and `python -m ntool`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with a code of docs/exit-codes.md."""
    try:
        from .guard import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C while the first modules are imported
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
