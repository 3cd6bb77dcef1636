"""What a run of a qwen4_exp package hands on: its state by the package's list, pictures, prefixes.

B rows, S tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .processor import MERGE

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class State:
    """One tensor of the decoder's state, from the package's cache list.

    Attributes:
        name: in prefix files: `past.LAYER.ROLE`, or `past.ROLE` of a state of no layer.
        input, output: ports of the decoder.
        shape: numbers, or names of symbolic dimensions. grows: the axis that a token makes longer.
        initial: every value before the first token.
    """

    name: str
    input: str
    output: str
    dtype: str
    shape: tuple[int | str, ...]
    grows: int | None
    initial: int

    def empty(self, rows: int) -> np.ndarray:
        """The state of a batch before its first token."""
        shape = [
            0 if axis == self.grows else rows if isinstance(d, str) else d
            for axis, d in enumerate(self.shape)
        ]
        return np.full(shape, self.initial, self.dtype)


def read_states(entries: Iterable[Mapping[str, Any]]) -> tuple[State, ...]:
    """The `cache` of a package.json."""
    found = []
    for e in entries:
        layer = e["layer"]
        name = f"past.{e['role']}" if layer is None else f"past.{layer}.{e['role']}"
        shape = tuple(e["shape"])
        initial = e.get("initial", 0)
        found.append(
            State(name, e["input"], e["output"], e["dtype"], shape, e.get("grows"), initial)
        )
    return tuple(found)


@dataclass(frozen=True)
class Pictures:
    """Pictures as the vision encoder takes them.

    Attributes:
        rows: float32 [patches, 1536], picture after picture.
        grids: (1, h, w) in patches of each.
        sizes: (width, height) in pixels of each before it was resized.
    """

    rows: np.ndarray
    grids: tuple[tuple[int, int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()


NONE = Pictures(np.zeros((0, 1536), np.float32))


@dataclass
class Prefix:
    """A batch after its prompt, or after some tokens more.

    Attributes:
        ids, mask: int64 [B, S]; 0 in the mask at left padding.
        positions: int64 [4, B, S].
        deltas: int64 [B], what channels 1 to 3 of the next positions are ahead of channel 0.
        state: arrays, or OrtValues where they stay on the device, by decoder input.
        logits: [B, kept, V] of the last tokens.
        words: metadata of the prefix file.
    """

    ids: I64
    mask: I64
    positions: I64
    deltas: I64
    state: dict[str, Any]
    logits: np.ndarray
    words: dict[str, Any] = field(default_factory=dict)


def features(grids: Iterable[tuple[int, int, int]]) -> list[int]:
    """Image tokens of each picture."""
    return [t * h * w // MERGE**2 for t, h, w in grids]
