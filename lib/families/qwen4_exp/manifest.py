"""State, workflow and sizes of a qwen4_exp package, as data. Standard library only.

Shapes are those of docs/qwen4-exp.md, "Decoder package"; symbols those of config.py.
"""

from __future__ import annotations

from typing import Any

from .config import Qwen4ExpConfig, Text

PAST, PRESENT = "past_key_values.{layer}.{role}", "present.{layer}.{role}"
PAST_POSITIONS, PRESENT_POSITIONS = "past_position_ids", "present_position_ids"
CHANNELS = 4
"""Of a position: place in the text, then time, height and width."""


def layer_state(c: Text, layer: int, dtype: str) -> list[dict[str, Any]]:
    """State of one layer: {role, kind, dtype, shape, grows, initial}.

    Args:
        dtype: of the decoder; the recurrent state is float32 whatever it is.
    """

    def entry(
        role: str, kind: str, dtype: str, *shape: int | str, grows: int | None = None
    ) -> dict[str, Any]:
        whole = ["batch", *shape]
        made = {"role": role, "kind": kind, "dtype": dtype, "shape": whole}
        return {**made, "grows": grows, "initial": 0}

    if not c.linear[layer]:
        heads = (c.nkv, "past_sequence", c.D)
        return [
            entry("key", "kv", dtype, *heads, grows=2),
            entry("value", "kv", dtype, *heads, grows=2),
            entry("index_key", "index", dtype, "past_sequence", c.Dx, grows=1),
        ]
    made = [
        entry("conv_state", "conv", dtype, c.Tc, c.K),
        entry("recurrent_state", "recurrent", "float32", c.gv, c.dk, c.dv),
    ]
    if layer in c.ple:
        made.append(entry("ple_conv_state", "conv", dtype, c.N * c.H, (c.kp - 1) * c.n))
        context = entry("ple_context", "context", "int64", c.n - 1)
        made.append({**context, "initial": c.eos[0]})
    return made


def cache(c: Text, dtype: str) -> list[dict[str, Any]]:
    """Entries of `cache`: the state of every layer, then the positions of all tokens so far."""
    entries = []
    for layer in range(c.L):
        for state in layer_state(c, layer, dtype):
            names = {"layer": layer, "role": state["role"]}
            entries.append(
                {
                    "layer": layer,
                    "role": state["role"],
                    "kind": state["kind"],
                    "input": PAST.format(**names),
                    "output": PRESENT.format(**names),
                    **{k: state[k] for k in ("dtype", "shape", "grows", "initial")},
                }
            )
    positions = {
        "layer": None,
        "role": "position_ids",
        "kind": "positions",
        "input": PAST_POSITIONS,
        "output": PRESENT_POSITIONS,
        "dtype": "int64",
        "shape": [CHANNELS, "batch", "past_sequence"],
        "grows": 2,
        "initial": 0,
    }
    return [*entries, positions]


def state(c: Text, dtype: str) -> dict[str, Any]:
    """For each role the layers that have it, with type and shape; what starts a context.

    A graph carries it, so that it explains its state without package.json.
    """
    roles: dict[str, dict[str, Any]] = {}
    for layer in range(c.L):
        for found in layer_state(c, layer, dtype):
            role = found.pop("role")
            roles.setdefault(role, {"layers": [], **found})["layers"].append(layer)
    made: dict[str, Any] = {
        "inputs": PAST,
        "outputs": PRESENT,
        "roles": roles,
        "positions": {
            "input": PAST_POSITIONS,
            "output": PRESENT_POSITIONS,
            "dtype": "int64",
            "shape": [CHANNELS, "batch", "past_sequence"],
        },
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


def workflow(c: Qwen4ExpConfig) -> dict[str, Any]:
    """Edges, where a run's inputs go, positions and tasks."""
    pictures = c.vision is not None
    edges: list[dict[str, Any]] = []
    if pictures:
        edges += [
            {"from": "vision_encoder.image_features", "to": "embedding.image_features"},
            {"from": "embedding.inputs_embeds", "to": "decoder.inputs_embeds"},
        ]
    for entry in cache(c.text, "float32"):
        edge = {"from": f"decoder.{entry['output']}", "to": f"decoder.{entry['input']}"}
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
                "decode": {"each_token": each_token, "stop_token_ids": list(c.text.eos)},
            }
        },
    }


def sizes(c: Qwen4ExpConfig) -> dict[str, int]:
    """Sizes from which a runtime can plan its memory."""
    t = c.text
    names = ("H", "L", "nh", "nkv", "D", "gk", "gv", "dk", "dv", "K", "E", "k", "I", "Is", "N")
    made = {name: getattr(t, name) for name in names}
    made["qsa_layers"] = sum(not linear for linear in t.linear)
    made["index_width"] = t.Dx
    if c.vision is not None:
        v = c.vision
        made |= {"vision_depth": v.depth, "C": v.C, "F": v.F, "vision_heads": v.heads}
    return made
