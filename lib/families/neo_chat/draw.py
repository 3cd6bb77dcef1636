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
from ...sampling import euler, guidance, noise, schedule
from ...sampling.image import (
    MAX_PIXELS,
    contact_sheet,
    load_image,
    recipe_text,
    to_uint8,
    write_png,
)
from . import processor
from .jobs import Job
from .memory import Phase
from .pipeline import Pipeline, Prefix, Recipe
from .preview import Preview
from .request import BRANCH_TASKS

RNGS = ("portable", "torch-cpu")
PREFIX_OPTIONS = {
    "img_cond": ("--prefix-images-only", "images-only"),
    "uncond": ("--prefix-unconditional", "unconditional"),
}
"""Branch -> the option that takes its prefix file, and the task that makes one."""


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


@dataclass(frozen=True)
class Plan:
    """One picture, decided and checked: its job and recipe, and what makes its first latent."""

    job: Job
    recipe: Recipe
    latent: Callable[[], Latent]


@dataclass(frozen=True)
class Start:
    """A latent file: its tensor's name, `noise` or `z`, and values [n, 3, H, W]."""

    kind: str
    value: np.ndarray
    path: Path


MAX_NOISE = 1e4
"""Largest magnitude in noise of unit variance; a picture of normal values does not reach 10."""


def recipe(pipeline: Pipeline, task: str, options: dict[str, Any], reference: Any) -> Recipe:
    """The package's defaults with the options that were given (not None) in their place.

    Args:
        reference: (width, height) of the first picture given, or None. An edit takes its shape, at
            the default number of pixels.
    Raises:
        UsageProblem: a size, scale, norm or number of steps that cannot be.
    """
    values = pipeline.defaults(task)
    values.update({k: v for k, v in options.items() if v is not None})
    if "width" not in values:
        target = values["target_pixels"]
        w, h = reference
        size = processor.resized(w, h, target, target, pipeline.token_pixels)
        values["width"], values["height"] = size
    lo, hi = values["cfg_interval"]
    if not (math.isfinite(values["t_eps"]) and values["t_eps"] > 0):
        raise UsageProblem("--t-eps", found=values["t_eps"], expected="a finite number above 0")
    made = Recipe(
        task=task,
        width=values["width"],
        height=values["height"],
        steps=values["steps"],
        cfg=float(values["cfg"]),
        img_cfg=float(values["img_cfg"]),
        cfg_norm=values["cfg_norm"],
        interval=(float(lo), float(hi)),
        shift=float(values["shift"]),
        t_eps=float(values["t_eps"]),
    )
    pipeline.noise_scale(made.width, made.height)
    branches = guidance.branches(made.guidance(pipeline.token_pixels))
    tokens = (made.width // pipeline.token_pixels) * (made.height // pipeline.token_pixels)
    pipeline.sessions.expect("image_gen_denoiser", made.steps * len(branches), tokens)
    schedule.timesteps(made.steps, made.shift)
    return made


def plan(pipeline: Pipeline, job: Job, rng: str, start: Start | None, cond: Prefix | None) -> Plan:
    """Check a job as far as possible without running anything.

    Args:
        start: what `read_latent` gave, or None for noise of the job's seed.
        cond: the conditional prefix where prefix files are given.
    Raises:
        UsageProblem: what `recipe` refuses, or an unknown noise generator.
    """
    if rng not in RNGS:
        raise UsageProblem("--rng", found=rng, expected=" or ".join(RNGS))
    if cond is not None:
        task, sizes = cond.words.get("task"), cond.words.get("sizes") or [None]
        reference = sizes[0]
    else:
        task = job.request.task
        reference = load_image(job.request.images[0]).size if job.request.images else None
    if start is not None:
        check_start(pipeline, start)
    r = recipe(pipeline, str(task), job.options, reference)
    if start is not None:
        return Plan(job, r, partial(given_latent, pipeline, start))
    return Plan(job, r, partial(first_latent, pipeline, r, job.seed, rng))


def phases(pipeline: Pipeline, r: Recipe, job: Job, cond: Prefix | None) -> list[Phase]:
    """What a picture needs of memory, prefill and sampling."""
    names = guidance.branches(r.guidance(pipeline.token_pixels))
    if cond is not None:
        tokens = [cond.ids.shape[1]] * len(names)
        return [pipeline.planned.sampling(r.width, r.height, tokens)]
    counts = [pipeline.count_tokens(job.request.branch(name)) for name in names]
    longest = max(counts)
    return [
        pipeline.planned.prefill(longest[0], 1, longest[1]),
        pipeline.planned.sampling(r.width, r.height, [n for n, _ in counts]),
    ]


def draw_noise(rng: str, seed: int, shape: tuple[int, ...], draw: int = 0) -> np.ndarray:
    """Unit noise: the `draw`-th array of this shape that a generator of this seed gives."""
    if rng == "torch-cpu":
        return noise.torch_cpu(seed, shape, draw)
    return noise.portable(seed, shape, start=draw * math.prod(shape))


def first_latent(pipeline: Pipeline, r: Recipe, seed: int, rng: str, draw: int = 0) -> Latent:
    """Noise of a seed, scaled for the picture's size."""
    scale = pipeline.noise_scale(r.width, r.height)
    drawn = draw_noise(rng, seed, (1, 3, r.height, r.width), draw)
    origin: dict[str, Any] = {"seed": seed, "rng": rng}
    if draw:
        origin["draw"] = draw
    return Latent(drawn, drawn * np.float32(scale), scale, origin)


def read_latent(path: Path, options: dict[str, Any]) -> Start:
    """`noise` or `z` of a latent file, float32 [n, 3, H, W]; its size becomes the options' size.

    Raises:
        InputError: neither or both are there, or of another type or shape, or values that are not
            finite or, for `noise`, of no unit variance.
        UsageProblem: the options ask for another size.
    """
    file = arrays.load(path)
    names = [n for n in ("noise", "z") if n in file.tensors]
    if len(names) != 1:
        found = ", ".join(sorted(file.tensors)) or "none"
        raise InputError(f"{path}: tensors", found=found, expected="one of 'noise' and 'z'")
    name = names[0]
    file.check(name, ["F32"], [None, 3, None, None], "[1, 3, H, W]")
    height, width = file.tensors[name].shape[2:]
    if height * width > MAX_PIXELS:
        raise InputError(
            f"{path}: tensor '{name}'",
            found=f"{width}x{height}",
            expected=f"<= {MAX_PIXELS} pixels",
        )
    value = file.finite(name)
    largest = float(np.abs(value).max())
    if name == "noise" and largest > MAX_NOISE:
        raise InputError(
            f"{path}: tensor 'noise'",
            found=f"{largest:g}",
            expected=f"magnitudes <= {MAX_NOISE:g} (unit variance)",
            hint="noise that is scaled already is named 'z'",
        )
    asked = (options.get("width", width), options.get("height", height))
    if asked != (width, height):
        raise UsageProblem(
            f"--size {asked[0]}x{asked[1]}",
            found=f"{width}x{height} in {path}",
            expected="one size",
        )
    options.update(width=width, height=height)
    return Start(name, value, path)


def check_start(pipeline: Pipeline, start: Start) -> None:
    """Refuse a latent file whose sides are no whole tokens of this package.

    Raises:
        InputError: names file and tensor.
    """
    height, width = start.value.shape[2:]
    F = pipeline.token_pixels
    if height % F or width % F:
        raise InputError(
            f"{start.path}: tensor '{start.kind}': picture size",
            found=f"{width}x{height}",
            expected=f"multiples of {F}",
        )


def given_latent(pipeline: Pipeline, start: Start, index: int | None = None) -> Latent:
    """The latent of a file: `noise` is scaled here, `z` is taken as it is.

    Args:
        index: which picture's of a file of several; None refuses such a file.
    Raises:
        InputError: more than one picture's, or fewer than `index` asks for.
    """
    kind, value = start.kind, start.value
    what, found = f"{start.path}: tensor '{kind}'", list(value.shape)
    if index is None and value.shape[0] != 1:
        raise InputError(what, found=found, expected="[1, 3, H, W]")
    if index is not None:
        if index >= value.shape[0]:
            raise InputError(f"{what}: pictures", found=value.shape[0], expected=f"over {index}")
        value = value[index : index + 1]
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
    words = {k: cond.words.get(k) for k in ("prompt", "query", "thought") if cond.words.get(k)}
    words["query_tokens"] = cond.ids.shape[1]
    if "prompt" in words:
        words.pop("query", None)  # the template's own text, which the task and prompt give
    scales = {"cfg": r.cfg} if r.task == "text-to-image" else {"cfg": r.cfg, "img_cfg": r.img_cfg}
    return {
        "tool": f"ntool {VERSION}",
        "task": r.task,
        **words,
        "width": r.width,
        "height": r.height,
        "steps": r.steps,
        **scales,
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


def prefixes(pipeline: Pipeline, r: Recipe, job: Job, kept: dict[str, Prefix]) -> dict[str, Prefix]:
    """The branches that a prompt needs, and no other; `uncond` is made once and kept.

    Pictures are encoded once for all branches. Thinking concerns `cond` alone.
    """
    request = job.request
    seen = pipeline.encode(request.images, request.pixels()) if request.images else None
    branches = {}
    for name in guidance.branches(r.guidance(pipeline.token_pixels)):
        if name == "uncond":
            if name not in kept:
                kept[name] = pipeline.prefill(request.branch(name))
            branches[name] = kept[name]
            continue
        branches[name] = pipeline.prefill(request.branch(name), seen)
        if name == "cond" and request.think:
            pipeline.think(branches[name])
    return branches


def given_prefixes(
    pipeline: Pipeline, r: Recipe, cond: Prefix, files: dict[str, Path | None]
) -> dict[str, Prefix]:
    """The branches from prefix files.

    Args:
        files: `img_cond` and `uncond` prefix files, or None.
    Raises:
        UsageProblem: guidance asked for without a prefix that it needs.
        InputError: a prefix of another task.
    """
    branches = {"cond": cond}
    if files.get("img_cond") is not None and r.task == "text-to-image":
        raise UsageProblem(
            f"{PREFIX_OPTIONS['img_cond'][0]} with a --prefix of text-to-image",
            expected="a --prefix of image-edit",
        )
    for name in guidance.branches(r.guidance(pipeline.token_pixels))[1:]:
        option, task = PREFIX_OPTIONS[name]
        path = files.get(name)
        if path is None:
            scales = f"--cfg {r.cfg:g}"
            if r.task != "text-to-image":
                scales += f" --img-cfg {r.img_cfg:g}"
            raise UsageProblem(
                f"{scales} needs {option}",
                hint=f"ntool run-prefill PKG --task {task} -o FILE, or --cfg 1",
            )
        branches[name] = pipeline.read_prefix(path)
        check_task(path, branches[name], name)
    return branches


def check_task(path: Path, prefix: Prefix, branch: str) -> None:
    """Refuse a prefix file whose task does not fit the branch it is given for."""
    task = prefix.words.get("task")
    wanted = BRANCH_TASKS[branch]
    if task not in wanted or task == "interleave":
        expected = " or ".join(t for t in wanted if t != "interleave")
        raise InputError(f"{path}: task", found=task, expected=expected)


def run(
    pipeline: Pipeline,
    branches: dict[str, Prefix],
    latent: Latent,
    r: Recipe,
    on_step: Callable[[euler.Step], None],
    trace: Path | None = None,
    preview: Preview | None = None,
) -> np.ndarray:
    """Sample one picture; uint8 [H, W, 3]. A trace file gets z, t and v of all steps."""
    kept = euler.Trace() if trace else None
    z = pipeline.sample(branches, latent.z, latent.scale, r, on_step, kept, preview)
    if trace and kept:
        found = {k: v[:, 0] for k, v in kept.arrays().items()}
        arrays.save(trace, {**found, "t": schedule.timesteps(r.steps, r.shift)}, {})
    return to_uint8(z)


def pictures(
    pipeline: Pipeline,
    plans: list[Plan],
    given: tuple[Prefix, dict[str, Path | None]] | None,
    on_step: Callable[[euler.Step], None],
    *,
    trace: Path | None = None,
    sheet: Path | None = None,
    preview: Preview | None = None,
    recipe: bool = True,
) -> Iterator[dict[str, Any]]:
    """Draw and write every plan's picture; yields the fields of a `file` record for each file.

    Args:
        given: the conditional prefix and the prefix files of the other branches, for a prompt.
        sheet: a PNG of all pictures with their prompts below.
        preview: shows the picture that is being drawn.
        recipe: keep the recipe in each PNG.
    """
    kept: dict[str, Prefix] = {}
    shown: list[tuple[np.ndarray, str]] = []
    for index, p in enumerate(plans):
        if given is not None:
            branches = given_prefixes(pipeline, p.recipe, *given)
        else:
            branches = prefixes(pipeline, p.recipe, p.job, kept)
        first = p.latent()
        words = described(pipeline, p.recipe, first, branches["cond"])
        if recipe:
            recipe_text(words)  # a recipe that cannot be stored should not cost a picture
        if index == len(plans) - 1:
            pipeline.release("vision_encoder", "embedding", "decoder")
        picture = run(pipeline, branches, first, p.recipe, on_step, trace, preview)
        to_stdout = p.job.output == "-"
        write_png(
            sys.stdout.buffer if to_stdout else p.job.output, picture, words if recipe else None
        )
        if not to_stdout:
            about: dict[str, Any] = {k: words[k] for k in ("prompt", "seed") if k in words}
            yield {**written(p.job.output, "picture"), "picture": index, **about}
        if sheet is not None:
            shown.append((picture, f"{words.get('prompt', '')} ({p.job.seed})"))
    if preview is not None:
        yield written(str(preview.path), "preview")
    if sheet is not None:
        write_png(sheet, contact_sheet([p for p, _ in shown], [c for _, c in shown]))
        yield written(str(sheet), "contact sheet")


def written(path: str, role: str) -> dict[str, Any]:
    """Fields of the `file` record of a file that was just written; a pipe has no size."""
    found = Path(path)
    return {"path": path, "nbytes": found.stat().st_size if found.is_file() else None, "role": role}
