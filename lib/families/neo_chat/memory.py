"""How much memory a run needs, from sizes alone, and whether it is there.

S tokens of a prompt, L tokens of a picture, H query heads, KV key heads of hd, D hidden size.
The estimates count what is large: weights, attention scores, rows of the widest layer, the cache.
Measured on the demonstration checkpoint on CPU they are 0.8 to 1.1 times the real growth of a
process for pictures of 512x512 to 2048x2048, and 1.2 to 1.7 times for prompts of 1,000 to 6,000
tokens.
"""

from __future__ import annotations

from typing import Any

from ...runtime.memory import F32, ITEM, Phase
from ...runtime.sessions import Sessions


class Sizes:
    """Sizes of a package that the estimates need."""

    def __init__(self, sessions: Sessions) -> None:
        package = sessions.package
        self._package, self._sessions = package, sessions
        s: dict[str, Any] = package.manifest["sizes"]
        self.D, self.H, self.KV, self.hd = s["D"], s["H"], s["KV"], s["hd"]
        self.Nl, self.I, self.V = s["Nl"], s["I"], package.manifest["vocab_size"]
        self.vh, self.head_width = s["vh"], s["head_width"]
        self.F: int = package.manifest["workflow"]["positions"]["token_pixels"]

    def weights(self, component: str) -> int:
        """Bytes of a loaded component, see `Sessions.nbytes`."""
        return self._sessions.nbytes(component)

    def cache(self, tokens: int) -> int:
        """Bytes of keys and values of one branch."""
        dtype = (
            self._package.manifest["cache"][0]["dtype"] if self._package.manifest["cache"] else ""
        )
        return 2 * self.Nl * self.KV * self.hd * tokens * ITEM.get(dtype, F32)

    def layer(self, rows: int, columns: int, *, mask: bool) -> int:
        """Bytes of a backbone layer's largest moment: the scores and their softmax, or the rows of
        the MLP; a mask once more."""
        scores = 2 * self.H * rows * columns * F32 + (2 * rows * columns * F32 if mask else 0)
        return max(scores, 3 * rows * self.I * F32) + 6 * rows * self.D * F32

    def prefill(self, tokens: int, kept: int, picture_tokens: int) -> Phase:
        """A prompt of S tokens, of which `picture_tokens` are pictures'."""
        patches = 4 * picture_tokens
        names = ["embedding", "decoder"] + (["vision_encoder"] if picture_tokens else [])
        return Phase(
            "prefill",
            {n: self.weights(n) for n in names},
            {
                "decoder": self.layer(tokens, tokens, mask=True) + kept * self.V * F32,
                "vision_encoder": 4 * patches * self.vh * F32 if picture_tokens else 0,
            },
            2 * self.cache(tokens),
            patches * 768 * F32 * 2,
        )

    def sampling(self, width: int, height: int, tokens: list[int]) -> Phase:
        """A picture over the prefixes of its branches (their token counts)."""
        L = (width // self.F) * (height // self.F)
        picture = 3 * width * height * F32
        head = 9 * self.D * L * F32 * 2 + self.head_width * 4 * L * F32
        longest = max(tokens, default=0)
        names = ("image_gen_embedding", "image_gen_denoiser")
        return Phase(
            "sampling",
            {n: self.weights(n) for n in names},
            {
                "image_gen_embedding": 2 * picture + 16 * L * self.vh * F32,
                "image_gen_denoiser": max(self.layer(L, longest + L, mask=False), head)
                + self.cache(longest + L) // max(self.Nl, 1),
            },
            sum(self.cache(t) for t in tokens),
            (5 + len(tokens)) * picture,
        )


def rows(phases: list[Phase]) -> list[dict[str, Any]]:
    """Fields of the `memory` records of --plan, one a component and phase; bytes."""
    found = []
    for phase in phases:
        for name in phase.weights:
            found.append(
                {
                    "phase": phase.name,
                    "component": name,
                    "weights": phase.weights[name],
                    "activations": phase.activations.get(name, 0),
                }
            )
        for name, nbytes in (("cache", phase.cache), ("host arrays", phase.other)):
            found.append(
                {"phase": phase.name, "component": name, "weights": 0, "activations": nbytes}
            )
    return found
