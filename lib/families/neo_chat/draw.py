"""From options to pictures: first latents, prefixes of the branches, the recipe, the PNG."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....version import VERSION
from ...errors import InputError, UsageProblem
from ...runtime import arrays
from ...sampling import euler, noise, schedule
from ...sampling.image import contact_sheet, to_uint8, write_png
from .jobs import Job
from .pipeline import Pipeline, Prefix, Recipe

RNGS = ("portable",)


@dataclass(frozen=True)
class Latent:
    """Where a run starts.

    Attributes:
        noise: unit variance, float32 [1, 3, H, W]; None when a scaled `z` was given.
        z: noise times the noise scale.
        scale: that scale; the model is told it.
        origin: how the noise came to be, for the recipe.
    """

    noise: np.ndarray | None
    z: np.ndarray
    scale: float
    origin: dict[str, Any]


def recipe(pipeline: Pipeline, options: dict[str, Any]) -> Recipe:
    """The package's defaults with the options that were given (not None) in their place."""
    values = pipeline.defaults("text-to-image")
    values.update({k: v for k, v in options.items() if v is not None and k in values})
    lo, hi = values["cfg_interval"]
    if not (math.isfinite(values["t_eps"]) and values["t_eps"] > 0):
        raise UsageProblem("--t-eps", found=values["t_eps"], expected="a finite number above 0")
    return Recipe(
        width=values["width"],
        height=values["height"],
        steps=values["steps"],
        cfg=float(values["cfg"]),
        cfg_norm=values["cfg_norm"],
        interval=(float(lo), float(hi)),
        shift=float(values["shift"]),
        t_eps=float(values["t_eps"]),
    )


def first_latent(pipeline: Pipeline, r: Recipe, seed: int) -> Latent:
    """Noise of a seed, scaled for the picture's size."""
    scale = pipeline.noise_scale(r.width, r.height)
    drawn = noise.portable(seed, (1, 3, r.height, r.width))
    return Latent(drawn, drawn * np.float32(scale), scale, {"seed": seed, "rng": "portable"})


@dataclass(frozen=True)
class Plan:
    """One picture, decided and checked: its job and recipe, and what makes its first latent."""

    job: Job
    recipe: Recipe
    latent: Callable[[], Latent]


def plan(pipeline: Pipeline, job: Job, rng: str, start: tuple[str, np.ndarray] | None) -> Plan:
    """Check a job's options as far as possible without running anything.

    Args:
        start: what `read_latent` gave, or None for noise of the job's seed.
    Raises:
        UsageProblem: a size, scale, norm, generator or number of steps that cannot be.
    """
    r = recipe(pipeline, job.options)
    if rng not in RNGS:
        raise UsageProblem("--rng", found=rng, expected=" or ".join(RNGS))
    pipeline.noise_scale(r.width, r.height)
    r.guidance(pipeline.token_pixels)
    schedule.timesteps(r.steps, r.shift)
    if start is not None:
        return Plan(job, r, partial(given_latent, pipeline, *start))
    return Plan(job, r, partial(first_latent, pipeline, r, job.seed))


def read_latent(path: Path, options: dict[str, Any]) -> tuple[str, np.ndarray]:
    """`noise` or `z` of a latent file, float32 [1, 3, H, W]; its size becomes the options' size.

    Raises:
        InputError: neither or both are there, or of another type or shape.
        UsageProblem: the options ask for another size.
    """
    tensors, _ = arrays.load(path)
    names = [n for n in ("noise", "z") if n in tensors]
    if len(names) != 1:
        raise InputError(
            f"{path}: tensors", found=sorted(tensors), expected="one of 'noise' and 'z'"
        )
    value = tensors[names[0]]
    if value.dtype != np.float32 or value.ndim != 4 or value.shape[:2] != (1, 3):
        raise InputError(
            f"{path}: tensor '{names[0]}'",
            found=f"{value.dtype} {list(value.shape)}",
            expected="float32 [1, 3, H, W]",
        )
    height, width = value.shape[2:]
    asked = (options.get("width", width), options.get("height", height))
    if asked != (width, height):
        raise UsageProblem(
            f"--size {asked[0]}x{asked[1]}",
            found=f"{width}x{height} in {path}",
            expected="one size",
        )
    options.update(width=width, height=height)
    return names[0], value


def given_latent(pipeline: Pipeline, kind: str, value: np.ndarray) -> Latent:
    """The latent of a file: `noise` is scaled here, `z` is taken as it is."""
    height, width = value.shape[2:]
    scale = pipeline.noise_scale(width, height)
    digest = hashlib.sha256(value.tobytes()).hexdigest()
    origin = {"latent": kind, "latent_sha256": digest}
    if kind == "noise":
        return Latent(value, value * np.float32(scale), scale, origin)
    return Latent(None, value, scale, origin)


def save_latent(path: Path, latent: Latent) -> None:
    """Write the unit noise of a run.

    Raises:
        UsageProblem: the run started from a scaled z, whose unit noise is not known.
    """
    if latent.noise is None:
        raise UsageProblem("--save-latent with a latent file that holds 'z'", expected="'noise'")
    arrays.save(path, {"noise": latent.noise}, {"noise_scale": latent.scale, **latent.origin})


def described(pipeline: Pipeline, r: Recipe, latent: Latent, cond: Prefix) -> dict[str, Any]:
    """The recipe as it is kept in the PNG: everything that decides the picture, no path, no
    time."""
    manifest = pipeline.package.manifest
    return {
        "tool": f"ntool {VERSION}",
        "task": cond.words.get("task"),
        "prompt": cond.words.get("prompt"),
        "width": r.width,
        "height": r.height,
        "steps": r.steps,
        "cfg": r.cfg,
        "cfg_norm": r.cfg_norm,
        "cfg_interval": list(r.interval),
        "shift": r.shift,
        "t_eps": r.t_eps,
        "noise_scale": latent.scale,
        **latent.origin,
        "source": manifest["source"],
        "compute_dtype": manifest["components"]["image_gen_denoiser"]["compute_dtype"],
        "package": pipeline.package.digest,
    }


def prefixes(
    pipeline: Pipeline, r: Recipe, prompt: str, system: str | None, kept: dict[str, Prefix]
) -> dict[str, Prefix]:
    """The branches that a text-to-image prompt needs; the unconditional one is made once and
    kept."""
    query = pipeline.query("text-to-image", prompt, 0, system)
    branches = {"cond": pipeline.prefill(query, task="text-to-image", prompt=prompt)}
    if r.cfg > 1:
        if "uncond" not in kept:
            kept["uncond"] = pipeline.prefill(
                pipeline.query("unconditional", "", 0, None), task="unconditional"
            )
        branches["uncond"] = kept["uncond"]
    return branches


def given_prefixes(
    pipeline: Pipeline, r: Recipe, cond: Path, uncond: Path | None
) -> dict[str, Prefix]:
    """The branches from prefix files.

    Raises:
        UsageProblem: guidance asked for without the unconditional prefix.
        InputError: a prefix of another task.
    """
    branches = {"cond": pipeline.read_prefix(cond)}
    if r.cfg > 1:
        if uncond is None:
            raise UsageProblem(
                f"--cfg {r.cfg:g} needs --prefix-unconditional",
                hint="ntool run-prefill PKG --task unconditional -o FILE, or --cfg 1",
            )
        branches["uncond"] = pipeline.read_prefix(uncond)
    for name, path in (("cond", cond), ("uncond", uncond)):
        wanted = {"cond": "text-to-image", "uncond": "unconditional"}[name]
        if name in branches and branches[name].words.get("task") != wanted:
            raise InputError(
                f"{path}: task", found=branches[name].words.get("task"), expected=wanted
            )
    return branches


def run(
    pipeline: Pipeline,
    branches: dict[str, Prefix],
    latent: Latent,
    r: Recipe,
    on_step: Callable[[euler.Step], None],
    trace: Path | None = None,
) -> np.ndarray:
    """Sample one picture; uint8 [H, W, 3]. A trace file gets z, t and v of all steps."""
    kept = euler.Trace() if trace else None
    z = pipeline.sample(branches, latent.z, latent.scale, r, on_step, kept)
    if trace and kept:
        found = {k: v[:, 0] for k, v in kept.arrays().items()}
        arrays.save(trace, {**found, "t": schedule.timesteps(r.steps, r.shift)}, {})
    return to_uint8(z)


def pictures(
    pipeline: Pipeline,
    plans: list[Plan],
    given: tuple[Path, Path | None] | None,
    on_step: Callable[[euler.Step], None],
    *,
    trace: Path | None = None,
    sheet: Path | None = None,
    recipe: bool = True,
) -> Iterator[dict[str, Any]]:
    """Draw and write every plan's picture; yields the fields of a `file` record for each file.

    Args:
        given: prefix files (conditional, unconditional) instead of prompts.
        sheet: a PNG of all pictures with their prompts below.
        recipe: keep the recipe in each PNG.
    """
    kept: dict[str, Prefix] = {}
    shown: list[tuple[np.ndarray, str]] = []
    for p in plans:
        if given is not None:
            branches = given_prefixes(pipeline, p.recipe, *given)
        else:
            branches = prefixes(pipeline, p.recipe, p.job.prompt or "", p.job.system, kept)
        first = p.latent()
        words = described(pipeline, p.recipe, first, branches["cond"])
        picture = run(pipeline, branches, first, p.recipe, on_step, trace)
        to_stdout = p.job.output == "-"
        target = sys.stdout.buffer if to_stdout else p.job.output
        write_png(target, picture, words if recipe else None)
        if not to_stdout:
            yield _file(p.job.output, "picture")
        if sheet is not None:
            shown.append((picture, f"{words['prompt']} ({p.job.seed})"))
    if sheet is not None:
        write_png(sheet, contact_sheet([p for p, _ in shown], [c for _, c in shown]))
        yield _file(str(sheet), "contact sheet")


def _file(path: str, role: str) -> dict[str, Any]:
    return {"path": path, "nbytes": Path(path).stat().st_size, "role": role}
