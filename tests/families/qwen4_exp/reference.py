"""The Qwen4-Exp decoder as a plain NumPy program in float32, written from its description.

Sections are those of the Qwen4-Exp specification: here 3 (names of weights), 4 (the whole decoder)
and 10.1 (caches); the layers are in `reference_layers`, `reference_attention` and `reference_ple`,
the sizes in `reference_sizes`. Slow and simple on purpose: this is what the exported graphs are
compared with, so it shares no code with them.

A state is a dict: `"3.key"` is role `key` of layer 3, `"position_ids"` the position history.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import reference_attention as attention
from . import reference_layers as layers
from . import reference_ple as ple
from .reference_layers import Array, Weights, scoped
from .reference_sizes import Sizes, read_sizes

State = dict[str, Array]

# --- weights (section 3) --------------------------------------------------------------------------

PREFIXES = ("model.language_model.", "model.")
NOT_EXECUTED = ("mtp.", "model.visual.")
SHARD = re.compile(r"(.*\.ngram_embedding)\.shard_(\d+)\.weight")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def shard_order(numbers: list[int]) -> list[int]:
    """Section 3.2: shards follow each other by number, not by spelling."""
    return sorted(numbers)


def fused_gate_up(gate: Array, up: Array) -> Array:
    """Section 3.2: the rows of one expert in a bank, gate first."""
    return np.concatenate([gate, up])


def decoder_weights(stored: Weights) -> dict[str, Array]:
    """Weights by names without a prefix; shards of a table and separate experts joined.

    Args:
        stored: names as in a checkpoint of either kind, arrays in float32 (FP8 multiplied out).
    """
    w: dict[str, Array] = {}
    shards: dict[str, dict[int, Array]] = {}
    parts: dict[str, dict[tuple[int, str], Array]] = {}
    for name, value in stored.items():
        if name.startswith(NOT_EXECUTED):
            continue
        prefix = next((p for p in PREFIXES if name.startswith(p)), "")
        name = name.removeprefix(prefix)
        if found := SHARD.fullmatch(name):
            shards.setdefault(found[1], {})[int(found[2])] = value
        elif found := EXPERT.fullmatch(name):
            parts.setdefault(found[1], {})[int(found[2]), found[3]] = value
        else:
            w[name] = value
    for table, by_number in shards.items():
        w[f"{table}.weight"] = np.concatenate([by_number[j] for j in shard_order([*by_number])])
    for bank, of in parts.items():
        number = len(of) // 3
        both = [fused_gate_up(of[e, "gate"], of[e, "up"]) for e in range(number)]
        w[f"{bank}.gate_up_proj"] = np.stack(both)  # [E, 2I, H]
        w[f"{bank}.down_proj"] = np.stack([of[e, "down"] for e in range(number)])  # [E, H, I]
    return w


# --- masks and states (sections 4 and 10.1) -------------------------------------------------------


def visibility(attention_mask: Array, S: int) -> Array:
    """Section 4, step 3: bool [B, S, P+S], from the mask [B, P+S]."""
    total = attention_mask.shape[1]
    query = np.arange(total - S, total)[:, None]
    return (np.arange(total) <= query) & (attention_mask != 0)[:, None]


def convolution_mask(attention_mask: Array, S: int) -> Array | None:
    """Section 4, step 3: float32 [B, S], or None where nothing is masked."""
    if S == 1 or attention_mask.all():
        return None
    return (attention_mask[:, attention_mask.shape[1] - S :] != 0).astype(np.float32)


def hashed_ids(c: Sizes, ids: Array, conv_mask: Array | None) -> Array:
    """Section 4, step 4: eos in place of padding."""
    assert c.ngrams is not None
    return ids if conv_mask is None else np.where(conv_mask == 0, c.ngrams.eos, ids)


def first_state(c: Sizes, B: int) -> State:
    """Section 10.1: what the first call is given."""
    state: State = {"position_ids": np.zeros((4, B, 0), np.int64)}
    for i, linear in enumerate(c.linear):
        if linear:
            state[f"{i}.conv_state"] = np.zeros((B, c.Tc, c.K), np.float32)
            state[f"{i}.recurrent_state"] = np.zeros((B, c.gv, c.dk, c.dv), np.float32)
        else:
            state[f"{i}.key"] = np.zeros((B, c.nkv, 0, c.D), np.float32)
            state[f"{i}.value"] = np.zeros((B, c.nkv, 0, c.D), np.float32)
            state[f"{i}.index_key"] = np.zeros((B, 0, c.Dx), np.float32)
        if c.ngrams and i in c.ngrams.layers:
            columns = (c.kp - 1) * c.ngrams.n
            state[f"{i}.ple_conv_state"] = np.zeros((B, c.N * c.H, columns), np.float32)
            state[f"{i}.ple_context"] = np.tile(
                np.array(ple.first_context(c.ngrams), np.int64), (B, 1)
            )
    return state


# --- the decoder (section 4) ----------------------------------------------------------------------


class Decoder:
    """A checkpoint's decoder: sizes `c` and weights `w` (see `decoder_weights`).

    Args:
        config: config.json; stored: every tensor of the checkpoint by its full name, float32.
    """

    def __init__(self, config: Mapping[str, Any], stored: Weights) -> None:
        self.c = read_sizes(config)
        self.w = decoder_weights(stored)

    def embed(self, ids: Array) -> Array:
        """Section 4, step 1: [B, S] -> [B, S, H]."""
        return self.w["embed_tokens.weight"][ids]

    def forward(
        self,
        tokens: Array,
        ple_ids: Array | None,
        attention_mask: Array,
        position_ids: Array,
        state: State | None = None,
    ) -> tuple[Array, State]:
        """Section 4: logits [B, S, V] and the next state.

        Args:
            tokens: ids [B, S], or embeddings [B, S, H] in float32, which need `ple_ids`.
            ple_ids: [B, S]; None for those of `tokens`.
            attention_mask: [B, P+S]; position_ids: [4, B, S].
            state: of the call before; None for a first call.
        """
        is_ids = np.issubdtype(tokens.dtype, np.integer)
        x = self.embed(tokens) if is_ids else tokens
        ids = tokens if ple_ids is None else ple_ids
        y, state = self.hidden(x, ids, attention_mask, position_ids, state)
        head = self.w["embed_tokens.weight" if self.c.tied else "lm_head.weight"]
        return y @ head.T, state

    def hidden(
        self,
        e: Array,
        ids: Array,
        attention_mask: Array,
        position_ids: Array,
        state: State | None = None,
    ) -> tuple[Array, State]:
        """Section 4 without its last matmul: what the final mixer reads, [B, S, H]."""
        B, S, _ = e.shape
        past = first_state(self.c, B) if state is None else state
        history = np.concatenate([past["position_ids"], position_ids], axis=2)
        new: State = {"position_ids": history}
        visible = visibility(attention_mask, S)
        conv_mask = convolution_mask(attention_mask, S)
        x = np.tile(e, self.c.N)  # [B, S, N*H]
        for i in range(len(self.c.linear)):
            of_layer = scoped(past, str(i))
            x, roles = self.layer(i, x, ids, of_layer, history, visible, conv_mask)
            new |= {f"{i}.{role}": value for role, value in roles.items()}
        return layers.final_mixer(self.c, scoped(self.w, "hyper_connection_mixer"), x), new

    def layer(
        self,
        i: int,
        x: Array,
        ids: Array,
        past: Mapping[str, Array],
        history: Array,
        visible: Array,
        conv_mask: Array | None,
    ) -> tuple[Array, State]:
        """Section 4, step 6: streams after layer i, and its state by role."""
        c, w = self.c, scoped(self.w, f"layers.{i}")
        roles: State = {}
        if c.ngrams and i in c.ngrams.layers:
            added, roles = self.ple(i, x, ids, past, conv_mask)
            x = x + added
        h, inj = layers.hyper_connection_read(c, scoped(w, "attn_hyper_connection"), x)
        if c.linear[i]:
            inside = scoped(w, "linear_attn")
            o, roles["conv_state"], roles["recurrent_state"] = layers.delta_net(
                c, inside, h, past["conv_state"], past["recurrent_state"], conv_mask
            )
        else:
            cached = (past["key"], past["value"], past["index_key"])
            inside = scoped(w, "self_attn")
            o, cached = attention.qsa_attention(c, inside, h, cached, history, visible)
            roles["key"], roles["value"], roles["index_key"] = cached
        x = layers.hyper_connection_write(x, o, inj)
        h, inj = layers.hyper_connection_read(c, scoped(w, "mlp_hyper_connection"), x)
        return layers.hyper_connection_write(x, layers.moe(c, scoped(w, "mlp"), h), inj), roles

    def ple(
        self, i: int, x: Array, ids: Array, past: Mapping[str, Array], conv_mask: Array | None
    ) -> tuple[Array, State]:
        """Section 4, step 6a: PLE(x, ids) [B, S, N*H], and the PLE's state by role."""
        c, w = self.c, scoped(self.w, f"layers.{i}.ple")
        assert c.ngrams is not None
        ids = hashed_ids(c, ids, conv_mask)
        number = c.ngrams.layers.index(i)
        rows, context = ple.row_ids(c.ngrams, number, past["ple_context"], ids)
        emb = ple.ple_embedding(w, rows)
        added, conv = ple.ple(c, w, x, emb, past["ple_conv_state"], conv_mask)
        return added, {"ple_conv_state": conv, "ple_context": context}
