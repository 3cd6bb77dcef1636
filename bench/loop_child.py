"""One process that prefills, decodes and samples, and tells how much of it was ONNX Runtime's run.

`python -m bench.loop_child PACKAGE SIZE DECODE STEPS` prints one JSON object: for `prefill`,
`decode` and `sample` the seconds of the whole loop (`wall`) and inside `InferenceSession.run`
(`run`), the CPU seconds of all threads inside it (`theirs`) and of the loop's thread outside of it
(`ours`), and the number of tokens or steps. Sessions are loaded, each loop was run once before, and
of the repetitions the quickest counts: it is the one that other programs disturbed least.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from ntool.lib.families.neo_chat import draw, jobs
from ntool.lib.families.neo_chat.pipeline import Pipeline
from ntool.lib.families.neo_chat.request import Request
from ntool.lib.package.cache import package_of
from ntool.lib.runtime.session import Session

PROMPT = "a large red circle on a white background"
REPETITIONS = 4
inside = [0.0, 0.0, 0.0]
"""Seconds inside of run() since the last `timed` began, as `clocks` has them."""


class Timed:
    """An InferenceSession whose ways to run are timed. Everything around them counts as ours,
    binding included."""

    def __init__(self, session: Any) -> None:
        self.io_binding = session.io_binding
        self.run = timing(session.run)
        self.run_with_iobinding = timing(session.run_with_iobinding)
        self.run_with_ort_values = timing(session.run_with_ort_values)


def timing(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, its time added to `inside`."""

    def timed_run(*arguments: Any) -> Any:
        before = clocks()
        try:
            return run(*arguments)
        finally:
            for i, (now, then) in enumerate(zip(clocks(), before, strict=True)):
                inside[i] += now - then

    return timed_run


def clocks() -> tuple[float, float, float]:
    """Seconds of the wall, of this thread's CPU, and of the CPU of all threads."""
    return time.perf_counter(), time.thread_time(), time.process_time()


def timed(count: int, work: Callable[[], object]) -> dict[str, float]:
    """Times of running `work`, which does `count` tokens or steps."""
    inside[:] = 0.0, 0.0, 0.0
    before = clocks()
    work()
    wall, cpu, _ = (now - then for now, then in zip(clocks(), before, strict=True))
    run, mine, theirs = inside
    return {"wall": wall, "run": run, "theirs": theirs, "ours": cpu - mine, "count": count}


def main(package: str, size: int, decode: int, steps: int) -> None:
    """Measure the three loops and print what they took."""
    pipeline = Pipeline(package_of(package, lambda text: None))
    made = Session.__init__

    def wrapped(self: Session, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self._session = Timed(self._session)

    Session.__init__ = wrapped  # type: ignore[method-assign]
    query = Request("text-to-image", prompt=PROMPT)
    job = jobs.Job(query, 1, "none", options={"width": size, "height": size, "steps": steps})
    plan = draw.plan(pipeline, job, "portable", None, None)
    branches = draw.prefixes(pipeline, plan.recipe, job, {})
    pipeline.tokens["<|im_end|>"] = -1  # a demonstration's answers are short: do not stop at it
    chat = Request("chat", prompt="what color is the circle?")
    first, r = plan.latent(), plan.recipe
    tokens = branches["cond"].ids.shape[1]
    rounds = []
    for _ in range(1 + REPETITIONS):
        told = {"prefill": timed(tokens, lambda: pipeline.prefill(query))}
        prefix = pipeline.prefill(chat)
        told["decode"] = timed(decode, lambda p=prefix: list(pipeline.decode(p, decode)))
        told["sample"] = timed(
            r.steps, lambda: pipeline.sample(branches, first.z, first.scale, r, lambda step: None)
        )
        rounds.append(told)
    best = {kind: min((t[kind] for t in rounds[1:]), key=lambda t: t["wall"]) for kind in told}
    print(json.dumps(best))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
