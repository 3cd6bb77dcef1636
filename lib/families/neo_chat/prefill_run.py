"""What run-prefill does with a request: a prefix file, greedy words, or an interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...checkpoint.output_file import check_new_files
from ...errors import UsageProblem
from ...package.package import Package
from ...progress import tracked
from ...runtime.session import Settings
from ...sampling.euler import Step
from ...sampling.image import recipe_text, write_png
from . import NAME, draw, files, interleave, jobs
from .pipeline import DRAWING, SEEING, Pipeline
from .request import Request, from_options

Row = tuple[str, dict[str, Any]]
"""Kind and fields of a record."""
SAMPLER = (
    *("size", "steps", "cfg", "img_cfg", "cfg_norm"),
    *("cfg_interval", "shift", "t_eps", "latent"),
)
"""Options that only an interleaved run has a use for."""


def read_request(o: Mapping[str, Any]) -> Request:
    """The request that run-prefill's options give, by their names.

    Raises:
        UsageProblem: options that contradict each other, or an output that is an input.
        SourceNotFound, EnvironmentProblem: an output that cannot be written.
    """
    if str(o["output"]) == "-":
        raise UsageProblem("-o -: arrays are not piped", expected="a file name")
    used = [f"--{k.replace('_', '-')}" for k in SAMPLER if o[k] is not None]
    if used and o["task"] != "interleave":
        raise UsageProblem(f"{', '.join(used)} with task {o['task']}", expected="task interleave")
    if o["all_logits"] and o["task"] == "interleave":
        raise UsageProblem("--all-logits with task interleave")
    if o["raw"] and not o["decode"] and o["task"] != "interleave":
        raise UsageProblem("--raw without --decode", hint="--decode N")
    if o["pad"] is not None or len(o["prompt"] or ()) > 1:
        what = "--pad" if o["pad"] is not None else "several --prompt"
        raise UsageProblem(f"{what} with a package of {NAME}", expected="one prompt")
    if o["think"] and o["decode"]:
        raise UsageProblem("--think and --decode", expected="one of them")
    request = from_options(
        o["task"],
        prompt=o["prompt"][0] if o["prompt"] else None,
        prompt_file=o["prompt_file"],
        messages=o["messages"],
        query=o["query"],
        tokens=o["tokens"],
        images=o["image"] or (),
        system=o["system"],
        think=o["think"],
        min_pixels=o["min_pixels"],
        max_pixels=o["max_pixels"],
    )
    if o["output"] is not None and request.task == "interleave":
        files.check_numbered(str(o["output"]), o, [request])
    else:
        files.check([o["output"]], o, [request])
    return request


def run(
    package: Package,
    settings: Settings,
    request: Request,
    o: Mapping[str, Any],
    on_step: Callable[[Step], None],
) -> Iterator[Row]:
    """Run a request; yields records in the order in which things happen."""
    pipeline = Pipeline(package, settings)
    if request.task == "interleave":
        yield from interleaved(pipeline, request, o, on_step)
        return
    output = o["output"]
    if output is not None:  # again: the cache was not known before
        check_new_files([str(output)], folders=[str(pipeline.package.root)])
    prefix = pipeline.prefill(request, all_logits=o["all_logits"])
    if request.think:
        yield "text", {"text": pipeline.think(prefix), "role": "thought"}
    if output is not None:
        for row in prefix.save(output):
            yield "tensor", {**row, "file": str(output)}
    best = int(prefix.logits[0, -1].argmax())
    yield (
        "summary",
        {
            "task": request.task,
            "tokens": int(prefix.ids.shape[1]),
            "images": len(request.images),
            "next_token": best,
            "next_text": pipeline.tokenizer.word(best),
            "output": str(output) if output else None,
        },
    )
    if o["decode"]:
        picked: list[int] = []
        for token in pipeline.decode(prefix, o["decode"]):
            picked.append(token)
            yield "token", word(pipeline, len(picked) - 1, token)
        yield "text", {"text": answer(pipeline, picked)}


def interleaved(
    pipeline: Pipeline, request: Request, o: Mapping[str, Any], on_step: Callable[[Step], None]
) -> Iterator[Row]:
    """An interleaved run: tokens, steps and pictures as they come, then the whole text.

    Raises:
        UsageProblem: no name for the pictures.
    """
    if o["output"] is None:
        raise UsageProblem("task interleave draws pictures", expected="-o OUT.png")
    pipeline.need(*SEEING, *DRAWING)
    check_new_files([str(o["output"])], folders=[str(pipeline.package.root)])
    defaults = pipeline.defaults("interleave")
    options = jobs.options_of({**o, "size": None})
    start = draw.read_latent(o["latent"], options) if o["latent"] is not None else None
    if start is not None:
        draw.check_start(pipeline, start)
    sizes = [jobs.parse_size(s) for s in o["size"].split(",")] if o["size"] else [None]
    recipes = []
    for size in sizes:
        own = dict(options)
        if size is not None:
            own["width"], own["height"] = size
        r = draw.recipe(pipeline, "interleave", own, None)
        tokens = pipeline.count_tokens(request)[0]
        pipeline.fits([pipeline.planned.sampling(r.width, r.height, [tokens] * 3)])
        recipes.append(r)
    made = interleave.Run(
        pipeline,
        request,
        recipes,
        interleave.latents(pipeline, o["seed"], o["rng"], start),
        o["decode"] or defaults["max_new_tokens"],
        on_step,
    )
    for event in tracked(made.events(), None, "writing and drawing", "token"):
        if isinstance(event, int):
            yield "token", word(pipeline, len(made.picked) - 1, event)
            continue
        path = jobs.numbered(str(o["output"]), event.index, 2)
        recipe_text(event.words)
        write_png(path, event.picture, event.words)
        about = {"picture": event.index, "seed": o["seed"]}
        yield "file", {**draw.written(path, "picture"), **about}
    yield "text", {"text": made.text}


def word(pipeline: Pipeline, index: int, token: int) -> dict[str, Any]:
    """Fields of a `token` record."""
    return {"index": index, "id": token, "text": pipeline.tokenizer.word(token)}


def answer(pipeline: Pipeline, ids: list[int]) -> str:
    """The text of greedy tokens: up to the stop token, special tokens left out, stripped."""
    stop = pipeline.tokens["<|im_end|>"]
    kept = ids[: ids.index(stop)] if stop in ids else ids
    return pipeline.tokenizer.decode(kept, skip_special=True).strip()
