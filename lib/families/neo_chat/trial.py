"""Small runs of a neo_chat package: inputs that fit together for every axis, and a tiny picture.

B sequences, S tokens of a prompt, P cached tokens, L = th tw tokens of a picture. Numbers come
from a fixed seed. Which inputs belong together, the graphs cannot say: the patches of
`pixel_values` are those of `grid_hw`, context tokens are as many as picture features, positions
are of as many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InputError, Unsupported
from ...package.package import Package
from ...package.small_run import Sizes, Watched, noise, nothing, port
from ...runtime.arrays import Arrays
from ...runtime.session import Session
from . import draw, jobs
from . import positions as place
from .pipeline import DRAWING, READING, Pipeline, Prefix, Recipe
from .request import Request

_BASE: dict[str, dict[str, Any]] = {
    "vision_encoder": {"grids": ((2, 2),)},
    "embedding": {"batch": 1, "sequence": 3, "image_tokens": 0},
    "decoder": {"batch": 1, "sequence": 3, "past_sequence": 0, "kept": 1},
    "image_gen_embedding": {"batch": 1, "height": 1, "width": 2},
    "image_gen_denoiser": {"batch": 1, "grid": (1, 2), "past_sequence": 1},
}
_VARIED: dict[str, tuple[dict[str, Any], ...]] = {
    "vision_encoder": ({"grids": ((2, 4),)}, {"grids": ((4, 2), (2, 2))}),
    "embedding": ({"batch": 2}, {"sequence": 5}, {"image_tokens": 2}),
    "decoder": ({"batch": 2}, {"sequence": 1}, {"past_sequence": 4}, {"kept": 2}),
    "image_gen_embedding": ({"batch": 2}, {"height": 2}, {"width": 3}),
    "image_gen_denoiser": ({"batch": 2}, {"grid": (2, 2)}, {"grid": (3, 1)}, {"past_sequence": 3}),
}


def cases(manifest: dict[str, Any], component: str) -> Iterator[tuple[str, Arrays, Sizes]]:
    """Runs in which each symbolic axis of a component takes at least two values.

    Yields:
        What is varied, the feeds, and the length of every symbolic dimension of inputs and outputs.
        Grids and picture sides count in tokens, but those of pictures that are read in patches.
    """
    base = _BASE[component]
    for change in ({}, *_VARIED[component]):
        label = ", ".join(f"{k} {v}" for k, v in change.items()) or "smallest"
        feeds, sizes = _MAKERS[component](manifest, {**base, **change})
        yield label, feeds, sizes


def _vision_encoder(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    grids = c["grids"]
    patches = sum(h * w for h, w in grids)
    width = _shape(manifest, "vision_encoder", "pixel_values")[1]
    merge = manifest["workflow"]["positions"]["token_pixels"] // math.isqrt(width // 3)
    # a grid of whole tokens: the base counts 2 patches a side, the usual merge
    grids = [(h * merge // 2, w * merge // 2) for h, w in grids]
    patches = sum(h * w for h, w in grids)
    feeds = {"pixel_values": noise(patches, width), "grid_hw": np.array(grids, np.int64)}
    return feeds, {
        "patches": patches,
        "images": len(grids),
        "image_tokens": patches // merge**2,
    }


def _embedding(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    B, S, n = c["batch"], c["sequence"], c["image_tokens"]
    context = manifest["special_tokens"]["<IMG_CONTEXT>"]
    ids = np.full((B, S), 0 if context else 1, np.int64)
    ids[0, 1 : 1 + n] = context
    declared = port(manifest, "embedding", "image_features")
    features = noise(n, declared["shape"][1], dtype=declared["dtype"])
    return {"input_ids": ids, "image_features": features}, {
        "batch": B,
        "sequence": S,
        "image_tokens": n,
    }


def _decoder(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    B, S, P = c["batch"], c["sequence"], c["past_sequence"]
    declared = port(manifest, "decoder", "inputs_embeds")
    feeds = {
        "inputs_embeds": noise(B, S, declared["shape"][2], dtype=declared["dtype"]),
        "position_ids": place.text_positions(P, S),
        "logits_to_keep": np.array([min(c["kept"], S)], np.int64),
        **_cache(manifest, "decoder", B, P),
    }
    sizes = {"batch": B, "sequence": S, "past_sequence": P, "total_sequence": P + S}
    return feeds, {**sizes, "kept": min(c["kept"], S)}


def _image_gen_embedding(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    F = manifest["workflow"]["positions"]["token_pixels"]
    B, H, W = c["batch"], c["height"] * F, c["width"] * F
    feeds = {
        "z": noise(B, 3, H, W),
        "timestep": np.array([0.5], np.float32),
        "noise_scale": np.array([1.0], np.float32),
    }
    return feeds, {"batch": B, "height": H, "width": W, "picture_tokens": c["height"] * c["width"]}


def _image_gen_denoiser(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    F = manifest["workflow"]["positions"]["token_pixels"]
    B, P, (th, tw) = c["batch"], c["past_sequence"], c["grid"]
    declared = port(manifest, "image_gen_denoiser", "inputs_embeds")
    feeds = {
        "inputs_embeds": noise(B, th * tw, declared["shape"][2], dtype=declared["dtype"]),
        "position_ids": place.image_positions(P, th, tw),
        "token_grid": np.array([th, tw], np.int64),
        **_cache(manifest, "image_gen_denoiser", B, P),
    }
    sizes = {"batch": B, "past_sequence": P, "picture_tokens": th * tw}
    return feeds, {**sizes, "height": th * F, "width": tw * F}


_MAKERS: dict[str, Callable[[dict[str, Any], dict[str, Any]], tuple[Arrays, Sizes]]] = {
    "vision_encoder": _vision_encoder,
    "embedding": _embedding,
    "decoder": _decoder,
    "image_gen_embedding": _image_gen_embedding,
    "image_gen_denoiser": _image_gen_denoiser,
}


def _cache(manifest: dict[str, Any], component: str, batch: int, past: int) -> Arrays:
    sizes = {"batch": batch, "past_sequence": past}
    return {
        e["input"]: noise(
            *(d if isinstance(d, int) else sizes.get(d, 1) for d in e["shape"]),
            dtype=port(manifest, component, e["input"])["dtype"],
        )
        for e in manifest["cache"]
    }


def _shape(manifest: dict[str, Any], component: str, name: str) -> list[Any]:
    shape: list[Any] = port(manifest, component, name)["shape"]
    return shape


# -- a prompt and a picture ---------------------------------------------------------------------

STEPS = 2


class _Trial(Pipeline):
    """The pipeline with sessions that exist already and are watched."""

    def __init__(
        self, package: Package, sessions: dict[str, Session], report: Callable[[str, str], None]
    ) -> None:
        super().__init__(package)
        self._watched = {name: Watched(name, s, report) for name, s in sessions.items()}

    def session(self, component: str) -> Session:
        """The watched session of a component."""
        return self._watched[component]  # type: ignore[return-value]


def finite(
    package: Package, sessions: dict[str, Session]
) -> tuple[list[str], list[tuple[str, str]]]:
    """A tiny prefill and two denoising steps, as far as the package has the components for them;
    a component that has no part in either runs alone, on noise.

    Args:
        sessions: a loaded session of every component.
    Returns:
        What was run, in words; and each (component, output) whose values are not finite. After the
        first of these the rest is not run.
    Raises:
        InputError: the pipeline itself refuses to go on.
    """
    found: list[tuple[str, str]] = []
    trial = _Trial(package, sessions, lambda component, name: found.append((component, name)))
    there = set(sessions)
    task = "text-to-image"
    reading = there >= set(READING)
    drawing = reading and there >= set(DRAWING) and task in package.manifest["workflow"]["tasks"]
    alone = there - set(READING if reading else ()) - set(DRAWING if drawing else ())
    ran = []
    for name in sessions:
        if name in alone and not found:
            feeds, _ = _MAKERS[name](package.manifest, _BASE[name])
            trial.session(name).run(feeds)
            ran.append(name)
    if reading and not found:
        start = package.manifest["special_tokens"]["<|im_start|>"]
        ran.append("prefill")
        try:
            prefix = trial.prefill(Request(task, ids=(start, start)))
        except Exception:
            if not found:
                raise
        else:
            if drawing and not found:
                ran.append("two denoising steps")
                _two_steps(trial, prefix, found)
    return ran, list(dict.fromkeys(found))


def _two_steps(trial: _Trial, prefix: Any, found: list[tuple[str, str]]) -> None:
    F = trial.token_pixels
    recipe = Recipe(
        task="text-to-image", width=2 * F, height=F, steps=STEPS, cfg=2.0, img_cfg=1.0,
        cfg_norm="none", interval=(0.0, 1.0), shift=1.0, t_eps=0.02,
    )  # fmt: skip
    scale = trial.noise_scale(recipe.width, recipe.height)
    z = noise(1, 3, recipe.height, recipe.width) * np.float32(scale)
    try:
        trial.sample({"cond": prefix, "uncond": prefix}, z, scale, recipe, lambda step: None)
    except Exception:
        if not found:
            raise


# -- goldens --------------------------------------------------------------------------------------


def implied(
    component: str, name: str, shape: Sequence[Any], given: Mapping[str, Sequence[int]]
) -> np.ndarray | None:
    """An input that a golden need not have: of how many tokens there are logits, and the features
    of no picture.

    Args:
        shape: what the input declares. given: shapes of the golden's tensors.
    """
    if (component, name) == ("embedding", "image_features"):
        return nothing(shape)
    if (component, name) != ("decoder", "logits_to_keep"):
        return None
    logits = given.get("logits", (1, 1, 1))
    return np.array([logits[1] if len(logits) == 3 else 1], np.int64)


def replay(package: Package, sessions: dict[str, Session], given: Arrays) -> Arrays:
    """What a prefix file holds, made again of its tokens: `logits`, `past.I.key`, `past.I.value`.

    Args:
        given: `token_ids` [1, S], `position_ids` [3, S], and `logits` [1, kept, V], of which only
            the number counts.
    Raises:
        InputError: arrays that are none of a prefix file.
        SourceNotFound: the package lacks components.
    """
    trial = _Trial(package, sessions, lambda component, name: None)
    trial.need(*READING)
    ids, logits, p = (given.get(k) for k in ("token_ids", "logits", "position_ids"))
    if ids is None or ids.ndim != 2 or ids.shape[0] != 1 or ids.dtype != np.int64:
        raise InputError("token_ids", expected="int64 [1, S]")
    tokens = trial.checked(ids[0].tolist())
    if (tokens == trial.tokens["<IMG_CONTEXT>"]).any():
        raise Unsupported("a prefix with pictures, which are not in it", expected="one of text")
    if p is None or p.shape != (3, tokens.shape[1]) or p.dtype != np.int64:
        raise InputError("position_ids", expected=f"int64 [3, {tokens.shape[1]}]")
    if logits is None or logits.ndim != 3 or not 1 <= logits.shape[1] <= tokens.shape[1]:
        raise InputError("logits", expected="[1, 1 to S, V]")
    start = Prefix(tokens[:, :0], p[:, :0], trial.empty_cache(), np.zeros(0))
    trial.extend(start, tokens, p, trial.no_pictures(), keep=logits.shape[1])
    return {"logits": start.logits, **start.arrays()}


_DRAWN = (
    "width",
    "height",
    "steps",
    "cfg",
    "img_cfg",
    "cfg_norm",
    "cfg_interval",
    "shift",
    "t_eps",
)
"""What a recipe says of the sampler."""


def redraw(package: Package, sessions: dict[str, Session], words: dict[str, Any]) -> np.ndarray:
    """The picture of a recipe, as `draw.described` writes it; uint8 [H, W, 3].

    Raises:
        Unsupported: a recipe that leaves out what the picture was made of: other pictures, a latent
            file, a system text.
        InputError: values that no run has.
    """
    what = "recipe"
    if words.get("task") != "text-to-image" or "thought" in words:
        raise Unsupported(f"{what}: task", found=words.get("task"), expected="text-to-image")
    if "seed" not in words or not (words.get("prompt") or words.get("query")):
        raise Unsupported(f"{what}: without a seed or a prompt", expected="both in the PNG")
    row = {k: words[k] for k in ("prompt", "seed", *_DRAWN) if k in words}
    interval = row.pop("cfg_interval", None)
    sides = {k: row.pop(k, None) for k in ("width", "height")}
    for key, side in sides.items():
        if type(side) is not int or not 0 < side < 1 << 20:
            raise InputError(f"{what}: {key}", found=repr(side), expected="pixels")
    for key, value in row.items():
        jobs.check_field(key, value, what)
    numbers = isinstance(interval, list) and len(interval) == 2
    if not numbers or any(type(v) not in (int, float) for v in interval or ()):
        raise InputError(f"{what}: cfg_interval", found=repr(interval), expected="[LO, HI]")
    query = None if "prompt" in row else words["query"]
    if query is not None:
        jobs.check_field("prompt", query, what)
    trial = _Trial(package, sessions, lambda component, name: None)
    trial.need(*READING, *DRAWING)
    request = Request("text-to-image", prompt=row.pop("prompt", ""), query=query)
    seed = row.pop("seed")
    options = {**row, **sides, "cfg_interval": interval}
    job = jobs.Job(request, seed, "-", options)
    plan = draw.plan(trial, job, words.get("rng", ""), None, None)
    trial.fits(draw.phases(trial, plan.recipe, job, None))
    branches = draw.prefixes(trial, plan.recipe, job, {})
    count = branches["cond"].ids.shape[1]
    if words.get("query_tokens") != count:
        raise Unsupported(
            f"{what}: tokens of the prompt",
            found=f"{count}, made again of the recipe",
            expected=f"{words.get('query_tokens')}: it was drawn with a system text",
        )
    return draw.run(trial, branches, plan.latent(), plan.recipe, lambda step: None)
