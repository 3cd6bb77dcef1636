"""The two drawing components as one function that a sampling step calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.session import Session, host_view
from . import positions as place

if TYPE_CHECKING:
    from .pipeline import Prefix


class Denoising:
    """x0 of each branch from z and t: `euler.Model`.

    The picture is embedded once a step and denoised once a branch. Each branch places the picture
    behind its own prefix. Every input and output has its place before the first step, so that a
    step sends z and t alone; what a step returns is written over by the next.

    Args:
        embedder, denoiser: sessions of `image_gen_embedding` and `image_gen_denoiser`.
        z: [1, 3, H, W], for its shape.
        scale: noise standard deviation.
        grid: (th, tw) of the picture in tokens.
    """

    def __init__(
        self,
        embedder: Session,
        denoiser: Session,
        branches: Mapping[str, Prefix],
        z: np.ndarray,
        scale: float,
        grid: tuple[int, int],
    ) -> None:
        tokens = [z.shape[0], grid[0] * grid[1], denoiser.inputs["inputs_embeds"][1][2]]
        self._denoiser = denoiser
        self._same = embedder.output_types["inputs_embeds"] == denoiser.inputs["inputs_embeds"][0]
        self._embeds = embedder.room("inputs_embeds", tokens, on_host=not self._same)
        self._embedding = embedder.bind(
            {
                "z": z,
                "timestep": np.zeros(1, np.float32),
                "noise_scale": np.array([scale], np.float32),
            },
            {"inputs_embeds": self._embeds},
        )
        x0 = {name: denoiser.room("x0", z.shape) for name in branches}
        self._x0 = {n: host_view(x) for n, x in x0.items()} if denoiser.on_host else x0
        self._branches = {
            name: denoiser.bind(
                {
                    "inputs_embeds": self._embeds if self._same else self._cast(),
                    "position_ids": place.image_positions(prefix.next_t, *grid),
                    "token_grid": np.array(grid, np.int64),
                    **{k: denoiser.cast(k, v) for k, v in prefix.cache.items()},
                },
                {"x0": x0[name]},
            )
            for name, prefix in branches.items()
        }

    def __call__(self, z: Any, t: np.float32, step: int, names: tuple[str, ...]) -> dict[str, Any]:
        """x0 [1, 3, H, W], float32, of the branches named: arrays, or OrtValues off the host."""
        self._embedding.feed("z", z)
        self._embedding.feed("timestep", np.array([t], np.float32))
        self._embedding.run()
        for name in names:
            if not self._same:
                self._branches[name].feed("inputs_embeds", self._cast())
            self._branches[name].run()
        return {name: self._x0[name] for name in names}

    def _cast(self) -> np.ndarray:
        return self._denoiser.cast("inputs_embeds", host_view(self._embeds))
