"""Checking packages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import NTOOL, PYTHON, Cost, in_turn, output_of, run
from .table import Bench, Line, Row, at_most, elapsed, spent

STRUCTURE = 1.5
"""So many times the CPU seconds of onnx.checker by path."""
HASHES, VALUES = 1.1, 1.5
"""So many times the CPU seconds of hashing the same bytes."""
RSS = 300e6
LARGE = "dense-large"


def checker(package: Path, full: bool) -> list[str]:
    """A process that runs onnx.checker by path on every graph of a package."""
    graphs = [str(p) for p in sorted(package.glob("*/model.onnx"))]
    code = (
        "import sys, onnx.checker; "
        f"[onnx.checker.check_model(g, full_check={full}) for g in sys.argv[1:]]"
    )
    return [PYTHON, "-c", code, *graphs]


def structure(bench: Bench) -> Iterator[Line]:
    """All checks that neither run a graph nor read weights."""
    package = bench.package("dense")
    command = [*NTOOL, "verify-package", str(package), "--no-run", "--skip", "weights.*"]
    ours, start, plain, full = in_turn(
        bench.runs,
        partial(run, command),
        partial(run, [*NTOOL, "--version"]),
        partial(run, checker(package, False)),
        partial(run, checker(package, True)),
    )
    without = (ours.cpu - start.cpu) / plain.cpu
    yield Line(
        spent(ours, "--no-run --skip 'weights.*'"),
        f"{spent(plain, 'onnx.checker by path')}, {spent(full, 'its full check')}, "
        f"{spent(start, 'start-up')}",
        f"{ours.cpu / plain.cpu:.2f}x, {without:.2f}x without start-up",
        f"<= {STRUCTURE}x onnx.checker by path",
        at_most(ours.cpu, STRUCTURE * plain.cpu),
    )


def digests(package: Path) -> list[str]:
    """A process that hashes the data files of a package and does nothing else."""
    files = [str(p) for p in sorted(package.glob("*/*.safetensors"))]
    code = (
        "import hashlib, sys; "
        "[hashlib.file_digest(open(p, 'rb'), 'sha256').digest() for p in sys.argv[1:]]"
    )
    return [PYTHON, "-c", code, *files]


def _bytes_of(package: Path) -> str:
    return f"{sum(p.stat().st_size for p in package.glob('*/*.safetensors')) / 1e9:.2f} GB"


def _beside(ours: Cost, plain: Cost, package: Path, factor: float, part: str = "") -> Line:
    """A check of every byte beside hashing these bytes."""
    return Line(
        elapsed(ours, _bytes_of(package)),
        elapsed(plain, "hashlib.file_digest"),
        f"{ours.cpu / plain.cpu:.2f}x",
        f"<= {factor}x, {RSS / 1e6:.0f} MB",
        max(at_most(ours.cpu, factor * plain.cpu), at_most(ours.rss, RSS)),
        part,
    )


def hashes(bench: Bench) -> Iterator[Line]:
    """Sums made and compared. With `--write-manifest` the checks of data alone: all others, with
    every weight looked at for NaN, are not hashing."""
    package = bench.package(LARGE)
    sums = package / "SHA256SUMS"
    command = [*NTOOL, "verify-package", str(package), "--no-run", "--check"]
    making = [*command, "data.*", "--write-manifest"]
    comparing = [*command, "data.hash", "--manifest", str(sums)]

    def made_anew() -> Cost:
        sums.unlink(missing_ok=True)
        return run(making)

    made, compared, plain = in_turn(
        bench.runs, made_anew, partial(run, comparing), partial(run, digests(package))
    )
    sums.unlink()
    yield _beside(made, plain, package, HASHES, "--write-manifest")
    yield _beside(compared, plain, package, HASHES, "--manifest")


def values(bench: Bench) -> Iterator[Line]:
    """Every weight against the checkpoint, half of them BF16 there."""
    package, source = bench.package(LARGE), str(bench.checkpoint(LARGE))
    command = [*NTOOL, "verify-package", str(package), "--no-run"]
    command += ["--check", "weights.values", "--against", source]
    ours, plain = in_turn(bench.runs, partial(run, command), partial(run, digests(package)))
    yield _beside(ours, plain, package, VALUES)


def peers(bench: Bench) -> Iterator[Line]:
    """One graph with its weights beside it, through the checkers of others."""
    python, made = bench.peer, bench.scratch / "peers.pkg"
    source = str(bench.checkpoint("dense-mid"))
    # check-model puts graph and weights into one message, which ends at 2 GB
    output_of([*NTOOL, "export-component", source, "decoder", "--dtype", "f16", "-o", str(made)])
    folder = made / "decoder"  # it looks for the weights where it runs
    graph = str(folder / "model.onnx")
    command = [*NTOOL, "verify-package", graph, "--no-run"]
    check = "import sys; from onnx.bin.checker import check_model; sys.exit(check_model())"
    poly = "import sys; from polygraphy.tools import main; sys.exit(main())"
    others = {
        "check-model of onnx": [python, "-c", check, graph],
        "polygraphy inspect model": [python, "-c", poly, "inspect", "model", graph],
        "polygraphy check lint": [python, "-c", poly, "check", "lint", graph],
    }
    for name, other in others.items():
        ours, theirs = in_turn(
            1, partial(run, command), partial(run, other, cwd=folder), warm=False
        )
        yield Line(
            spent(ours, "--no-run"),
            spent(theirs, name),
            f"{theirs.cpu / ours.cpu:.1f}x faster",
            part=name,
        )


ROWS = (
    Row("verify-structure", "structure checks of a package", structure),
    Row("verify-data", "SHA-256 sums of a package of 5 GB", hashes, most=3),
    Row("verify-values", "its weights against its checkpoint, half of them BF16", values, most=3),
    Row(
        "verify-peers",
        "a graph with 0.7 GB of weights through other checkers",
        peers,
        peer="onnx-tools",
        most=1,
    ),
)
