"""How much memory a prefill and its decode steps take, from sizes alone.

B rows of S tokens, nh query heads, V words. Counted is what is large: weights, attention scores,
logits of every position, the state, patch rows of pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...runtime.memory import F32, ITEM, Phase
from ...runtime.sessions import Sessions

PATCH_VALUES = 1536
SCORES = 3
"""Arrays of scores that are there at once: products, mask, softmax."""
WIDE = 8
"""Arrays of a width that are there at once: the streams, what a layer makes of them."""


class Sizes:
    """Sizes of a package that the estimates need."""

    def __init__(self, sessions: Sessions) -> None:
        package = sessions.package
        self._package, self._sessions = package, sessions
        s: dict[str, Any] = package.manifest.get("sizes", {})
        self.width, self.nh = s.get("N", 1) * s.get("H", 0), s.get("nh", 0)
        self.C, self.vision_heads = s.get("C", 0), s.get("vision_heads", 0)
        self.V: int = package.manifest["vocab_size"]

    def state(self, rows: int, tokens: int) -> int:
        """Bytes of the state of a batch."""
        total = 0
        for entry in self._package.manifest["cache"]:
            count = ITEM.get(entry["dtype"], F32)
            for axis, d in enumerate(entry["shape"]):
                grows = axis == entry.get("grows")
                count *= tokens if grows else rows if isinstance(d, str) else d
            total += count
        return total

    def prefill(self, names: Sequence[str], rows: int, tokens: int, grids: Sequence[int]) -> Phase:
        """A prompt, and the step after it, which holds the state twice.

        Args:
            names: components that run.
            grids: patches of each picture.
        """
        scores = SCORES * rows * self.nh * tokens * tokens * F32
        logits = rows * tokens * self.V * F32
        widest = max(grids, default=0)
        patches = sum(grids)
        seen = SCORES * self.vision_heads * widest * widest * F32 + WIDE * patches * self.C * F32
        return Phase(
            "prefill",
            {n: self._sessions.nbytes(n) for n in names},
            {
                "decoder": max(scores, logits) + WIDE * rows * tokens * self.width * F32,
                "vision_encoder": seen,
            },
            2 * self.state(rows, tokens),
            2 * patches * PATCH_VALUES * F32,
        )
