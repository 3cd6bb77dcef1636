"""Records written: `step` for each Euler step, then `file` for each picture; nothing with -o -."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from .. import sampler_options as o
from ..console import console
from ..options import Device, Package, Seed

Picture = Annotated[
    str,
    typer.Option(
        "--output", "-o", metavar="PNG", help="Picture; - for standard output.", show_default=False
    ),
]


def sample_image(
    package: Package,
    output: Picture,
    prompt: o.Prompt = None,
    prompts: o.Prompts = None,
    prefix: o.Prefix = None,
    prefix_unconditional: o.PrefixUnconditional = None,
    system: o.System = None,
    size: o.Size = None,
    steps: o.Steps = None,
    cfg: o.Cfg = None,
    cfg_norm: o.CfgNorm = None,
    cfg_interval: o.CfgInterval = None,
    shift: o.Shift = None,
    t_eps: o.TEps = None,
    seed: Seed = 42,
    count: o.Count = 1,
    rng: o.Rng = "portable",
    latent: o.LatentFile = None,
    save_latent: o.SaveLatent = None,
    trace: o.Trace = None,
    sheet: o.Sheet = None,
    no_metadata: o.NoMetadata = False,
    device: Device = "auto",
) -> None:
    """Draw a picture from a prompt, or from prefix files, by flow-matching sampling.

    Options that are not given take the package's defaults, which its package.json names.
    """
    from ..lib.errors import UsageProblem
    from ..lib.families.neo_chat import draw, jobs
    from ..lib.families.neo_chat.pipeline import Pipeline
    from ..lib.package.cache import package_of
    from ..lib.runtime.session import resolve_device

    if sum(x is not None for x in (prompt, prompts, prefix)) != 1:
        raise UsageProblem("what to draw", expected="one of --prompt, --prompts and --prefix")
    if prefix is None and prefix_unconditional is not None:
        raise UsageProblem("--prefix-unconditional without --prefix")
    if output == "-" and sys.stdout.isatty():
        raise UsageProblem("-o - writes a PNG to a terminal", hint="redirect it, or name a file")
    options = jobs.options_of(
        {
            "steps": steps,
            "cfg": cfg,
            "cfg_norm": cfg_norm,
            "shift": shift,
            "t_eps": t_eps,
            "size": size,
            "cfg_interval": cfg_interval,
        }
    )
    start = draw.read_latent(latent, options) if latent is not None else None
    base = jobs.Job(prompt, seed, output, system, options)
    todo = jobs.from_lines(prompts, base) if prompts is not None else jobs.counted(base, count)
    if len(todo) > 1 and (trace or save_latent or latent):
        raise UsageProblem("--trace, --save-latent and --latent are for a single picture")
    sink = io.StringIO() if output == "-" else None  # standard output is the picture then
    with console.stream(main="step", source=package, to=sink) as out:
        found = package_of(package, console.note)
        pipeline = Pipeline(found, resolve_device(device, console.note))
        plans = [draw.plan(pipeline, job, rng, start) for job in todo]  # refuse before drawing
        if save_latent is not None:
            draw.save_latent(save_latent, plans[0].latent())
        with console.bar(sum(p.recipe.steps for p in plans), "sample", "step") as bar:

            def on_step(step: Any) -> None:
                out.write("step", **asdict(step))
                bar.update(1)

            given = (prefix, prefix_unconditional) if prefix is not None else None
            for row in draw.pictures(
                pipeline, plans, given, on_step, trace=trace, sheet=sheet, recipe=not no_metadata
            ):
                out.write("file", **row)
