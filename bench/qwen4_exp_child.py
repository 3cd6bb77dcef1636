"""One process that prefills and decodes with a Qwen4-Exp package.

`python -m bench.qwen4_exp_child PACKAGE TOKENS DECODE [ROUNDS]` prints one JSON object: seconds of
the quickest prefill of the ids in the JSON file TOKENS, seconds a token of the quickest greedy
continuation by DECODE tokens, and the ids it chose. The session is loaded, and a short prompt was
run before.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from ntool.lib.families.qwen4_exp.pipeline import Pipeline
from ntool.lib.families.qwen4_exp.state import NONE
from ntool.lib.package.package import open_package


def main() -> None:
    """Run the prompt and its tokens; print what they took as one JSON object."""
    package, tokens, decode = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    ids = np.array([json.loads(Path(tokens).read_text())], np.int64)
    pipeline = Pipeline(open_package(Path(package)))

    def prefilled(some: np.ndarray) -> object:
        mask = np.ones_like(some)
        return pipeline.run(some, mask, *pipeline.places(some, mask, NONE), all_logits=True)

    prefilled(ids[:, :64])
    prefill, step, chosen = [], [], []
    for _ in range(rounds):
        started = time.perf_counter()
        prefix = prefilled(ids)
        prefill.append(time.perf_counter() - started)
        started = time.perf_counter()
        chosen = [row[0] for row in pipeline.decode(prefix, int(decode) + 1)]
        step.append((time.perf_counter() - started) / int(decode))
    print(
        json.dumps({"prefill": min(prefill), "token": min(step), "chosen": chosen[: int(decode)]})
    )


if __name__ == "__main__":
    main()
