"""The two drawing components as one function that a sampling step calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.session import Session, to_numpy
from . import positions as place

if TYPE_CHECKING:
    from .pipeline import Prefix


class Denoising:
    """x0 of each branch from z and t: `euler.Model`.

    The picture is embedded once a step. Each branch places it behind its own prefix; branches whose
    prefixes are of one length run as one batch, which reads the weights once (docs/architecture.md,
    "Sampling"). Every input and output has its place before it is used, so that a step sends z and
    t alone; what a step returns is written over by the next.

    Args:
        embedder, denoiser: sessions of `image_gen_embedding` and `image_gen_denoiser`.
        branches: prefixes by name.
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
        self._denoiser, self._branches, self._grid, self._shape = denoiser, branches, grid, z.shape
        tokens = (1, grid[0] * grid[1], denoiser.inputs["inputs_embeds"][1][2])
        same = embedder.output_types["inputs_embeds"] == denoiser.inputs["inputs_embeds"][0]
        self._embeds = embedder.room("inputs_embeds", tokens, on_host=not same)
        self._embedding = embedder.bind(
            {
                "z": z,
                "timestep": np.zeros(1, np.float32),
                "noise_scale": np.array([scale], np.float32),
            },
            {"inputs_embeds": self._embeds},
        )
        self._shared = same
        self._batches: dict[tuple[str, ...], list[_Batch]] = {}
        self._latest: dict[str, Any] = {}

    def __call__(self, z: Any, t: np.float32, step: int, names: tuple[str, ...]) -> dict[str, Any]:
        """x0 [1, 3, H, W], float32, of the branches named: arrays, or OrtValues off the host."""
        self._embedding.feed("z", z)
        self._embedding.feed("timestep", np.array([t], np.float32))
        self._embedding.run()
        if names not in self._batches:
            self._batches[names] = [_Batch(self, group) for group in self._grouped(names)]
        for batch in self._batches[names]:
            self._latest |= batch.run()
        return {name: self._latest[name] for name in names}

    def latest(self, name: str) -> np.ndarray:
        """x0 [1, 3, H, W] of a branch in the last step that ran it, on the host."""
        x0 = self._latest[name]
        return x0 if isinstance(x0, np.ndarray) else to_numpy(x0)

    def _grouped(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The branches that can run together; each alone where pictures do not lie on the host."""
        groups: dict[Any, tuple[str, ...]] = {}
        for name in names:
            prefix = self._branches[name]
            key: Any = (prefix.ids.shape[1], prefix.next_t) if self._denoiser.on_host else name
            groups[key] = (*groups.get(key, ()), name)
        return list(groups.values())


class _Batch:
    """Branches that run together, bound to their places."""

    def __init__(self, whole: Denoising, names: tuple[str, ...]) -> None:
        d, first = whole._denoiser, whole._branches[names[0]]
        count = len(names)
        self._embeds = whole._embeds
        self._own: np.ndarray | None = None
        read: Any = self._embeds.value
        if self._embeds.array is not None and (count > 1 or not whole._shared):
            embeds = d.cast("inputs_embeds", self._embeds.array)
            self._own = read = np.repeat(embeds, count, axis=0)
        caches = [whole._branches[n].arrays() for n in names]
        x0 = d.room("x0", (count, *whole._shape[1:]))
        self._bound = d.bind(
            {
                "inputs_embeds": read,
                "position_ids": place.image_positions(first.next_t, *whole._grid),
                "token_grid": np.array(whole._grid, np.int64),
                **{k: _stacked([d.cast(k, cache[k]) for cache in caches]) for k in first.cache},
            },
            {"x0": x0},
        )
        self._x0 = {
            n: x0.value if x0.array is None else x0.array[i : i + 1] for i, n in enumerate(names)
        }

    def run(self) -> dict[str, Any]:
        """x0 by branch."""
        if self._own is not None:
            self._own[:] = self._embeds.array
            self._bound.feed("inputs_embeds", self._own)
        self._bound.run()
        return self._x0


def _stacked(values: list[np.ndarray]) -> np.ndarray:
    """Arrays [1, ...] as one [n, ...]; a single one is not copied."""
    return values[0] if len(values) == 1 else np.concatenate(values)
