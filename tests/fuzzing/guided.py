"""`python -m tests.fuzzing.guided TARGET CORPUS [libFuzzer options]`: one target under atheris."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["ntool"]):
    from .targets import TARGETS

if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    atheris.Setup([sys.argv[0], *rest], TARGETS[name])
    atheris.Fuzz()
