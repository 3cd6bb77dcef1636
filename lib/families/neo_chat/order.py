"""An order for pictures: the options of sample-image, checked together, and their execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checkpoint.output_file import check_new_files
from ...errors import InputError, UsageProblem
from ...runtime.memory import available
from ...sampling.euler import Step
from . import draw, files, jobs, memory
from .jobs import Job
from .pipeline import Pipeline, Prefix
from .preview import Preview
from .request import Request, from_options

Row = tuple[str, dict[str, Any]]
"""Kind and fields of a record."""
PROMPTS = ("prompt", "prompts", "messages", "query", "prefix")
"""Options of which exactly one says what to draw."""
TEMPLATE = ("image", "system", "think", "min_pixels", "max_pixels")
"""Options of the prompt's template, which prefix files have behind them."""
EVERY = 5
"""Steps from one preview to the next."""


@dataclass(frozen=True)
class Order:
    """What to draw and where to put it.

    Attributes:
        jobs: one a picture.
        prefix: conditional prefix file, or None; `others`: those of `img_cond` and `uncond`.
        start: noise or z of a latent file, or None.
        fit: take the nearest valid size.
        recipe: keep the recipe in each PNG.
    """

    jobs: list[jobs.Job]
    prefix: Path | None
    others: dict[str, Path | None]
    start: draw.Start | None
    rng: str
    fit: bool
    save_latent: Path | None
    trace: Path | None
    sheet: Path | None
    preview: Preview | None
    recipe: bool

    def outputs(self) -> list[str | Path | None]:
        """Every file to be written; `-` is standard output."""
        pictures: list[str | Path | None] = [job.output for job in self.jobs]
        shown = self.preview.path if self.preview else None
        return [*pictures, self.sheet, self.trace, self.save_latent, shown]

    def plans(
        self, pipeline: Pipeline, *, check: bool = True
    ) -> tuple[list[draw.Plan], Prefix | None]:
        """Every job checked, before anything is drawn, and the conditional prefix if one is
        given."""
        # an export made on the way lies in the cache, which was not known before
        named = [str(f) for f in self.outputs() if f is not None and f != "-"]
        check_new_files(named, folders=[str(pipeline.package.root)])
        cond = None
        if self.prefix is not None:
            cond = pipeline.read_prefix(self.prefix)
            draw.check_task(self.prefix, cond, "cond")
        todo = self.jobs
        if self.fit:
            todo = [replace(job, options=fitted(pipeline, job.options)) for job in todo]
        plans = [self._plan(pipeline, job, cond) for job in todo]
        if check:
            for p in plans:
                pipeline.fits(draw.phases(pipeline, p.recipe, p.job, cond))
        return plans, cond

    def _plan(self, pipeline: Pipeline, job: Job, cond: Prefix | None) -> draw.Plan:
        try:
            return draw.plan(pipeline, job, self.rng, self.start, cond)
        except UsageProblem as e:
            if not job.line:
                raise
            raise InputError(f"{job.line}: {e.message}", hint=e.hint) from e

    def plan_rows(
        self, pipeline: Pipeline, plans: list[draw.Plan], cond: Prefix | None
    ) -> list[Row]:
        """Records of --plan: memory of each picture's phases, then what there is."""
        rows: list[Row] = []
        peak = 0
        for index, p in enumerate(plans):
            phases = draw.phases(pipeline, p.recipe, p.job, cond)
            peak = max([peak, *(phase.peak for phase in phases)])
            for row in memory.rows(phases):
                rows.append(("memory", {"picture": index, **row}))
        device = pipeline.device
        there = available(device)
        fields = {"device": device[0], "peak": peak, "available": there}
        fits = None if there is None else peak <= there
        return [*rows, ("summary", {**fields, "fits": fits, "pictures": len(plans)})]

    def run(
        self,
        pipeline: Pipeline,
        plans: list[draw.Plan],
        cond: Prefix | None,
        on_step: Callable[[Step], None],
    ) -> Iterator[dict[str, Any]]:
        """Draw and write; yields the fields of a `file` record for each file."""
        if self.save_latent is not None:
            draw.save_latent(self.save_latent, plans[0].latent())
            yield draw.written(str(self.save_latent), "latent")
        given = (cond, self.others) if cond is not None else None
        yield from draw.pictures(
            pipeline,
            plans,
            given,
            on_step,
            trace=self.trace,
            sheet=self.sheet,
            preview=self.preview,
            recipe=self.recipe,
        )
        if self.trace is not None:
            yield draw.written(str(self.trace), "trace")


def read_order(o: Mapping[str, Any]) -> Order:
    """The order that sample-image's options give, by their names.

    Raises:
        UsageProblem: options that contradict each other, or an output that is an input.
        SourceNotFound, InputError: a prompts, messages or latent file; the folder of an output.
        EnvironmentProblem: an output that cannot be written.
    """
    named = [f"--{k}" for k in PROMPTS if o[k] is not None]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise UsageProblem(
            "what to draw", found=found, expected=f"one of {', '.join('--' + k for k in PROMPTS)}"
        )
    others = {"img_cond": o["prefix_images_only"], "uncond": o["prefix_unconditional"]}
    if o["prefix"] is None and any(others.values()):
        raise UsageProblem("--prefix-unconditional and --prefix-images-only go with --prefix")
    options = jobs.options_of(o)
    start = draw.read_latent(o["latent"], options) if o["latent"] is not None else None
    todo = _jobs(o, options)
    for option in ("sheet", "preview"):
        if str(o[option]) == "-":
            expected = "a file name; only -o writes to standard output"
            raise UsageProblem(f"--{option} -", expected=expected)
    if o["preview_every"] is not None and o["preview"] is None:
        raise UsageProblem("--preview-every without --preview")
    if len(todo) > 1 and (o["trace"] or o["save_latent"] or o["latent"]):
        raise UsageProblem("--trace, --save-latent and --latent are for a single picture")
    order = Order(
        jobs=todo,
        prefix=o["prefix"],
        others=others,
        start=start,
        rng=o["rng"],
        fit=o["fit"],
        save_latent=o["save_latent"],
        trace=o["trace"],
        sheet=o["sheet"],
        preview=Preview(o["preview"], o["preview_every"] or EVERY) if o["preview"] else None,
        recipe=not o["no_metadata"],
    )
    files.check(order.outputs(), o, [job.request for job in todo])
    return order


def _jobs(o: Mapping[str, Any], options: dict[str, Any]) -> list[jobs.Job]:
    limits = (o["min_pixels"], o["max_pixels"])
    if o["prefix"] is not None:
        used = [f"--{k.replace('_', '-')}" for k in TEMPLATE if o[k]]
        if used:
            raise UsageProblem(f"{', '.join(used)} with --prefix", expected="a prompt to apply to")
        request = Request("unconditional")  # stands in: the prefix file has the prompt behind it
    elif o["prompts"] is not None:
        if o["count"] != 1:
            raise UsageProblem("--count and --prompts", expected="one of them; a line has a seed")
        images = tuple(o["image"] or ())
        request = Request(
            "image-edit" if images else "text-to-image",
            images=images,
            system=o["system"],
            think=o["think"],
            limits=limits,
        )
        return jobs.from_lines(o["prompts"], jobs.Job(request, o["seed"], o["output"], options))
    else:
        request = from_options(
            None,
            prompt=o["prompt"],
            messages=o["messages"],
            query=o["query"],
            images=o["image"] or (),
            system=o["system"],
            think=o["think"],
            min_pixels=o["min_pixels"],
            max_pixels=o["max_pixels"],
        )
    return jobs.counted(jobs.Job(request, o["seed"], o["output"], options), o["count"])


def fitted(pipeline: Pipeline, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with width and height moved to the nearest multiples of the token side."""
    F = pipeline.token_pixels
    sides = {k: max(F, round(options[k] / F) * F) for k in ("width", "height") if k in options}
    return {**options, **{str(k): v for k, v in sides.items()}}
