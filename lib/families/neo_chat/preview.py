"""What a picture would be if the sampler stopped now, written while it samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...sampling.image import to_uint8, write_png


@dataclass(frozen=True)
class Preview:
    """A PNG that is replaced as a whole, so that whoever looks sees a picture.

    Attributes:
        path: its file, one for all pictures of a run.
        every: steps between two.
    """

    path: Path
    every: int

    def show(self, step: int, steps: int, x0: np.ndarray) -> None:
        """Write the clean picture that branch `cond` predicts, if it is this step's turn.

        Args:
            step: 0-based; of `steps`, whose last is always shown.
            x0: float32 [1, 3, H, W].
        Raises:
            EnvironmentProblem: the file cannot be written.
        """
        if (step + 1) % self.every == 0 or step + 1 == steps:
            write_png(self.path, to_uint8(x0))
