"""What a package of neo_chat must look like, mostly as data: ports, tokens, element types.

Source: docs/neo-chat.md, "Components"; the graphs themselves are in components.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...checkpoint.tensor import Checkpoint
    from ...package.bindings import Rename

Port = tuple[str, tuple[str | int | None, ...]]
"""(element type, dimensions): `float` is the component's compute type; a string is a symbolic
dimension, None any fixed number."""

HIDDEN = None

PORTS: dict[str, dict[str, dict[str, Port]]] = {
    "vision_encoder": {
        "inputs": {
            "pixel_values": ("float32", ("patches", None)),
            "grid_hw": ("int64", ("images", 2)),
        },
        "outputs": {"image_features": ("float", ("image_tokens", HIDDEN))},
    },
    "embedding": {
        "inputs": {
            "input_ids": ("int64", ("batch", "sequence")),
            "image_features": ("float", ("image_tokens", HIDDEN)),
        },
        "outputs": {"inputs_embeds": ("float", ("batch", "sequence", HIDDEN))},
    },
    "decoder": {
        "inputs": {
            "inputs_embeds": ("float", ("batch", "sequence", HIDDEN)),
            "position_ids": ("int64", (3, "sequence")),
            "logits_to_keep": ("int64", (1,)),
        },
        "outputs": {"logits": ("float32", ("batch", "kept", None))},
    },
    "image_gen_embedding": {
        "inputs": {
            "z": ("float32", ("batch", 3, "height", "width")),
            "timestep": ("float32", (1,)),
            "noise_scale": ("float32", (1,)),
        },
        "outputs": {"inputs_embeds": ("float", ("batch", "picture_tokens", HIDDEN))},
    },
    "image_gen_denoiser": {
        "inputs": {
            "inputs_embeds": ("float", ("batch", "picture_tokens", HIDDEN)),
            "position_ids": ("int64", (3, "picture_tokens")),
            "token_grid": ("int64", (2,)),
        },
        "outputs": {"x0": ("float32", ("batch", 3, "height", "width"))},
    },
}

OPTIONAL_PORTS = ("noise_scale",)
"""Inputs that only some checkpoints have (`add_noise_scale_embedding`)."""

CACHE_PORTS = {"decoder": ("inputs", "outputs"), "image_gen_denoiser": ("inputs",)}
"""Which sides of a component carry the tensors that package.json lists under `cache`."""

OPTIONAL_COMPONENTS = ("vision_encoder",)
"""Components without which a task still works: a text-only package has no vision tower."""

DTYPES: dict[str, tuple[str, ...]] = {
    "vision_encoder": ("float32", "float16", "bfloat16"),
    "embedding": ("float32", "float16", "bfloat16"),
    "decoder": ("float32", "float16", "bfloat16"),
    "image_gen_embedding": ("float32", "bfloat16"),
    "image_gen_denoiser": ("float32", "bfloat16"),
}
"""Element types of weights and arithmetic. Activations of generation leave float16's range."""


def ports(manifest: dict[str, Any]) -> dict[str, dict[str, dict[str, Port]]]:
    """Of each component inputs and outputs, but for the state; the same in all packages."""
    return PORTS


def cache_names(entry: dict[str, Any]) -> dict[str, str]:
    """How the ports of an entry of `cache` are called; that list itself is what is used."""
    name = f"{entry['layer']}.{entry['role']}"
    return {"input": f"past.{name}", "output": f"present.{name}"}


def cache_faults(manifest: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(text, expected, actual) of entries of `cache` that are not what they have to be: what the
    schema and the ports do not say, nobody asks of this family."""
    return iter(())


def token_guards(manifest: dict[str, Any]) -> dict[str, tuple[str, str, int | None]]:
    """Token ids that are written into a graph: component -> (input that is compared, token, its
    id)."""
    token = "<IMG_CONTEXT>"
    if token not in manifest["special_tokens"]:
        return {}
    return {"embedding": ("input_ids", token, manifest["special_tokens"][token])}


def source(checkpoint: Checkpoint, manifest: dict[str, Any]) -> tuple[Checkpoint, Rename]:
    """The checkpoint as a package takes it, and which of its tensors a parameter's bytes come from.

    Raises:
        InputError, Unsupported: the checkpoint is not one of this family.
    """
    from .export import NeoChat

    return checkpoint, NeoChat(checkpoint).rename
