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


def sample_image(
    package: Package,
    output: Annotated[str, typer.Option("--output", "-o", metavar="PNG", help="Picture; - for standard output.", show_default=False)],
    prompt: Annotated[Optional[str], typer.Option("--prompt", help="What to draw.")] = None,
    prefix: Annotated[Optional[Path], typer.Option("--prefix", metavar="FILE", help="Prefix file of the prompt.")] = None,
    prefix_unconditional: Annotated[
        Optional[Path], typer.Option("--prefix-unconditional", metavar="FILE", help="Prefix file of the empty prompt.")
    ] = None,
    system: Annotated[Optional[str], typer.Option("--system", help="System text of the template.")] = None,
    size: Annotated[Optional[str], typer.Option("--size", metavar="WxH", help="Pixels, multiples of 32.")] = None,
    steps: Annotated[Optional[int], typer.Option("--steps", min=1, help="Euler steps.")] = None,
    cfg: Annotated[Optional[float], typer.Option("--cfg", help="Guidance scale; 1 and below: none.")] = None,
    cfg_norm: Annotated[
        Optional[str], typer.Option("--cfg-norm", help="none, global, channel or cfg_zero_star.")
    ] = None,
    cfg_interval: Annotated[
        Optional[str], typer.Option("--cfg-interval", metavar="LO,HI", help="Guidance only for t in this range.")
    ] = None,
    shift: Annotated[Optional[float], typer.Option("--shift", help="Timestep shift.")] = None,
    t_eps: Annotated[Optional[float], typer.Option("--t-eps", help="Floor of 1 - t.")] = None,
    seed: Seed = 42,
    rng: Annotated[str, typer.Option("--rng", help="portable: the same noise on every machine.")] = "portable",
    latent: Annotated[
        Optional[Path], typer.Option("--latent", metavar="FILE", help="Start from its 'noise' or 'z'.")
    ] = None,
    save_latent: Annotated[
        Optional[Path], typer.Option("--save-latent", metavar="FILE", help="Write the unit noise.")
    ] = None,
    trace: Annotated[
        Optional[Path], typer.Option("--trace", metavar="FILE", help="Write z, t and v of all steps.")
    ] = None,
    no_metadata: Annotated[bool, typer.Option("--no-metadata", help="No recipe in the PNG.")] = False,
    device: Device = "auto",
) -> None:
    """Draw a picture from a prompt, or from prefix files, by flow-matching sampling.

    Options that are not given take the package's defaults, which its package.json names.
    """
    from ..lib.errors import UsageProblem
    from ..lib.families.neo_chat import draw
    from ..lib.families.neo_chat.pipeline import Pipeline
    from ..lib.package.cache import package_of
    from ..lib.runtime.session import resolve_device
    from ..lib.sampling.image import write_png

    if (prompt is None) == (prefix is None):
        raise UsageProblem("what to draw", expected="either --prompt or --prefix")
    if prefix is None and prefix_unconditional is not None:
        raise UsageProblem("--prefix-unconditional without --prefix")
    options: dict[str, Any] = {"steps": steps, "cfg": cfg, "cfg_norm": cfg_norm, "shift": shift, "t_eps": t_eps}
    if cfg_interval is not None:
        options["cfg_interval"] = draw.parse_interval(cfg_interval)
    if size is not None:
        options["width"], options["height"] = draw.parse_size(size)
    start = None
    if latent is not None:
        kind, value = draw.latent_size(latent)
        height, width = value.shape[2:]
        if size is not None and (options["width"], options["height"]) != (width, height):
            raise UsageProblem(f"--size {size} and --latent of", found=f"{width}x{height}", expected="one size")
        options["width"], options["height"] = width, height
        start = (kind, value)
    if output == "-" and sys.stdout.isatty():
        raise UsageProblem("-o - writes a PNG to a terminal", hint="redirect it, or name a file")
    sink = io.StringIO() if output == "-" else None  # standard output is the picture then
    with console.stream(main="step", source=package, to=sink) as out:
        pipeline = Pipeline(package_of(package, console.note), resolve_device(device, console.note))
        recipe = draw.recipe(pipeline, options)
        if start is not None:
            first = draw.given_latent(pipeline, latent, *start)
        else:
            first = draw.first_latent(pipeline, recipe, seed, rng)
        if save_latent is not None:
            draw.save_latent(save_latent, first)
        if prefix is not None:
            branches = draw.given_prefixes(pipeline, recipe, prefix, prefix_unconditional)
        else:
            branches = draw.prefixes(pipeline, recipe, prompt or "", system, {})
        words = draw.described(pipeline, recipe, first, branches["cond"])
        console.detail(f"recipe: {words}")
        with console.bar(recipe.steps, "sample", "step") as bar:

            def on_step(step: Any) -> None:
                out.write("step", **asdict(step))
                bar.update(1)

            picture = draw.run(pipeline, branches, first, recipe, on_step, trace)
        target = sys.stdout.buffer if output == "-" else output
        write_png(target, picture, None if no_metadata else words)
        if output != "-":
            out.write("file", path=output, nbytes=Path(output).stat().st_size, role="picture")
