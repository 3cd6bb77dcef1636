"""State, workflow and sizes of a qwen4_exp package, as data.

What the state is, decoder.py says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...checkpoint.onnx_types import type_name
from .config import Qwen4ExpConfig, Text
from .decoder import State, states

CHANNELS = 4
"""Of a position: place in the text, then time, height and width."""


def _described(s: State, dtype: str) -> dict[str, Any]:
    """Type, shape and first value of a tensor of the state.

    Args:
        dtype: of the decoder.
    """
    return {
        "dtype": dtype if s.dtype is None else type_name(s.dtype),
        "shape": list(s.shape),
        "grows": s.grows,
        "initial": s.initial,
    }


def cache(c: Text, dtype: str) -> list[dict[str, Any]]:
    """Entries of `cache`: the position history, and the state of every layer."""
    return [
        {
            "layer": s.layer,
            "role": s.role,
            "kind": s.kind,
            "input": s.input,
            "output": s.output,
            **_described(s, dtype),
        }
        for s in states(c)
    ]


def state(c: Text, dtype: str) -> dict[str, Any]:
    """For each role the layers that have it, with type and shape; what starts a context.

    A graph carries it, so that it explains its state without package.json.
    """
    roles: dict[str, dict[str, Any]] = {}
    for s in states(c):
        found = roles.setdefault(s.role, {"layers": [], **_described(s, dtype)})
        if s.layer is not None:
            found["layers"].append(s.layer)
    made: dict[str, Any] = {
        "inputs": "past_key_values.{layer}.{role}",
        "outputs": "present.{layer}.{role}",
        "without_layer": {"input": "past_{role}", "output": "present_{role}"},
        "roles": roles,
        "eos_token_ids": list(c.eos),
    }
    if c.ple:
        made["ple"] = {
            "layers": list(c.ple),
            "ngram_size": c.n,
            "context": c.n - 1,
            "initial_context": c.eos[0],
            "conv_kernel": c.kp,
            "conv_dilation": c.n,
        }
    return made


def workflow(c: Qwen4ExpConfig, stop: Sequence[int]) -> dict[str, Any]:
    """Edges, where a run's inputs go, positions and tasks.

    Args:
        stop: ids that end a text.
    """
    pictures = c.vision is not None
    edges: list[dict[str, Any]] = []
    if pictures:
        edges += [
            {"from": "vision_encoder.image_features", "to": "embedding.image_features"},
            {"from": "embedding.inputs_embeds", "to": "decoder.inputs_embeds"},
        ]
    for entry in cache(c.text, "float32"):
        edge: dict[str, Any] = {
            "from": f"decoder.{entry['output']}",
            "to": f"decoder.{entry['input']}",
        }
        if entry["grows"] is not None:
            edge["dims"] = {"total_sequence": "past_sequence"}
        edges.append(edge)
    ids = ["embedding.input_ids", "decoder.ple_input_ids"] if pictures else ["decoder.input_ids"]
    each_token = ["embedding", "decoder"] if pictures else ["decoder"]
    return {
        "edges": edges,
        "inputs": {
            "token_ids": ids,
            "attention_mask": ["decoder.attention_mask"],
            "position_ids": ["decoder.position_ids"],
        },
        "positions": {
            "rule": "mrope",
            "channels": CHANNELS,
            "image_token_id": c.image_token_id,
            "vision_start_token_id": c.vision_start_token_id,
            "vision_end_token_id": c.vision_end_token_id,
            "merge_size": 2,
            "video": False,
        },
        "tasks": {
            "chat": {
                "prefixes": {"cond": "chat"},
                "once": [*(["vision_encoder"] if pictures else []), *each_token],
                "decode": {"each_token": each_token, "stop_token_ids": list(stop)},
            }
        },
    }


def sizes(c: Qwen4ExpConfig) -> dict[str, int]:
    """Sizes from which a runtime can plan its memory."""
    t = c.text
    names = ("H", "L", "nh", "nkv", "D", "gk", "gv", "dk", "dv", "K", "E", "k", "I", "Is", "N")
    made = {name: getattr(t, name) for name in names}
    made |= {"budget": t.budget, "R": t.R}
    made["qsa_layers"] = sum(not linear for linear in t.linear)
    made["index_width"] = t.Dx
    if c.vision is not None:
        v = c.vision
        made |= {"vision_depth": v.depth, "C": v.C, "F": v.F, "vision_heads": v.heads}
    return made
