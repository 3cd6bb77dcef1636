"""What a picture would be if the sampler stopped now, written while it samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...sampling.image import to_uint8, write_png


@dataclass
class Preview:
    """A PNG that is replaced as a whole, so that whoever looks sees a picture.

    Attributes:
        path: its file, one for all pictures of a run.
        every: steps between two.
        seen: False once the reader of a pipe has gone; then no more are written.
    """

    path: Path
    every: int
    seen: bool = True

    def show(self, step: int, steps: int, x0: np.ndarray) -> None:
        """Write the clean picture that branch `cond` predicts, if it is this step's turn.

        Args:
            step: 0-based; of `steps`, whose last is always shown.
            x0: float32 [1, 3, H, W].
        Raises:
            EnvironmentProblem: the file cannot be written.
        """
        if not self.seen or ((step + 1) % self.every and step + 1 != steps):
            return
        try:
            write_png(self.path, to_uint8(x0))
        except BrokenPipeError:  # a viewer that is closed costs no picture
            self.seen = False
