"""Qwen4-Exp: prefill and decoding beside the published implementation, and what an export takes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from .measure import NTOOL, PYTHON, ROOT, in_turn, output_of, run
from .table import Bench, Line, Row, at_least, at_most, held, spent

PREFILL, DECODE = 1.2, 1.5
"""At most so many times the peer's seconds; at least so many times its tokens a second."""
TOKENS, CHOSEN = 2048, 32
DRY_CPU, DRY_RSS = 60, 1.5e9
TABLE_EXTRA = 20e6
"""Bytes that a table of twenty times the size may take more."""


def _child(command: list[str], source: Path, tokens: Path) -> dict[str, Any]:
    words = [*command, str(source), str(tokens), str(CHOSEN), "2"]
    told: dict[str, Any] = json.loads(output_of(words, cwd=ROOT))
    return told


def speed(bench: Bench) -> Iterator[Line]:
    """Both routes of the experts, and PyTorch on the same checkpoint; all choose the same ids."""
    source = bench.checkpoint("qwen4-mid")
    tokens = bench.scratch / "tokens.json"
    draw = random.Random(1)
    tokens.write_text(json.dumps([draw.randrange(8, 32000) for _ in range(TOKENS)]))
    packages = {}
    for provider, what in (("default", "standard operators"), ("cpu", "the fused operator")):
        packages[what] = bench.scratch / f"{provider}.pkg"
        options = ["--ep", provider, "-o", str(packages[what])]
        output_of([*NTOOL, "export-component", str(source), *options])
    ours = [PYTHON, "-m", "bench.qwen4_exp_child"]
    peer = [bench.peer, str(ROOT / "bench" / "qwen4_exp_peer_child.py")]
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(bench.runs):
        found.setdefault("peer", []).append(_child(peer, source, tokens))
        for what, package in packages.items():
            found.setdefault(what, []).append(_child(ours, package, tokens))
    theirs = found["peer"]
    prefill, token = (median(t[k] for t in theirs) for k in ("prefill", "token"))
    for what in packages:
        same = all(t["chosen"] == theirs[0]["chosen"] for t in found[what])
        mine = median(t["prefill"] for t in found[what])
        yield Line(
            f"{mine:.2f} s for {TOKENS} tokens, {'the same' if same else 'OTHER'} ids after it",
            f"{prefill:.2f} s (PyTorch, transformers)",
            f"{mine / prefill:.2f}x",
            f"<= {PREFILL}x",
            max(held(same), at_most(mine, PREFILL * prefill)),
            f"prefill, {what}",
        )
        mine = median(t["token"] for t in found[what])
        yield Line(
            f"{1 / mine:.1f} tokens/s",
            f"{1 / token:.1f} tokens/s (PyTorch, transformers)",
            f"{token / mine:.2f}x",
            f">= {DECODE}x",
            max(held(same), at_least(token / mine, DECODE)),
            f"decode, {what}",
        )


def dry_run(bench: Bench) -> Iterator[Line]:
    """The text package of the FP8 release, as far as it is decided before the first byte."""
    source = str(bench.checkpoint("fp8"))
    command = [*NTOOL, "export-component", source, "--text-only", "--dry-run"]
    (ours,) = in_turn(bench.runs, partial(run, command))
    yield Line(
        spent(ours, f"152,089 tensors, 185 GB of holes; {ours.wall:.1f} s from start to end"),
        budget=f"<= {DRY_CPU} s, {DRY_RSS / 1e6:.0f} MB",
        excess=max(at_most(ours.wall, DRY_CPU), at_most(ours.rss, DRY_RSS)),
    )


def table(bench: Bench) -> Iterator[Line]:
    """Peak memory of an export beside the size of the n-gram table in it."""
    sizes, used = [], []
    for kind in ("qwen4-table-small", "qwen4-table-large"):
        source, out = bench.checkpoint(kind), bench.scratch / f"{kind}.pkg"
        used.append(run([*NTOOL, "export-component", str(source), "-o", str(out)]))
        sizes.append(sum(p.stat().st_size for p in out.rglob("*") if p.is_file()))
        shutil.rmtree(out)
        bench.drop(source)
    small, large = used
    yield Line(
        spent(large, f"{sizes[1] / 1e6:,.0f} MB written, nearly all of it the table"),
        spent(small, f"{sizes[0] / 1e6:,.0f} MB written"),
        f"{(large.rss - small.rss) / 1e6:+.0f} MB",
        f"<= {TABLE_EXTRA / 1e6:+.0f} MB",
        at_most(large.rss, small.rss + TABLE_EXTRA),
    )


ROWS = (
    Row("qwen4-exp-speed", "prefill and decoding beside PyTorch", speed, peer="torch", most=1),
    Row("qwen4-exp-dry-run", "export-component --dry-run of the FP8 release", dry_run, most=3),
    Row(
        "qwen4-exp-table", "memory of an export beside the size of its n-gram table", table, most=1
    ),
)
