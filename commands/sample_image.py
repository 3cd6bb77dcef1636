"""Records written: `step` for each Euler step, then `file` for each picture; nothing with -o -.
With --plan `memory` for each component and phase, then `summary`."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from .. import sampler_options as o
from ..console import console
from ..options import Device, Runnable, Seed

Picture = Annotated[
    str,
    typer.Option(
        "--output", "-o", metavar="PNG", help="Picture; - for standard output.", show_default=False
    ),
]


def sample_image(
    package: Runnable,
    output: Picture,
    prompt: o.Prompt = None,
    image: o.Images = None,
    prompts: o.Prompts = None,
    messages: o.Messages = None,
    query: o.Query = None,
    system: o.System = None,
    think: o.Think = False,
    min_pixels: o.MinPixels = None,
    max_pixels: o.MaxPixels = None,
    prefix: o.Prefix = None,
    prefix_images_only: o.PrefixImagesOnly = None,
    prefix_unconditional: o.PrefixUnconditional = None,
    size: o.Size = None,
    fit: o.Fit = False,
    steps: o.Steps = None,
    cfg: o.Cfg = None,
    img_cfg: o.ImgCfg = None,
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
    preview: o.Preview = None,
    preview_every: o.PreviewEvery = None,
    no_metadata: o.NoMetadata = False,
    device: Device = "auto",
    threads: o.Threads = 0,
    low_memory: o.LowMemory = False,
    plan: o.Plan = False,
) -> None:
    """Draw a picture from a prompt, edit pictures, or go on from prefix files.

    Flow-matching sampling with guidance. With --image the prompt says what to change. Options that
    are not given take the package's defaults, which its package.json names.
    """
    options = dict(locals())
    from ..lib import progress
    from ..lib.errors import UsageProblem
    from ..lib.families.neo_chat.order import read_order
    from ..lib.families.neo_chat.pipeline import Pipeline
    from ..lib.package.cache import package_of
    from ..lib.runtime.session import Settings, resolve_device

    if output == "-" and sys.stdout.isatty():
        raise UsageProblem("-o - writes a PNG to a terminal", hint="redirect it, or name a file")
    sink = io.StringIO() if output == "-" else None  # standard output is the picture then
    main = "memory" if plan else "step"
    with console.stream(main=main, source=package, to=sink, format="picture") as out:
        order = read_order(options)
        found = package_of(package, console.note)
        settings = Settings(
            resolve_device(device, console.note), threads, low_memory, note=console.note
        )
        pipeline = Pipeline(found, settings)
        plans, cond = order.plans(pipeline, check=not plan)
        for kind, row in order.plan_rows(pipeline, plans, cond) if plan else ():
            out.write(kind, **row)
        if plan:
            return
        with progress.step(sum(p.recipe.steps for p in plans), "sampling", "step") as bar:

            def on_step(step: Any) -> None:
                out.write("step", **asdict(step))
                bar.update(1)

            for row in order.run(pipeline, plans, cond, on_step):
                out.write("file", **row)
