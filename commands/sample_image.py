"""Records written: `step` for each Euler step, then `file` for each picture; nothing with -o -."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..console import console
from ..options import Device, Package, Seed

F = Optional[Path]


def sample_image(
    package: Package,
    output: Annotated[str, typer.Option("--output", "-o", metavar="PNG", help="Picture; - for standard output.", show_default=False)],
    prompt: Annotated[Optional[str], typer.Option("--prompt", help="What to draw.")] = None,
    prompts: Annotated[Optional[str], typer.Option("--prompts", metavar="FILE", help="JSON Lines of prompt, seed, size, output, ...; - for standard input.")] = None,
    prefix: Annotated[F, typer.Option("--prefix", metavar="FILE", help="Prefix file of the prompt.")] = None,
    prefix_unconditional: Annotated[F, typer.Option("--prefix-unconditional", metavar="FILE", help="Prefix file of the empty prompt.")] = None,
    system: Annotated[Optional[str], typer.Option("--system", help="System text of the template.")] = None,
    size: Annotated[Optional[str], typer.Option("--size", metavar="WxH", help="Pixels, multiples of 32.")] = None,
    steps: Annotated[Optional[int], typer.Option("--steps", min=1, help="Euler steps.")] = None,
    cfg: Annotated[Optional[float], typer.Option("--cfg", help="Guidance scale; 1 and below: none.")] = None,
    cfg_norm: Annotated[Optional[str], typer.Option("--cfg-norm", help="none, global, channel or cfg_zero_star.")] = None,
    cfg_interval: Annotated[Optional[str], typer.Option("--cfg-interval", metavar="LO,HI", help="Guidance only for t in this range.")] = None,
    shift: Annotated[Optional[float], typer.Option("--shift", help="Timestep shift.")] = None,
    t_eps: Annotated[Optional[float], typer.Option("--t-eps", help="Floor of 1 - t.")] = None,
    seed: Seed = 42,
    count: Annotated[int, typer.Option("--count", min=1, max=10000, help="Pictures, with seeds in a row.")] = 1,
    rng: Annotated[str, typer.Option("--rng", help="portable: the same noise on every machine.")] = "portable",
    latent: Annotated[F, typer.Option("--latent", metavar="FILE", help="Start from its 'noise' or 'z'.")] = None,
    save_latent: Annotated[F, typer.Option("--save-latent", metavar="FILE", help="Write the unit noise.")] = None,
    trace: Annotated[F, typer.Option("--trace", metavar="FILE", help="Write z, t and v of all steps.")] = None,
    sheet: Annotated[F, typer.Option("--sheet", metavar="PNG", help="All pictures on one contact sheet.")] = None,
    no_metadata: Annotated[bool, typer.Option("--no-metadata", help="No recipe in the PNG.")] = False,
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
    from ..lib.sampling.image import contact_sheet, write_png

    if sum(x is not None for x in (prompt, prompts, prefix)) != 1:
        raise UsageProblem("what to draw", expected="one of --prompt, --prompts and --prefix")
    if prefix is None and prefix_unconditional is not None:
        raise UsageProblem("--prefix-unconditional without --prefix")
    if output == "-" and sys.stdout.isatty():
        raise UsageProblem("-o - writes a PNG to a terminal", hint="redirect it, or name a file")
    options = jobs.options_of(
        {"steps": steps, "cfg": cfg, "cfg_norm": cfg_norm, "shift": shift, "t_eps": t_eps,
         "size": size, "cfg_interval": cfg_interval}
    )  # fmt: skip
    start = draw.read_latent(latent, options) if latent is not None else None
    base = jobs.Job(prompt, seed, output, system, options)
    todo = jobs.from_lines(prompts, base) if prompts is not None else jobs.counted(base, count)
    if len(todo) > 1 and (trace or save_latent or latent):
        raise UsageProblem("--trace, --save-latent and --latent are for a single picture")
    sink = io.StringIO() if output == "-" else None  # standard output is the picture then
    with console.stream(main="step", source=package, to=sink) as out:
        pipeline = Pipeline(package_of(package, console.note), resolve_device(device, console.note))
        plans = [draw.plan(pipeline, job, rng, start) for job in todo]  # refuse before the first picture
        if save_latent is not None:
            draw.save_latent(save_latent, plans[0].latent())
        kept: dict[str, Any] = {}
        pictures = []
        with console.bar(sum(p.recipe.steps for p in plans), "sample", "step") as bar:

            def on_step(step: Any) -> None:
                out.write("step", **asdict(step))
                bar.update(1)

            for job, plan in zip(todo, plans, strict=True):
                if prefix is not None:
                    branches = draw.given_prefixes(pipeline, plan.recipe, prefix, prefix_unconditional)
                else:
                    branches = draw.prefixes(pipeline, plan.recipe, job.prompt or "", system, kept)
                first = plan.latent()
                words = draw.described(pipeline, plan.recipe, first, branches["cond"])
                picture = draw.run(pipeline, branches, first, plan.recipe, on_step, trace)
                target = sys.stdout.buffer if job.output == "-" else job.output
                write_png(target, picture, None if no_metadata else words)
                if job.output != "-":
                    nbytes = Path(job.output).stat().st_size
                    out.write("file", path=job.output, nbytes=nbytes, role="picture")
                if sheet is not None:
                    pictures.append((picture, f"{words['prompt']} ({job.seed})"))
        if sheet is not None:
            write_png(sheet, contact_sheet([p for p, _ in pictures], [c for _, c in pictures]))
            out.write("file", path=str(sheet), nbytes=sheet.stat().st_size, role="contact sheet")
