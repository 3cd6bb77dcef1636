"""All check ids, in the order in which they run and are reported."""

from __future__ import annotations

from . import data, dtype, flow, golden, graph, layout, loading_report, run, weights
from .subject import Check

CHECKS: tuple[Check, ...] = (
    *layout.CHECKS,
    *graph.CHECKS,
    *data.CHECKS,
    *loading_report.CHECKS,
    *weights.CHECKS,
    *dtype.CHECKS,
    *flow.CHECKS,
    *run.CHECKS,
    *golden.CHECKS,
)
BY_ID = {c.id: c for c in CHECKS}
