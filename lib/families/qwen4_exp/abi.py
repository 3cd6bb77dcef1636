"""What a package of qwen4_exp must look like, mostly as data: ports, state, tokens, element types.

Source: docs/qwen4-exp.md, "Package"; the graphs themselves are in decoder.py, vision.py and
embedding.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ...checkpoint.tensor import Checkpoint
    from ...package.bindings import Rename

Port = tuple[str, tuple[str | int | None, ...]]
"""(element type, dimensions): `float` is the component's compute type; a string is a symbolic
dimension, None any fixed number."""

_IDS: Port = ("int64", ("batch", "sequence"))
_EMBEDS: Port = ("float", ("batch", "sequence", None))
_FEATURES: Port = ("float", ("image_tokens", None))
_TEXT: dict[str, Port] = {"input_ids": _IDS}
_PICTURES: dict[str, Port] = {"inputs_embeds": _EMBEDS, "ple_input_ids": _IDS}
OPTIONAL_PORTS: tuple[str, ...] = ()
CACHE_PORTS = {"decoder": ("inputs", "outputs")}
"""Which sides of a component carry the tensors that package.json lists under `cache`."""
OPTIONAL_COMPONENTS = ("vision_encoder",)
"""Components without which a task still works: a prompt of text needs no vision tower."""
FLOATS = ("float32", "float16", "bfloat16")
DTYPES: dict[str, tuple[str, ...]] = {
    "vision_encoder": FLOATS,
    "embedding": FLOATS,
    "decoder": (*FLOATS, "float8e4m3fn"),
}
"""Element types of weights and arithmetic."""


def ports(manifest: dict[str, Any]) -> dict[str, dict[str, dict[str, Port]]]:
    """Of each component inputs and outputs, but for the state. The decoder has two forms."""
    pictures = manifest["variant"].get("input") != "text"
    found: dict[str, dict[str, dict[str, Port]]] = {
        "decoder": {
            "inputs": {
                **(_PICTURES if pictures else _TEXT),
                "attention_mask": ("int64", ("batch", "total_sequence")),
                "position_ids": ("int64", (4, "batch", "sequence")),
            },
            "outputs": {"logits": ("float", ("batch", "sequence", None))},
        }
    }
    if pictures:
        found["vision_encoder"] = {
            "inputs": {
                "pixel_values": ("float", ("patches", None)),
                "image_grid_thw": ("int64", ("images", 3)),
            },
            "outputs": {"image_features": _FEATURES},
        }
        found["embedding"] = {
            "inputs": {"input_ids": _IDS, "image_features": _FEATURES},
            "outputs": {"inputs_embeds": _EMBEDS},
        }
    return found


class Role(NamedTuple):
    """What a tensor of the state has to be: dtype None is the decoder's own; dimensions as of a
    Port, with the names of `sizes` for numbers."""

    kind: str
    dtype: str | None
    shape: tuple[str | int | None, ...]
    grows: int | None


_KV = Role("kv", None, ("batch", "nkv", "past_sequence", "D"), 2)
ROLES = {
    "position_ids": Role("positions", "int64", (4, "batch", "past_sequence"), 2),
    "conv_state": Role("conv", None, ("batch", None, "K"), None),
    "recurrent_state": Role("recurrent", "float32", ("batch", "gv", "dk", "dv"), None),
    "ple_conv_state": Role("conv", None, ("batch", None, None), None),
    "ple_context": Role("context", "int64", ("batch", None), None),
    "key": _KV,
    "value": _KV,
    "index_key": Role("index", None, ("batch", "past_sequence", "index_width"), 1),
}
_LINEAR = frozenset({"conv_state", "recurrent_state"})
_WITH_PLE = _LINEAR | {"ple_conv_state", "ple_context"}
_SPARSE = frozenset({"key", "value", "index_key"})


def cache_names(entry: dict[str, Any]) -> dict[str, str]:
    """How the ports of an entry of `cache` are called."""
    if entry["layer"] is None:
        return {"input": f"past_{entry['role']}", "output": f"present_{entry['role']}"}
    name = f"{entry['layer']}.{entry['role']}"
    return {"input": f"past_key_values.{name}", "output": f"present.{name}"}


def cache_faults(manifest: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(text, expected, actual) of each entry of `cache` that is not what its role asks for, and of
    each layer that has not the roles of one kind of attention."""
    sizes, compute = manifest["sizes"], manifest["components"]["decoder"]["compute_dtype"]
    roles: dict[int | None, set[str]] = {i: set() for i in (None, *range(sizes["L"]))}
    for e in manifest["cache"]:
        role = ROLES[e["role"]]
        where = f"cache entry of layer {e['layer']}, {e['role']}"
        roles.setdefault(e["layer"], set()).add(e["role"])
        wanted = {"kind": role.kind, "dtype": role.dtype or compute, "grows": role.grows}
        for key, value in wanted.items():
            if e[key] != value:
                yield f"{where}: {key}", value, e[key]
        shape = [d if d in ("batch", "past_sequence") else sizes.get(d, d) for d in role.shape]
        fits = len(shape) == len(e["shape"]) and all(
            isinstance(have, int) if want is None else have == want
            for want, have in zip(shape, e["shape"], strict=True)
        )
        if not fits:
            yield f"{where}: shape", ["any" if d is None else d for d in shape], e["shape"]
    for layer, found in roles.items():
        kinds = [_LINEAR, _WITH_PLE, _SPARSE] if layer is not None else [{"position_ids"}]
        if found not in kinds:
            text = "cache: roles that belong to no layer" if layer is None else ""
            expected = " or ".join(", ".join(sorted(kind)) for kind in kinds)
            yield text or f"cache: roles of layer {layer}", expected, sorted(found)


def workflow_faults(manifest: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(text, expected, actual) of what a workflow says otherwise than the family's."""
    given, there = manifest["workflow"], set(manifest["components"])
    text = manifest["variant"].get("input") == "text"
    each_token = ["decoder"] if text else ["embedding", "decoder"]
    ids = ["decoder.input_ids"] if text else ["embedding.input_ids", "decoder.ple_input_ids"]
    inputs = {
        "token_ids": ids,
        "attention_mask": ["decoder.attention_mask"],
        "position_ids": ["decoder.position_ids"],
    }
    for name, ports in inputs.items():
        wanted = [p for p in ports if p.split(".")[0] in there]
        if given["inputs"].get(name) != wanted:
            yield f"workflow.inputs.{name}", wanted, given["inputs"].get(name)
    for name in given["inputs"].keys() - inputs.keys():
        yield f"workflow.inputs.{name}", None, given["inputs"][name]
    place = given["positions"]
    fixed: dict[str, Any] = {"rule": "mrope", "channels": 4, "merge_size": 2, "video": False}
    if text:
        tokens = ("image_token_id", "vision_start_token_id", "vision_end_token_id")
        fixed |= dict.fromkeys(tokens)
    for name, value in fixed.items():
        if place.get(name) != value:
            yield f"workflow.positions.{name}", value, place.get(name)
    chat = given["tasks"].get("chat")
    if chat is None:
        if set(each_token) <= there:
            yield "workflow.tasks.chat", each_token, None
        return
    own = {
        "prefixes": {"cond": "chat"},
        "once": [*([] if text else ["vision_encoder"]), *each_token],
    }
    for name, value in own.items():
        if chat.get(name) != value:
            yield f"workflow.tasks.chat.{name}", value, chat.get(name)
    decode = chat.get("decode", {})
    if decode.get("each_token") != each_token:
        yield "workflow.tasks.chat.decode.each_token", each_token, decode.get("each_token")
    refused = {i for c in manifest["components"].values() for i in c["unsupported_token_ids"]}
    stop = decode.get("stop_token_ids") or []
    if not stop or not all(0 <= i < manifest["vocab_size"] and i not in refused for i in stop):
        words = f"ids below {manifest['vocab_size']} that no component refuses"
        yield "workflow.tasks.chat.decode.stop_token_ids", words, stop


def property_faults(
    manifest: dict[str, Any], component: str, properties: dict[str, str]
) -> Iterator[tuple[str, Any, Any]]:
    """(text, expected, actual) where package.json contradicts what a graph says of itself."""
    name = "ntool.unsupported_token_ids"
    told = _json(properties.get(name)) or []
    listed = manifest["components"][component]["unsupported_token_ids"]
    if set(listed) < set(told) or (
        listed and not told
    ):  # others are what no constant of the graph guards: flow.tokens
        yield f"unsupported_token_ids, and property {name}", told, listed
    if component != "decoder":
        return
    name = "ntool.state_manifest"
    state = _json(properties.get(name))
    if not isinstance(state, dict):
        yield f"property {name}", "a JSON object", properties.get(name)
        return
    ple = state.get("ple")
    first = {"context": ple.get("initial_context") if isinstance(ple, dict) else None}
    for e in manifest["cache"]:
        wanted = first.get(e["kind"], 0)
        if e["initial"] != wanted:
            where = f"cache entry of layer {e['layer']}, {e['role']}: initial"
            yield f"{where}, and property {name}", wanted, e["initial"]


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def token_guards(manifest: dict[str, Any]) -> dict[str, tuple[str, str, int | None]]:
    """Token ids that are written into a graph: component -> (input that is compared, what the token
    is, its id)."""
    if manifest["variant"].get("input") == "text":
        return {}
    image = manifest["workflow"]["positions"]["image_token_id"]
    return {"embedding": ("input_ids", "image_token_id", image)}


def source(checkpoint: Checkpoint, manifest: dict[str, Any]) -> tuple[Checkpoint, Rename]:
    """The checkpoint as a package takes it (FP8 weights dense, where they do not stay codes), and
    which of its tensors a parameter's bytes come from.

    Raises:
        InputError, SourceNotFound, Unsupported: the checkpoint is not one of this family, or not
            sound.
    """
    from ...fp8.settings import read_settings
    from ...package.model import Wishes
    from .export import Qwen4Exp

    fp8 = read_settings(checkpoint.config).method is not None
    model = Qwen4Exp(
        checkpoint,
        Wishes(
            text_only=manifest["variant"].get("input") == "text",
            dequantize=fp8 and "quantization" not in manifest,
        ),
    )
    return model.checkpoint, model.rename
