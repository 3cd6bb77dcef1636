"""One process that prefills, decodes and samples, and tells how much of it was ONNX Runtime's run.

`python -m bench.loop_child PACKAGE SIZE DECODE` prints one JSON object: for `prefill`, `decode` and
`sample` the seconds of the whole loop (`wall`), the seconds inside `InferenceSession.run` (`run`)
and the number of tokens or steps. Sessions are loaded and each loop was run once before.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ntool.lib.families.neo_chat import draw, jobs
from ntool.lib.families.neo_chat.pipeline import Pipeline
from ntool.lib.package.cache import package_of
from ntool.lib.runtime.session import Session

PROMPT = "a large red circle on a white background"
inside = 0.0


class Timed:
    """An InferenceSession whose `run` is timed. Everything around it counts as ours."""

    def __init__(self, session: Any) -> None:
        self._run = session.run

    def run(self, *arguments: Any) -> Any:
        global inside
        started = time.perf_counter()
        try:
            return self._run(*arguments)
        finally:
            inside += time.perf_counter() - started


def loop(count: int, work: Any) -> dict[str, float]:
    """Run `work` twice; times of the second."""
    global inside
    work()
    inside, started = 0.0, time.perf_counter()
    work()
    return {"wall": time.perf_counter() - started, "run": inside, "count": count}


def main(package: str, size: int, decode: int) -> None:
    pipeline = Pipeline(package_of(package, lambda text: None), ("cpu", 0))
    made = Session.__init__

    def timed(self: Session, *arguments: Any) -> None:
        made(self, *arguments)
        self._session = Timed(self._session)

    Session.__init__ = timed  # type: ignore[method-assign]
    job = jobs.Job(PROMPT, 1, "none", options={"width": size, "height": size})
    plan = draw.plan(pipeline, job, "portable", None)
    branches = draw.prefixes(pipeline, plan.recipe, PROMPT, None, {})
    query = pipeline.query("text-to-image", PROMPT, 0, None)
    tokens = branches["cond"].ids.shape[1]
    told = {"prefill": loop(tokens, lambda: pipeline.prefill(query, task="text-to-image"))}
    pipeline.tokens["<|im_end|>"] = -1  # a demonstration's answers are short: do not stop at it
    chat = pipeline.query("chat", "what color is the circle?", 0, None)

    def continued() -> None:
        for _ in pipeline.decode(prefix, decode):
            pass

    prefix = pipeline.prefill(chat, task="chat")
    continued()
    prefix = pipeline.prefill(chat, task="chat")
    global inside
    inside, started = 0.0, time.perf_counter()
    continued()
    wall = time.perf_counter() - started
    told["decode"] = {"wall": wall, "run": inside, "count": decode}
    told["sample"] = loop(
        plan.recipe.steps,
        lambda: draw.run(pipeline, branches, plan.latent(), plan.recipe, lambda step: None),
    )
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
