"""What the exporter asks a family: a checkpoint of it, as components, state and workflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from ..checkpoint.tensor import Checkpoint, Problem, Tensor
from ..errors import UsageProblem
from ..graph.builder import Graph, WeightSource
from .bindings import Binding, Rename

READINGS = ("exact", "bf16")
"""How BF16 scales of FP8 codes are read, see graph/fp8.py."""
STORED = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
"""safetensors name of a type -> how options spell it."""


@dataclass(frozen=True)
class Wishes:
    """What the user wants of an export as a whole.

    Attributes:
        text_only: of a model of text and pictures the text model alone.
        dequantize: FP8 weights as dense ones.
        reading: of BF16 scales, one of READINGS.
        provider: that the package is meant for.
    """

    text_only: bool = False
    dequantize: bool = False
    reading: str = "exact"
    provider: str = "default"


class Model(Protocol):
    """One checkpoint of a family, judged as far as its headers go when it is made.

    Attributes:
        checkpoint: whose tensors components are bound to: the one that was given, or a view of it
            in which quantised tensors are dense.
        rename: where the bytes of a parameter come from.
        components: names of those it has, in the order in which they run.
        special_tokens: tokens that prompts and loops name; their ids are looked up.
        vocab_size: words that ids are of.
        quantization: what package.json says of weights that stay quantised, else None.
        shard_nbytes: largest data file unless the user says otherwise.
        most_shard_nbytes: largest that the user may ask for; None: any.
    """

    checkpoint: Checkpoint
    rename: Rename
    components: tuple[str, ...]
    special_tokens: tuple[str, ...]
    vocab_size: int
    quantization: dict[str, Any] | None
    shard_nbytes: int
    most_shard_nbytes: int | None

    def refuse(self, component: str, dtype: str, *, force_f16: bool) -> None:
        """Raise Unsupported where a component may not be exported as a type."""

    def auto(self, component: str) -> str:
        """The type that a component has when the user does not say."""

    def forced(self, component: str, dtype: str) -> bool:
        """Whether a type is allowed by `force_f16` alone."""

    def build(
        self, component: str, weights: WeightSource, dtype: int, tokens: dict[str, int]
    ) -> Graph:
        """The graph of one component, its parameters claimed from `weights`."""

    def before_writing(self, bindings: Sequence[Binding]) -> list[Problem]:
        """Look at what only payloads tell: what is odd is returned, what contradicts the config
        raised."""

    def left(self, tensor: Tensor) -> tuple[str, str] | None:
        """(action, reason) of a tensor that no parameter is made of; None: it is not understood."""

    def variant(self) -> dict[str, str]:
        """Which member of the family this is."""

    def defaults(self) -> dict[str, Any]:
        """Defaults of a run by task; raises for those of the checkpoint that make no sense."""

    def sizes(self) -> dict[str, Any]:
        """Sizes from which a runtime can plan its memory."""

    def cache(self, dtype: str) -> list[dict[str, Any]]:
        """Every tensor of the decoder's state, one entry each."""

    def workflow(self) -> dict[str, Any]:
        """How the components are composed, as data."""

    def processor(self) -> dict[str, Any] | None:
        """Content of processor.json; None where there are no pictures."""

    def unsupported_token_ids(self, component: str) -> list[int]:
        """Tokens that a component's graph refuses."""

    def metadata(self, component: str, dtype: str) -> dict[str, str]:
        """Properties of a component's graph beside those that all families have."""

    def report(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Fields of the loading report beside or instead of those that all families have."""


def open_model(family: ModuleType, checkpoint: Checkpoint, wishes: Wishes) -> Model:
    """The model of a checkpoint, judged by its family.

    Raises:
        InputError, SourceNotFound, Unsupported: what its headers and config say.
    """
    made: Model = import_module(f"{family.__name__}.export").open_model(checkpoint, wishes)
    return made


def refuse_wishes(wishes: Wishes, family: str) -> None:
    """Refuse what only families with parts to leave out, or with FP8 weights, know.

    Raises:
        UsageProblem: names the option.
    """
    for given, option in (
        (wishes.text_only, "--text-only"),
        (wishes.dequantize, "--dequantize"),
        (wishes.reading != READINGS[0], f"--scale-reading {wishes.reading}"),
    ):
        if given:
            raise UsageProblem(f"{option}: not for models of family {family}")


def usual_dtype(checkpoint: Checkpoint, provider: str) -> str:
    """float32; on CUDA the type of most of the checkpoint's parameters that have a usual one."""
    counts: dict[str, int] = {}
    for t in checkpoint.tensors.values() if provider == "cuda" else ():
        if t.dtype in STORED:
            counts[t.dtype] = counts.get(t.dtype, 0) + t.params
    return STORED[max(counts, key=lambda d: counts[d])] if counts else "f32"
