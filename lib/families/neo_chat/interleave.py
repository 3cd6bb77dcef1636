"""Interleaved text and pictures: greedy decoding that stops at `<img>` to draw, and goes on after.

Source: docs/neo-chat.md 5.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...sampling import euler
from ...sampling.image import to_uint8
from . import draw, processor, prompts
from .pipeline import Pictures, Pipeline, Prefix, Recipe
from .request import Request

MAX_IMAGES = 10
"""A run stops at the picture after this many."""


@dataclass
class Drawn:
    """A picture of the run.

    Attributes:
        picture: uint8 [H, W, 3].
        words: its recipe.
    """

    index: int
    picture: np.ndarray
    words: dict[str, Any]


@dataclass
class Run:
    """An interleaved run.

    Attributes:
        recipes: of each picture; the last one serves all further pictures.
        latent: first latent of picture number i with a recipe.
        limit: most text tokens of the whole run.
        picked: every greedy choice so far, `<img>` and the stop token included.
        text: words so far, special tokens left out, `<image>` for each picture.
    """

    pipeline: Pipeline
    request: Request
    recipes: list[Recipe]
    latent: Callable[[int, Recipe], draw.Latent]
    limit: int
    on_step: Callable[[euler.Step], None]
    picked: list[int] = field(default_factory=list)
    text: str = ""
    last_z: np.ndarray | None = None

    def events(self) -> Iterator[int | Drawn]:
        """Token ids as they are picked, and pictures where they are drawn."""
        p, tokens = self.pipeline, self.pipeline.tokens
        seen = p.encode(self.request.images, self.request.pixels())
        n = len(self.request.images)
        cond = p.prefill(self.request, seen)
        images_only = p.prefill_query(prompts.images_only(n, interleave=True), seen)
        uncond = p.prefill(Request("unconditional"))
        count, pending = 0, []
        left = self.limit
        while left > 0:
            chosen = int(cond.logits[0, -1].argmax())
            if chosen == tokens["<img>"] and count == MAX_IMAGES:
                break
            self.picked.append(chosen)
            yield chosen
            if chosen == tokens["<|im_end|>"]:
                break
            if chosen != tokens["<img>"]:
                left -= 1
                pending.append(chosen)
                p.append_text(cond, [chosen])
                continue
            self._flush(pending)
            self.text += prompts.PLACEHOLDER
            for prefix in (cond, images_only):
                p.append_text(prefix, [chosen])
            branches = {"cond": cond, "img_cond": images_only, "uncond": uncond}
            yield self._draw(branches, count)
            count += 1
            features = self._reencode()
            for prefix in (cond, images_only):
                p.append_picture(prefix, features)
        self._flush(pending)

    def _flush(self, pending: list[int]) -> None:
        self.text += self.pipeline.tokenizer.decode(pending, skip_special=True)
        pending.clear()

    def _draw(self, branches: dict[str, Prefix], index: int) -> Drawn:
        r = self.recipes[min(index, len(self.recipes) - 1)]
        latent = self.latent(index, r)
        words = {
            **draw.described(self.pipeline, r, latent, branches["cond"]),
            "picture": index,
        }
        z = self.pipeline.sample(branches, latent.z, latent.scale, r, self.on_step)
        self.last_z = z
        return Drawn(index, to_uint8(z), words)

    def _reencode(self) -> Pictures:
        """Features of the picture just drawn: not clamped, not rounded to 8 bits."""
        assert self.last_z is not None
        x = self.last_z[0] * np.float32(0.5) + np.float32(0.5)
        size = self.pipeline.sizes
        rows = processor.patch_rows(processor.normalise(x), size.patch)
        grid = (x.shape[1] // size.patch, x.shape[2] // size.patch)
        return self.pipeline.encode_rows(rows, [grid])


def latents(
    pipeline: Pipeline, seed: int, rng: str, start: draw.Start | None
) -> Callable[[int, Recipe], draw.Latent]:
    """First latents of a run's pictures: the next draw of one generator, or the next of a file."""

    def latent(index: int, r: Recipe) -> draw.Latent:
        if start is None:
            return draw.first_latent(pipeline, r, seed, rng, draw=index)
        return draw.given_latent(pipeline, start, index)

    return latent
