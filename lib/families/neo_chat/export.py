"""What the exporter needs to know of neo_chat: graphs, special tokens, cache and workflow as
data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...checkpoint.tensor import Checkpoint, Problem, Tensor
from ...errors import InputError, Unsupported
from ...graph.builder import Graph, WeightSource
from ...package import schema
from ...package.bindings import Binding
from ...package.layout import SHARD_NBYTES
from ...package.model import Wishes, refuse_wishes, usual_dtype
from . import COMPONENTS, GENERATION_COMPONENTS, NAME
from .components import BUILDERS
from .config import NeoChatConfig, read_config
from .processor import processor_json
from .tasks import TASKS
from .weights import head_width, refuse_layered, renamed

SPECIAL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
    "<think>",
    "</think>",
)
"""Tokens that prompts and loops name. Ids are looked up by string, never assumed."""

SAMPLER: dict[str, Any] = {
    "steps": 50,
    "cfg": 4.0,
    "img_cfg": 1.0,
    "cfg_norm": "none",
    "cfg_interval": [0.0, 1.0],
    "shift": 3.0,
    "t_eps": 0.02,
    "seed": 42,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "chat": {"max_new_tokens": 1024},
    "text-to-image": {"width": 2048, "height": 2048, **SAMPLER},
    "image-edit": {"target_pixels": 2048 * 2048, **SAMPLER},
    "interleave": {"width": 2048, "height": 1152, **SAMPLER, "max_new_tokens": 8192},
}
"""Defaults of the published command line (docs/neo-chat.md 5.13). An edit has the shape of its
first picture, at `target_pixels`."""


def open_model(checkpoint: Checkpoint, wishes: Wishes) -> NeoChat:
    """The model of a checkpoint. Its components are exported together and as they are.

    Raises:
        UsageProblem: a wish that the family does not know.
        InputError, SourceNotFound, Unsupported: what `NeoChat` raises.
    """
    refuse_wishes(wishes, NAME)
    checkpoint.refuse_if_broken()
    return NeoChat(checkpoint, wishes.provider)


class NeoChat:
    """One checkpoint of the family, checked as far as its headers go."""

    components = COMPONENTS
    special_tokens = SPECIAL_TOKENS
    quantization: dict[str, Any] | None = None
    shard_nbytes = SHARD_NBYTES
    most_shard_nbytes: int | None = None

    def __init__(self, checkpoint: Checkpoint, provider: str = "default") -> None:
        where = f"{checkpoint.source}: config.json"
        if not checkpoint.config:
            raise InputError(f"{where}: missing or empty")
        self.checkpoint = checkpoint
        self.config: NeoChatConfig = read_config(checkpoint.config, where)
        processor_json(checkpoint.config, where)  # refused here, before anything is written
        refuse_layered(checkpoint, self.config)
        self._head_width = head_width(checkpoint, self.config)
        self.rename = partial(renamed, self.config)
        self.vocab_size = self.config.llm.V
        self._provider = provider

    def refuse(self, component: str, dtype: str, *, force_f16: bool) -> None:
        """Generation in float16 only where somebody insists.

        Raises:
            Unsupported: otherwise.
        """
        if self.forced(component, dtype) and not force_f16:
            raise Unsupported(
                f"{component} in f16: its activations leave the range of float16, and end as NaN",
                expected="f32 or bf16",
                hint=f"--set {component}=f32; --force-f16 for experiments",
            )

    def auto(self, component: str) -> str:
        """float32; on CUDA the type of most of the parameters, but for generation."""
        if component in GENERATION_COMPONENTS:
            return "f32"
        return usual_dtype(self.checkpoint, self._provider)

    def forced(self, component: str, dtype: str) -> bool:
        """Whether a type is one that only experiments are in."""
        return dtype == "f16" and component in GENERATION_COMPONENTS

    def before_writing(self, bindings: Sequence[Binding]) -> list[Problem]:
        """Nothing: headers say everything."""
        return []

    def left(self, tensor: Tensor) -> tuple[str, str] | None:
        """None: every tensor of the family belongs to a component."""
        return None

    def processor(self) -> dict[str, Any]:
        """Content of processor.json."""
        return processor_json(self.checkpoint.config)

    def unsupported_token_ids(self, component: str) -> list[int]:
        """None are."""
        return []

    def metadata(self, component: str, dtype: str) -> dict[str, str]:
        """Nothing of the family's own."""
        return {}

    def report(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Nothing of the family's own."""
        return {}

    def build(
        self, component: str, weights: WeightSource, dtype: int, tokens: dict[str, int]
    ) -> Graph:
        """The graph of one component, its parameters claimed from `weights`."""
        context = tokens["<IMG_CONTEXT>"]
        return BUILDERS[component](self.config, weights, dtype, context, self._head_width)

    def variant(self) -> dict[str, str]:
        """Which member of the family this is."""
        return {
            "backbone": "moe" if self.config.llm.moe else "dense",
            "head": "conv" if self.config.pixel_head else "mlp",
        }

    def defaults(self) -> dict[str, Any]:
        """Sampler defaults by task: the published ones, overridden by `image_generation` of
        generation_config.json, an object of the same form."""
        merged = {task: dict(values) for task, values in DEFAULTS.items()}
        where = f"{self.checkpoint.source}: generation_config.json: image_generation"
        own = self.checkpoint.generation_config.get("image_generation", {})
        if not isinstance(own, dict) or not set(own) <= set(merged):
            raise InputError(where, expected=f"an object of {', '.join(merged)}")
        for task, values in own.items():
            if not isinstance(values, dict) or not set(values) <= set(merged[task]):
                raise InputError(f"{where}: {task}", expected=f"some of {', '.join(merged[task])}")
            schema.require(values, f"{where}: {task}", "sampler_values")
            merged[task].update(values)
        for place, found, expected in schema.sampler_faults(merged, self.config.F):
            raise InputError(f"{where}: {place}", found=found, expected=expected)
        return merged

    def sizes(self) -> dict[str, int]:
        """Sizes from which a runtime can plan its memory (symbols of docs/neo-chat.md)."""
        c = self.config
        return {
            "D": c.llm.D,
            "H": c.llm.H,
            "KV": c.llm.KV,
            "hd": c.llm.hd,
            "Nl": c.llm.Nl,
            "I": max([c.llm.I, *(e.I * e.k for e in c.llm.experts.values())]),
            "vh": c.vh,
            "head_width": self._head_width,
        }

    def noise(self) -> dict[str, Any]:
        """Fields of the noise-scale rule (docs/neo-chat.md, "Noise scale")."""
        c = self.config
        return {
            "scale": c.noise_scale,
            "mode": c.noise_scale_mode,
            "base_tokens": c.noise_scale_base_image_seq_len,
            "max": c.noise_scale_max_value,
            "embedded": c.add_noise_scale_embedding,
        }

    def cache(self, dtype: str) -> list[dict[str, Any]]:
        """Every tensor of the decoder's state, one entry each."""
        c = self.config.llm
        return [
            {
                "layer": i,
                "role": role,
                "kind": "kv",
                "input": f"past.{i}.{role}",
                "output": f"present.{i}.{role}",
                "dtype": dtype,
                "shape": ["batch", c.KV, "past_sequence", c.hd],
                "grows": 2,
            }
            for i in range(c.Nl)
            for role in ("key", "value")
        ]

    def workflow(self) -> dict[str, Any]:
        """How the components are composed, as data: edges, positions, tasks, loop and guidance."""
        layers = range(self.config.llm.Nl)
        grown = {"total_sequence": "past_sequence"}
        edges: list[dict[str, Any]] = [
            {"from": "vision_encoder.image_features", "to": "embedding.image_features"},
            {"from": "embedding.inputs_embeds", "to": "decoder.inputs_embeds"},
            {"from": "image_gen_embedding.inputs_embeds", "to": "image_gen_denoiser.inputs_embeds"},
        ]
        for target in ("decoder", "image_gen_denoiser"):
            edges += [
                {
                    "from": f"decoder.present.{i}.{role}",
                    "to": f"{target}.past.{i}.{role}",
                    "dims": grown,
                }
                for i in layers
                for role in ("key", "value")
            ]
        return {
            "edges": edges,
            "positions": {
                "rule": "time-height-width",
                "context_token": "<IMG_CONTEXT>",
                "image_start_token": "<img>",
                "token_pixels": self.config.F,
            },
            "noise_scale": self.noise(),
            "tasks": TASKS,
        }
