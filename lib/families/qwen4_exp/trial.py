"""Small runs of a qwen4_exp package: inputs that fit together for every axis, and a tiny prompt.

B sequences, S new tokens, P cached ones. Which inputs belong together, the graphs cannot say: rows
of `pixel_values` are those of the grids, image tokens are as many as features, the mask covers
cached tokens and new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InputError
from ...package.package import Package
from ...package.small_run import Sizes, Watched, noise, nothing, port
from ...runtime.arrays import Arrays
from ...runtime.session import Session
from .pipeline import Pipeline
from .positions import next_positions, prompt_positions
from .state import NONE

_BASE: dict[str, dict[str, Any]] = {
    "vision_encoder": {"grids": ((1, 2, 2),)},
    "embedding": {"batch": 1, "sequence": 3, "image_tokens": 0},
    "decoder": {"batch": 1, "sequence": 3, "past_sequence": 0},
}
_VARIED: dict[str, tuple[dict[str, Any], ...]] = {
    "vision_encoder": ({"grids": ((1, 2, 4),)}, {"grids": ((2, 4, 2), (1, 2, 2))}),
    "embedding": ({"batch": 2}, {"sequence": 5}, {"image_tokens": 2}),
    "decoder": ({"batch": 2}, {"sequence": 1}, {"past_sequence": 4}),
}
MOST_PAST = 1 << 16
PICTURE = (1, 2, 4)
"""Grid of the picture of the tiny prompt: two tokens."""


def cases(manifest: dict[str, Any], component: str) -> Iterator[tuple[str, Arrays, Sizes]]:
    """Runs in which each symbolic axis of a component takes at least two values.

    The decoder runs once with more cached tokens than its sparse attention sees at a time.

    Yields:
        What is varied, the feeds, and the length of every symbolic dimension of inputs and outputs.
    """
    changes: tuple[dict[str, Any], ...] = ({}, *_VARIED[component])
    seen = manifest["sizes"].get("budget", 0)
    if component == "decoder" and 0 < seen < MOST_PAST:
        changes += ({"past_sequence": seen + 2 * manifest["sizes"].get("R", 0)},)
    for change in changes:
        label = ", ".join(f"{k} {v}" for k, v in change.items()) or "smallest"
        feeds, sizes = _MAKERS[component](manifest, {**_BASE[component], **change})
        yield label, feeds, sizes


def _vision_encoder(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    grids = c["grids"]
    patches = sum(t * h * w for t, h, w in grids)
    declared = port(manifest, "vision_encoder", "pixel_values")
    pixels = noise(patches, declared["shape"][1], dtype=declared["dtype"])
    feeds = {"pixel_values": pixels, "image_grid_thw": np.array(grids, np.int64)}
    merge = manifest["workflow"]["positions"]["merge_size"]
    sizes = {"patches": patches, "images": len(grids), "image_tokens": patches // merge**2}
    return feeds, sizes


def _embedding(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    B, S, n = c["batch"], c["sequence"], c["image_tokens"]
    ids = _words(manifest, B, S)
    if n:
        ids[0, 1 : 1 + n] = _image_token(manifest)
    declared = port(manifest, "embedding", "image_features")
    features = noise(n, declared["shape"][1], dtype=declared["dtype"])
    sizes = {"batch": B, "sequence": S, "image_tokens": n}
    return {"input_ids": ids, "image_features": features}, sizes


def _decoder(manifest: dict[str, Any], c: dict[str, Any]) -> tuple[Arrays, Sizes]:
    B, S, P = c["batch"], c["sequence"], c["past_sequence"]
    places = np.broadcast_to(np.arange(P + S, dtype=np.int64), (4, B, P + S))
    feeds = {
        **_tokens(manifest, _words(manifest, B, S)),
        "attention_mask": np.ones((B, P + S), np.int64),
        "position_ids": np.ascontiguousarray(places[:, :, P:]),
        **_state(manifest, B, P, noise),
        "past_position_ids": np.ascontiguousarray(places[:, :, :P]),
    }
    sizes = {"batch": B, "sequence": S, "past_sequence": P, "total_sequence": P + S}
    return feeds, sizes


_MAKERS: dict[str, Callable[[dict[str, Any], dict[str, Any]], tuple[Arrays, Sizes]]] = {
    "vision_encoder": _vision_encoder,
    "embedding": _embedding,
    "decoder": _decoder,
}


def _image_token(manifest: dict[str, Any]) -> int:
    image = manifest["workflow"]["positions"]["image_token_id"]
    if image is None:
        raise InputError("workflow.positions.image_token_id", found=None, expected="an id")
    return int(image)


def _words(manifest: dict[str, Any], batch: int, sequence: int) -> np.ndarray:
    """Ids that no graph treats in a way of its own, int64 [B, S]."""
    place = manifest["workflow"]["positions"]
    taken = {place[k] for k in place if k.endswith("_token_id")}
    for c in manifest["components"].values():
        taken |= set(c["unsupported_token_ids"])
    free = (i for i in range(manifest["vocab_size"]) if i not in taken)
    return np.full((batch, sequence), next(free, 0), np.int64)


def _tokens(manifest: dict[str, Any], ids: np.ndarray) -> Arrays:
    """Token inputs of the decoder alone, in whichever form it has them."""
    names = {p["name"]: p for p in manifest["components"]["decoder"]["inputs"]}
    if "inputs_embeds" not in names:
        return {"input_ids": ids}
    declared = names["inputs_embeds"]
    embeds = noise(*ids.shape, declared["shape"][2], dtype=declared["dtype"])
    return {"inputs_embeds": embeds, "ple_input_ids": ids}


def _zeros(*shape: int, dtype: str) -> np.ndarray:
    return (noise(*shape, dtype=dtype) * 0).astype(noise(0, dtype=dtype).dtype)


def _state(
    manifest: dict[str, Any], batch: int, past: int, floats: Callable[..., np.ndarray]
) -> Arrays:
    """State tensors: `floats(*shape, dtype=...)` where they are of a floating type, else what a
    first call has."""
    lengths = {"batch": batch, "past_sequence": past}
    found = {}
    for e in manifest["cache"]:
        shape = [d if isinstance(d, int) else lengths[d] for d in e["shape"]]
        whole = e["dtype"] == "int64"
        found[e["input"]] = (
            np.full(shape, e["initial"], np.int64) if whole else floats(*shape, dtype=e["dtype"])
        )
    return found


# -- a prompt, and one more token -----------------------------------------------------------------


def finite(
    package: Package, sessions: dict[str, Session]
) -> tuple[list[str], list[tuple[str, str]]]:
    """A tiny prompt, with a picture where the package has the components for it, and one step of
    decoding after it; a component that has no part in it runs alone, on noise.

    Args:
        sessions: a loaded session of every component.
    Returns:
        What was run, in words; and each (component, output) whose values are not finite. After the
        first of these the rest is not run.
    """
    found: list[tuple[str, str]] = []
    manifest = package.manifest
    watched = {
        name: Watched(name, s, lambda component, port: found.append((component, port)))
        for name, s in sessions.items()
    }
    parts = set(watched)
    whole = "decoder" in parts and ("embedding" in parts or _is_text(manifest))
    ran = []
    alone = parts - ({"decoder", "embedding", "vision_encoder"} if whole else set())
    for name in sessions:
        if name in alone and not found:
            watched[name].run(_MAKERS[name](manifest, _BASE[name])[0])
            ran.append(name)
    if whole and not found:
        picture = "vision_encoder" in parts
        ran.append("a prompt with a picture" if picture else "a prompt")
        try:
            _prompt_and_step(manifest, watched, found)
        except Exception:
            if not found:
                raise
        else:
            if not found:
                ran.append("one step")
    return ran, list(dict.fromkeys(found))


def _is_text(manifest: dict[str, Any]) -> bool:
    ports = manifest["components"]["decoder"]["inputs"]
    return all(p["name"] != "inputs_embeds" for p in ports)


def _prompt_and_step(
    manifest: dict[str, Any], watched: dict[str, Watched], found: list[tuple[str, str]]
) -> None:
    ids, grids, features = _words(manifest, 1, 5), [], None
    image = manifest["workflow"]["positions"]["image_token_id"]
    if "vision_encoder" in watched:
        feeds, sizes = _vision_encoder(manifest, {"grids": (PICTURE,)})
        features = watched["vision_encoder"].run(feeds)["image_features"]
        ids[0, 1 : 1 + sizes["image_tokens"]] = image
        grids = [PICTURE]
    mask = np.ones_like(ids)
    positions, deltas = prompt_positions(ids, mask, grids, -1 if image is None else image)
    state = _state(manifest, 1, 0, _zeros)
    for step in range(2):
        if found:
            return
        feeds = {"attention_mask": mask, "position_ids": positions, **state}
        feeds |= _embedded(manifest, watched, ids, features if step == 0 else None)
        made = watched["decoder"].run(feeds)
        state = {e["input"]: made[e["output"]] for e in manifest["cache"]}
        positions = next_positions(mask, deltas)
        mask = np.ones((1, mask.shape[1] + 1), np.int64)
        ids = _words(manifest, 1, 1)


def _embedded(
    manifest: dict[str, Any],
    watched: dict[str, Watched],
    ids: np.ndarray,
    features: np.ndarray | None,
) -> Arrays:
    """Token inputs of the decoder, through the embedding where there is one."""
    if "embedding" not in watched:
        return {"input_ids": ids}
    if features is None:
        declared = port(manifest, "embedding", "image_features")
        features = noise(0, declared["shape"][1], dtype=declared["dtype"])
    given = watched["embedding"].cast("image_features", features)
    embeds = watched["embedding"].run({"input_ids": ids, "image_features": given})["inputs_embeds"]
    return {"inputs_embeds": watched["decoder"].cast("inputs_embeds", embeds), "ple_input_ids": ids}


# -- goldens --------------------------------------------------------------------------------------


def implied(
    component: str, name: str, shape: Sequence[Any], given: Mapping[str, Sequence[int]]
) -> np.ndarray | None:
    """An input that a golden need not have: the features of no picture.

    Args:
        shape: what the input declares. given: shapes of the golden's tensors.
    """
    if (component, name) == ("embedding", "image_features"):
        return nothing(shape)
    return None


class _Loaded(Pipeline):
    """The pipeline with sessions that exist already."""

    def __init__(self, package: Package, sessions: dict[str, Session]) -> None:
        super().__init__(package)
        self._sessions = dict(sessions)


def replay(package: Package, sessions: dict[str, Session], given: Arrays) -> Arrays:
    """What a prefix file holds, made again of its tokens: `logits` and the state by its names.

    Args:
        given: `token_ids`, `attention_mask` [B, S], `position_ids` [4, B, S], and `logits`
            [B, 1 or S, V].
    Raises:
        InputError: arrays that are none of a prefix file; ids that no component takes.
        SourceNotFound: the package lacks components.
    """
    ids, mask, p, logits = (
        given.get(k) for k in ("token_ids", "attention_mask", "position_ids", "logits")
    )
    if ids is None or ids.ndim != 2 or ids.dtype != np.int64 or ids.size == 0:
        raise InputError("token_ids", expected="int64 [B, S]")
    shape = ids.shape
    for name, value, wanted in (("attention_mask", mask, shape), ("position_ids", p, (4, *shape))):
        if value is None or value.shape != wanted or value.dtype != np.int64:
            raise InputError(name, expected=f"int64 {list(wanted)}")
    assert mask is not None and p is not None
    if logits is None or logits.ndim != 3 or logits.shape[1] not in (1, shape[1]):
        raise InputError("logits", expected=f"[{shape[0]}, 1 or {shape[1]}, V]")
    pipeline = _Loaded(package, sessions)
    pipeline.reader.check_ids(ids.reshape(-1).tolist(), "token_ids")
    pipeline.places(ids, mask, NONE)  # refuses the tokens of pictures
    whole = logits.shape[1] == shape[1]
    deltas = np.zeros(shape[0], np.int64)  # of further tokens alone
    made = pipeline.run(ids, mask, p, deltas, all_logits=whole, keep=False)
    state = {s.name: made.state[s.input] for s in pipeline.workflow.states}
    return {"logits": made.logits, **state}
